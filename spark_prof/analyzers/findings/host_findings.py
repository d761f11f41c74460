"""A rule about code of the host that the GPU waits for."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.answers import written_time
from spark_prof.analyzers.findings.rule import Observation, ms_per_token, rule
from spark_prof.analyzers.host.host_rows import HostCode, HostFunction, HostStage
from spark_prof.analyzers.model import Report
from spark_prof.rules import thresholds
from spark_prof.rules.host_stages import ADVICE, STAGES, WAITS

_MUCH = thresholds.HOST_SHARE.value
_GAP = thresholds.HOST_GAP.value
_FEWEST = thresholds.HOST_SAMPLES.value
_SURE = thresholds.HOST_SURE.value
_NO_CODE = WAITS | {"other", "gpu", "requests", "profiler"}
_NEARLY_ALL = 0.9  # of its stage: the function's name says more than the stage's


@rule("host-code", "host",
      "one stage of the host has 40 % of the time in which the GPU waits, by stacks sampled from "
      "outside, and that time is 5 % of a step", ("host", "launch_gaps"))  # fmt: skip
def _code(report: Report) -> Iterator[Observation]:
    host = report.host
    if host is None or host.gap_samples < _FEWEST or host.sure < _SURE:
        return
    if not _is_long(report, host):
        return
    stage = next((row for row in host.stages if row.stage not in _NO_CODE), None)
    if stage is None or stage.low < _MUCH:
        return
    waits = "no operator runs" if report.run.units == "op" else "the GPU waits"
    where, doing = _named(host, stage), STAGES.get(stage.stage, stage.stage)
    yield Observation(ms_per_token(report, stage.step_us * report.steps.decode),
        f"{100 * stage.share:.0f} % of the time in which {waits} is spent {doing}, "
        f"{written_time(stage.step_us)} of a mean profiled step{where}.",
        ADVICE.get(stage.stage, "Look at the flame graph for what is called there."),
        (f"{stage.samples} of {host.gap_samples} stacks that py-spy saw then; the 95 % interval is "
         f"{100 * stage.low:.0f} to {100 * stage.high:.0f} %.",
         f"It was looking during {100 * host.covered:.0f} % of that time, and "
         f"{100 * host.sure:.0f} % of its samples are in a gap whatever the error of their times."),
        subject=stage.stage,
    )  # fmt: skip


def _is_long(report: Report, host: HostCode) -> bool:
    whole = report.all_steps
    if whole is None or not whole.steps:
        return False
    return host.gap_us >= _GAP * whole.step_us / whole.steps


def _named(host: HostCode, stage: HostStage) -> str:
    """The innermost function that has nearly all of the stage, where one has."""
    rows = [row for row in host.functions
            if row.stage == stage.stage and row.samples >= _NEARLY_ALL * stage.samples]  # fmt: skip
    if not rows:
        return ""
    inner: HostFunction = min(rows, key=lambda row: (row.samples, -row.innermost))
    return f", in {inner.function} ({inner.file})"
