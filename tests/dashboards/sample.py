"""Reports of recordings and of what no recording in tests/data has.

`SAMPLES` holds one of every kind that a renderer must cope with, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir
from dataclasses import replace
from functools import cache
from pathlib import Path

from spark_prof.analyzers.breakdown import ComponentRow, Copies, CopyRow, Coverage, KernelRow
from spark_prof.analyzers.conversions.conversion_rows import Conversions
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.model import (
    ClockRow,
    CollectiveRow,
    Collectives,
    ModuleRow,
    RankRow,
    Report,
    SlowStep,
)
from spark_prof.analyzers.overhead import Overhead
from spark_prof.analyzers.recorded_run import MarkerRow, RecordedGpu, RecordingSetup
from spark_prof.analyzers.step_accounting import Spread, Steps
from spark_prof.analyzers.step_time import StepAccount, StepSums
from spark_prof.analyzers.summary import summarize
from spark_prof.datasets.opened import opened

from .filled import filled

_DATA = Path(__file__).parents[1] / "data"


def _recorded(name: str) -> Report:
    # The report names its source as it was given.
    with chdir(_DATA), opened(name) as bundle:
        return summarize(bundle)


def _deep() -> Report:
    """A model of 48 layers, as if it had run on three ranks."""
    ranks = (
        RankRow(0, 51, 62e3, 58e3, 5e3, 2e3, 1e3, 40, 3e3),
        RankRow(1, 51, 61e3, 57e3, 6e3, 3e3, 1.1e3, 10, 2e3),
        RankRow(2, 51, 61e3, 57e3, 6e3),
    )
    overhead = (
        Overhead(1, 1.0432, 1.0391, 1.0514, 12, 5216.0, 5000.0, 1.0089),
        Overhead(8, 0.998, 0.91, 1.204, 3, 7984.0, 8000.0, 1.0),
    )
    return replace(
        _recorded("code-h100/qwen3-30b-a3b-nvfp4"),
        ranks=ranks,
        collectives=_collectives(),
        overhead=overhead,
        markers=(MarkerRow("all_reduce", "NCCL", 3700, 2500.0),),
    )


def _collectives() -> Collectives:
    """Two ranks of two hosts that wait mostly after layer 17's experts, and one on its own."""
    return Collectives(
        matched=3700,
        unmatched=4,
        steps=50,
        steps_left_out=1,
        wait_us=2500.0,
        transfer_us=1050.0,
        clocks=(
            ClockRow(1, 0, True, 0.4, 0.0, 6.0, 3700, "collectives"),
            ClockRow(2, 0, False, -5321.0, 1.5, 9.0, 51, "scheduler"),
            ClockRow(3, 0, False, None, None, None, 0, "none"),
        ),
        items=(
            CollectiveRow("all_reduce", "experts", 17, 50, 2000.0, 400.0),
            CollectiveRow("all_reduce", "o_proj", 0, 50, 480.0, 600.0),
            CollectiveRow("all_gather", "lm_head", None, 50, 20.0, 50.0),
        ),
        slow_steps=(SlowStep(3, 0, 0, 1, 90.0, 60.0), SlowStep(4, 1, 0, None, 0.0, 0.5)),
        notes=("Not on every rank of the group, so left out: 1 step.",),
    )


def _almost_empty() -> Report:
    """A trace that somebody stopped in its first prefill step, on a GPU that it doesn't name."""
    kernels_us = 420.0
    sums = StepSums(1, 500.0, kernels_us, kernels_us, 0.0, 0.0, 80.0, 0.0, None)
    return Report(
        run=RecordingSetup("stopped.json.gz", "Qwen/Qwen3-0.6B", "", "", "", "kineto", "", "",
                "interrupted",
                "kernel"),
        gpu=RecordedGpu("unknown GPU", None),
        steps=Steps(1, 1, 0, 0, 0, 16, 16, None, None, None, None, None),
        accounts=(StepAccount("all", None, sums), StepAccount("prefill", None, sums)),
        wall_us=500.0,
        coverage=Coverage(0.0, 0.0, 0.0, kernels_us, 0.0, 0.0, 0.0, 0.0, 1.0),
        components=(ComponentRow("other", kernels_us, 1.0, 7, kernels_us, 0.0, 0.0, 0.0, 0.0),),
        layers=(),
        kernels=(KernelRow("k", 7, kernels_us, 1.0, "other", "unknown", None, "unknown", None),),
        conversions=Conversions(0.0, 0.0, ()),
        modules=(),
        ranks=(),
        findings=(),
        notes=("The recording has no layer ranges.",),
    )  # fmt: skip


