"""Recordings made by hand of an engine that drafts, with planted acceptance and planted times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_prof.traces.bundle import Bundle
from tests.support import (
    MODULES,
    PREPARE,
    QKV,
    Piece,
    Recorded,
    call,
    drafted,
    engine,
    kernel,
    kineto,
    operator,
    step,
)

DRAFT_MLP, PROPOSE = len(MODULES), len(MODULES) + 1
OF_DRAFTER = [
    {"path": "drafter.model.layers.0.mlp", "type": "MLP", "layer": -1, "component": "mlp"},
    {"path": "drafter.propose", "type": "Eagle", "layer": -1, "component": "sampler"},
]
SPECULATIVE = {"method": "eagle", "num_speculative_tokens": "3"}


@dataclass(frozen=True)
class Drafted:
    """A decode step: of each request what was proposed and accepted, -1 for no drafts at all."""

    requests: Sequence[tuple[int, int]]
    us: int = 1000  # how long it takes
    drafter_us: int = 300  # of it the drafter's kernels, with a hole between them; 0 for none
    host_us: int = 40  # of the call that drafts
    context: int = 10
    shared: bool = False  # whether drafting also calls a module that it shares with the model


def recorded(
    path: Path,
    steps: Sequence[Drafted],
    *,
    speculative: Mapping[str, str] = SPECULATIVE,
    marked: bool = True,
    on_cpu: bool = False,
    model: Mapping[str, Any] | None = None,
) -> Bundle:
    """The bundle of these steps, one after the other without a pause.

    Args:
        marked: whether the drafter's calls are; else nothing tells what drafting takes.
        on_cpu: whether the rows are operators.
    """
    rows, engines, drafts, calls, traced = [], [], [], [], []
    at = 0
    for number, each in enumerate(steps):
        end = at + 1000 * each.us
        tokens = sum(1 + max(proposed, 0) for proposed, _ in each.requests)
        given = sum(1 + max(accepted, 0) for _, accepted in each.requests)
        count = len(each.requests)
        rows.append(step(number, at + 10, end - 10, decode_requests=count, decode_tokens=tokens))
        engines.append(
            engine(number, at, end, output_tokens=given, output_requests=count,
                   scheduled_tokens=tokens)
        )  # fmt: skip
        drafts += [
            drafted(number, proposed, accepted, request=n, context=each.context)
            for n, (proposed, accepted) in enumerate(each.requests)
            if proposed >= 0
        ]
        begin, drafter = at + 5000, end - 1000 * each.drafter_us
        calls += call(PREPARE, at + 20, at + 100) + call(QKV, begin, begin + 2000)
        kinds: list[Any] = [("gemm_qkv", begin + 1000, drafter - 5000, begin + 500)]
        launched = begin + 3000
        if marked:
            calls += call(PROPOSE, launched, launched + 1000 * each.host_us)
        if each.drafter_us:
            if marked:
                calls += call(DRAFT_MLP, launched + 100, launched + 3000)
            middle = (drafter + end) // 2
            kinds += [("gemm_draft", drafter, middle - 10_000, launched + 200),
                      ("gemm_draft", middle + 10_000, end, launched + 400)]  # fmt: skip
        if each.shared:
            calls += call(QKV, launched + 5000, launched + 6000)
            kinds.append(("gemm_shared", drafter - 4000, drafter - 1000, launched + 5500))
        for n, (name, first, last, launch) in enumerate(kinds):
            if on_cpu:
                traced.append(operator(f"aten::{name}", launch, launch + 50))
            else:
                traced.append(kernel(name, first, last, 10 * number + n + 1, launch))
        at = end
    facts = {"engine_config": {"speculative_config": dict(speculative)},
             "model_config": dict(model or {}), "execution": "eager"}  # fmt: skip
    made = Recorded(
        {0: [Piece(rows, calls, kineto(*traced))]}, {0: engines}, facts=facts,
        modules=[*MODULES, *OF_DRAFTER], drafts={0: drafts},
    )  # fmt: skip
    return made.assemble(path)
