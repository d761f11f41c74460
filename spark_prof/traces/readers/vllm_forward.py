"""Reads the kernel sums that `vllm bench forward --profile-dir` writes, `CASE.rankR.kernels.json`.

Format: vllm/benchmarks/forward/profile.py, since vLLM 0.33: the replays of one case's CUDA graph,
and for each kernel its time and calls in a forward pass, times in us with two decimals. Kernels
whose names differ only in their template arguments are one row, with the name of the first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from spark_prof.errors import CommandError
from spark_prof.traces.compressed import read_whole
from spark_prof.traces.foreign import Foreign, ForeignProcess, KernelSum, end_to_end
from spark_prof.traces.rank_files import rank_named

FORMAT = "vllm-forward"

_MOST_BYTES = 64 << 20
_LONGEST_NAME = 300  # vLLM cuts names off behind so many letters
_COPIES = {"Memcpy": "memcpy", "Memset": "memset"}

_Microseconds = Annotated[float, msgspec.Meta(ge=0, lt=1e15)]


class _ForwardKernel(msgspec.Struct):
    name: str
    us: _Microseconds
    calls: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    example: str = ""


class _ForwardSummary(msgspec.Struct):
    replays: int
    span_us: _Microseconds
    busy_us: _Microseconds
    kernels: list[_ForwardKernel]
    pre_forward_us: _Microseconds = 0.0


def vllm_forward(path: Path) -> Foreign:
    """Reads the sums of one case on one rank, plain or compressed."""
    try:
        summary = msgspec.json.decode(read_whole(path, _MOST_BYTES), type=_ForwardSummary)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(
            f"{path} is not complete, as vllm bench forward writes it ({error})"
        ) from error
    sums = [
        KernelSum(
            row.example or row.name,
            row.calls,
            round(row.us * 1000),
            kind=_COPIES.get(row.name.split(" ", 1)[0], "kernel"),
        )
        for row in summary.kernels
        if row.calls
    ]
    if not sums:
        raise CommandError(f"{path} lists no kernel; run vllm bench forward --profile-dir again")
    lost = [
        f"sums of one forward pass, the mean of {summary.replays} replays of its CUDA graph: it "
        f"took {summary.span_us:,.2f} us from its first kernel to its last, "
        f"{summary.busy_us:,.2f} us of kernels and copies; "
        "their order, gaps and layers are unknown",
        "kernels whose names differ in template arguments only are one row, with the first's name",
    ]
    if rest := sum(row.calls == 0 for row in summary.kernels):
        lost.append(f"{rest} kernels did not run in every forward pass and are left out")
    if any(len(row.example) >= _LONGEST_NAME for row in summary.kernels):
        lost.append(f"names are cut off after {_LONGEST_NAME} letters")
    facts = {"summed": True, "tool": "vllm bench forward", "execution": "CUDA graphs"}
    return Foreign(
        FORMAT, [ForeignProcess(rank_named(path.name), facts)], end_to_end(0, sums, path), lost
    )