def _nothing() -> Report:
    """A recording in which no step was found at all, with figures that don't exist."""
    nan = float("nan")
    return replace(
        _almost_empty(),
        steps=Steps(0, 0, 0, 0, 0, 0, 0, Spread(nan, nan, nan), None, None, None, None),
        accounts=(),
        wall_us=0.0,
        coverage=Coverage(nan, nan, nan, 0.0, nan, nan, nan, nan, nan),
        components=(),
        kernels=(),
        notes=(),
    )


HOSTILE_NAME = (
    "<script>alert(1)</script></title></style>|`a`\n# b\r\x1b[31mred\x1b]0;owned\x07\x9b2J"
    "\u202eevil\ud800 [link](javascript:alert(1)) <img src=x onerror=alert(1)> ${x} \\| @you"
)


def _hostile() -> Report:
    """Figures of a recording under names that try to break out of every format."""
    report = SAMPLES["mixture_of_experts"]
    bad, endless = HOSTILE_NAME, HOSTILE_NAME + "x" * 5000
    spoiled = tuple(
        replace(row, name=endless, component=bad, engine=bad, precision=bad, evidence=bad,
                conversion=bad)
        for row in report.kernels
    )  # fmt: skip
    return replace(
        report,
        roofline=None,  # its kernels' names would be shown in place of these
        run=replace(report.run, source=endless, model=bad, command=endless, vllm=bad, torch=bad,
                    backend=bad, recorded_at=bad, execution=bad, state=bad),
        gpu=RecordedGpu(bad, bad),
        accounts=(replace(report.accounts[0], phase=bad), *report.accounts),
        components=(replace(report.components[0], name=bad), *report.components[1:]),
        layers=(replace(report.layers[0], component=bad), *report.layers[1:]),
        kernels=spoiled,
        conversions=replace(report.conversions, items=spoiled),
        copies=Copies(1.0, 1, 1.0, (CopyRow(endless, bad, 1, 1.0, 1),)),
        modules=(ModuleRow(bad, endless, bad, endless, bad, bad, 1, 1),),
        findings=(Finding(bad, 1.0, endless, bad, key=bad),),
        notes=(endless, bad),
        ranks=(RankRow(0, 1, 1.0, 1.0, 0.0), RankRow(1, 1, 1.0, 1.0, 0.0)),
        collectives=Collectives(
            items=(CollectiveRow(endless, bad, 1, 1, 1.0, 1.0),), notes=(endless,)
        ),
    )  # fmt: skip


_MADE: Mapping[str, Callable[[], Report]] = {
    "mixture_of_experts": lambda: _recorded("code-h100/gpt-oss-20b-mxfp4"),
    "deep": _deep,
    "imported": lambda: _recorded("kineto/gpt-oss-eager.json.gz"),
    "sums": lambda: _recorded("proton/tree.hatchet"),
    "cpu": lambda: _recorded("benchmarks/vllm-serve-bundle"),
    "almost_empty": _almost_empty,
    "nothing": _nothing,
    "hostile": _hostile,
    "filled": filled,
    "filled_with_hostile_text": lambda: filled(HOSTILE_NAME),
}


@cache
def _made(name: str) -> Report:
    return _MADE[name]()


class _Samples(Mapping[str, Report]):
    """Each made when it is asked for."""

    def __getitem__(self, name: str) -> Report:
        return _made(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_MADE)

    def __len__(self) -> int:
        return len(_MADE)


SAMPLES = _Samples()
