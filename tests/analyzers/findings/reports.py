"""A report of a healthy decode, made by hand, whose parts a test replaces.

100 decode steps of 1 ms on an H100, one request, CUDA graphs; 40 us of each step are gaps.
"""

from __future__ import annotations

from dataclasses import replace

from spark_prof.analyzers.breakdown import ComponentRow, Copies, Coverage, KernelRow
from spark_prof.analyzers.conversions.conversion_rows import Conversions
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.ranking import RULES
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.recorded_run import RecordedGpu, RecordingSetup
from spark_prof.analyzers.shapes.shape_rows import Occupancy, ShapeRow, Shapes, Tile
from spark_prof.analyzers.step_accounting import Spread, Steps
from spark_prof.analyzers.step_time import (
    HOST,
    LAUNCH_GAPS,
    AccountPart,
    StepAccount,
    StepSpread,
    StepSums,
)
from spark_prof.analyzers.token_time import TokenTime

STEPS = 100
STEP_US = 1000.0

MARLIN = (
    "void marlin::Marlin<1125899906909960l, 562949953487106l, 1125899906909960l, "
    "2814749767172868l, 128, 1, 4, 8, true, 4, 1, false>(int4 const*)"
)
NORM = "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(int)"


def spread(us: float) -> Spread:
    return Spread(us, us, us)


def accounts(
    between: float = 25.0, outside: float = 15.0, copies_us: float = 10.0
) -> tuple[StepAccount, ...]:
    """Accounts with so many us of gaps in a typical step, and of copies in a mean one."""
    total = STEP_US * STEPS
    sums = StepSums(
        STEPS, total, 900.0 * STEPS, 900.0 * STEPS, copies_us * STEPS, 0.0, 40.0 * STEPS, 0.0, total
    )
    step = StepSpread(STEP_US, STEP_US, STEP_US, STEP_US, STEP_US)
    parts = [
        AccountPart(name, us, us, us, 0, StepSpread(us, us, us, us, us))
        for name, us in ((LAUNCH_GAPS, between), (HOST, outside))
    ]
    token = TokenTime(
        None, STEPS, 0, 1.0, STEP_US, STEP_US, 1e6 / STEP_US, 1e6 / STEP_US, STEP_US, 0.0, 0.0, 1.0
    )
    decode = StepAccount("decode", None, sums, STEPS, step, tuple(parts), token)
    return (StepAccount("all", None, sums), decode)


def shape(
    name: str = MARLIN, component: str = "o_proj", *, us: float = 10.0, calls: int = 24,
    blocks: int = 132, waves: float = 1.0, busy: float = 1.0, warps: int = 8,
    shared: int = 200_000, tile: Tile | None = None, rows_used: float | None = None,
) -> ShapeRow:  # fmt: skip
    """A shape that a decode step launches so many times, each of so many us."""
    held = Occupancy(1, warps, warps / 64, ("registers",))
    total = us * calls * STEPS
    return ShapeRow(
        name, component, f"{blocks},1,1", "128,1,1", 96, shared, calls * STEPS, total,
        total / (STEP_US * STEPS), blocks, waves, busy, held, None, tile, 1.0, rows_used,
    )  # fmt: skip


def shaped(*rows: ShapeRow) -> Report:
    """The healthy report with these shapes, and a kernel for each of them."""
    kernels = tuple(kernel(row.name, row.component, row.us) for row in rows)
    return replace(HEALTHY, shapes=Shapes(STEPS, 132, rows), kernels=kernels)


def kernel(name: str, component: str, us: float, **known: str) -> KernelRow:
    """A kernel that takes so many us of all decode steps."""
    return KernelRow(
        name, STEPS, us, us / (STEP_US * STEPS), component, "tensor-core",
        known.get("precision", "bf16"), "name", None, known.get("weights"), us,
        decode_us_per_step=us / STEPS,
    )  # fmt: skip


def executed(report: Report, execution: str, **changed: str) -> Report:
    """The report of a run that executed in another way."""
    return replace(report, run=replace(report.run, execution=execution, **changed))


def found(report: Report, rule: str) -> list[Finding]:
    """What the rule of that name finds."""
    return [finding for r in RULES if r.id == rule for finding in r.find(report)]


def component(name: str, us: float) -> ComponentRow:
    return ComponentRow(
        name, us * STEPS, us / STEP_US, STEPS, 0.0, us * STEPS, 0.0, 0.0, us
    )  # fmt: skip


HEALTHY = Report(
    run=RecordingSetup("healthy", "tiny", "vllm serve tiny", "0.26.0", "2.11.0", "cupti", "",
            "torch.compile (VLLM_COMPILE), CUDA graphs (FULL_AND_PIECEWISE), model runner V1, "
            "asynchronous scheduling", "complete", "kernel"),
    gpu=RecordedGpu("NVIDIA H100 80GB HBM3", "9.0", "NVIDIA"),
    steps=Steps(STEPS, 0, STEPS, 0, STEPS, STEPS, 0, spread(STEP_US), None, None,
                spread(STEP_US), spread(40.0)),
    accounts=accounts(),
    wall_us=STEP_US * STEPS,
    coverage=Coverage(1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0),
    components=(component("o_proj", 860.0), component("sampler", 15.0), component("norm", 25.0)),
    layers=(),
    kernels=(kernel(MARLIN, "o_proj", 860.0 * STEPS), kernel(NORM, "norm", 25.0 * STEPS)),
    conversions=Conversions(0.0, 0.0, ()),
    modules=(),
    ranks=(),
    findings=(),
    notes=(),
    copies=Copies(),
    shapes=Shapes(STEPS, 132, (shape(calls=86), shape(NORM, "norm", us=2.5, calls=10, blocks=1,
                                                       waves=0.01, busy=0.01))),
)  # fmt: skip
