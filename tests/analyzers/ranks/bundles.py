"""Bundles of several ranks, made from a played run through the same pieces as real ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_prof.traces.assemble import assemble
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.chunks import facts_name, write_json
from spark_prof.vocabulary import PHASES
from tests.analyzers.ranks.play import Play
from tests.support import ORIGIN, Piece, Recorded, kernel, kineto

NAMES = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_gather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "send_recv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}
GEMM = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"


def piece_of(play: Play, rank: int) -> Piece:
    """A piece with the rank's steps; before each collective a product runs for a while."""
    calls = play.calls()[rank]
    steps, events = [], []
    for number, part in calls.groupby("step"):
        begin = int(part["start_ns"].min()) - play.compute_ns // 2
        prefill = int(str(number)) in play.prefills
        kind, size = "prefill" if prefill else "decode", play.batch.get(int(str(number)), 1)
        steps.append(
            {"step": int(str(number)), "key": int(play.keys[int(str(number))]),
             "phase": PHASES.index(kind), "start_ns": begin, "end_ns": int(part["end_ns"].max()),
             f"{kind}_requests": size, f"{kind}_tokens": size, "thread": 4242, "watched": 1}
        )  # fmt: skip
        for index, call in enumerate(part.itertuples()):
            correlation = 100 * int(str(number)) + 2 * index + 1
            start, end = call.start_ns - ORIGIN, call.end_ns - ORIGIN
            launch = begin - ORIGIN + 10 * index
            events += kernel(GEMM, start - play.compute_ns // 4, start, correlation, launch)
            events += kernel(NAMES[str(call.kind)], start, end, correlation + 1, launch + 5)
    return Piece(steps, (), kineto(*events))


def write(
    folder: Path,
    play: Play,
    facts: Mapping[int, Mapping[str, Any]],
    engines: Mapping[int, Any] | None = None,
    **shared: Any,
) -> Path:
    """Writes the pieces of the ranks in `facts`, whose facts are their own; returns the folder."""
    recorded = Recorded({rank: [piece_of(play, rank)] for rank in facts}, engines or {}, shared)
    pieces = recorded.write(folder)
    for rank, own in facts.items():
        lists: dict[str, Any] = {"modules": list(recorded.modules), "layers": []}
        named = {"process": f"rank{rank}", "rank": rank}
        write_json(pieces, facts_name(f"rank{rank}"), named | lists | shared | dict(own))
    return folder


def bundle(folder: Path, play: Play, facts: Mapping[int, Mapping[str, Any]], **more: Any) -> Bundle:
    """The bundle of those pieces."""
    return assemble(write(folder, play, facts, **more), state="complete")


def parallel(tensor: int = 1, pipeline: int = 1, data: int = 1) -> dict[str, int]:
    return {"tensor": tensor, "pipeline": pipeline, "data": data}
