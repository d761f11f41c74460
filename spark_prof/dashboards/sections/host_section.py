"""Which code of the host the GPU waits for, and what the host lets its processes have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spark_prof.analyzers.host.host_rows import (
    FlameFrame,
    HostCode,
    HostFunction,
    HostLimits,
    HostStage,
)
from spark_prof.analyzers.model import Report
from spark_prof.dashboards import cells
from spark_prof.dashboards.charts import Plot, label, new_figure
from spark_prof.dashboards.section import Section, listed, table
from spark_prof.dashboards.units import counted, figure, microseconds, share
from spark_prof.rules.host_stages import STAGES, stage_of_frame

_STAGE_COLORS = {
    "schedule": "#0072B2", "prepare": "#56B4E9", "launch": "#009E73", "sample": "#E69F00",
    "output": "#D55E00", "messages": "#CC79A7", "profiler": "#999999",
}  # fmt: skip
_GREY = "#BBBBBB"
_ROW_PIXELS, _TALLEST = 22, 900


def sections(report: Report) -> tuple[Section, ...]:
    """All there is about the host's code; `--section host` shows it."""
    host = report.host
    if host is None:
        return ()
    return (
        listed("host", _title(report), (*_sentences(report, host), *_limits(host))),
        _stages(host),
        _functions(host),
    )


def _title(report: Report) -> str:
    waits = "nothing runs" if report.run.units == "op" else "the GPU waits"
    return f"Host: which code runs while {waits}"


def _sentences(report: Report, host: HostCode) -> Iterator[str]:
    idle = "No operator runs" if report.run.units == "op" else "The GPU waits"
    yield (
        f"{idle} for {microseconds(host.gap_us)} of a mean profiled step: "
        f"{microseconds(host.between_us)} before its first or after its last kernel and "
        f"{microseconds(host.inside_us)} between them."
    )
    yield (
        f"py-spy looked {host.rounds:,} times, {host.gap_samples:,} of them in such a gap; it was "
        f"looking during {share(host.covered)} of the gaps' time. Times of looks are off by "
        f"{microseconds(host.error_us)} at most in 19 of 20, so that {share(host.sure)} of these "
        "samples are in a gap for certain; the others may be of the work beside it."
    )
    if not host.enough:
        yield (
            "That is too few to tell which code it is: record longer (--steps), and profile more "
            "of the steps (--duty-cycle 1/1)."
        )
        return
    if host.unknown:
        yield f"No rule knows the stage of {share(host.unknown)} of the samples in gaps."


def _limits(host: HostCode) -> Iterator[str]:
    limits = host.limits
    if limits.quota is not None:
        yield f"Control groups allow {figure(limits.quota, ',.2f')} processors' worth of time."
    if limits.throttled_share:
        yield (
            f"The engine was throttled in {share(limits.throttled_share)} of its control group's "
            f"periods, {microseconds(limits.throttled_us)} in all: it had used its quota up."
        )
    yield from _processors(limits)
    if host.busy:
        threads = ", ".join(
            f"{thread.name or 'without a name'} ({thread.thread}, {share(thread.share)})"
            for thread in host.busy[:4]
        )
        rest = f" and {len(host.busy) - 4} more" if len(host.busy) > 4 else ""
        yield (
            f"{counted(len(host.busy), 'thread')} without Python used a whole processor each, by "
            f"computing or by spinning: {threads}{rest}."
        )


def _processors(limits: HostLimits) -> Iterator[str]:
    if limits.cpus is None:
        return
    omp = f"; OMP_NUM_THREADS is {limits.omp_threads}" if limits.omp_threads else ""
    yield f"The worker may run on {counted(int(limits.cpus), 'processor')}{omp}."


def _stages(host: HostCode) -> Section:
    columns = (
        cells.Text("Stage", lambda row: STAGES.get(row.stage, row.stage)),
        cells.Share("Of the gaps", "share"),
        cells.Formatted("95 %", _interval),
        cells.Time("A step", "step_us"),
        cells.Count("Samples", "samples"),
        cells.Share("Of all time", "everywhere"),
        cells.Bar("", "share"),
    )
    intro = ("Of a worker's first thread; while that waits for the scheduler, of the scheduler's.",)
    return table("host-stages", "Stages of the host in these gaps", host.stages, columns, intro)


def _functions(host: HostCode) -> Section:
    columns = (
        cells.Text("Function", "function", longest=60),
        cells.Text("File", "file", longest=60, optional=True),
        cells.Share("Of the gaps", "share"),
        cells.Formatted("95 %", _interval),
        cells.Time("A step", "step_us"),
        cells.Count("Samples", "samples"),
        cells.SomeCount("Its own", "innermost"),
    )
    intro = (
        "With what it calls, without functions that only call one other; its own are the samples "
        "in which it called no Python.",
    )
    return table("host-functions", "Functions in these gaps", host.functions, columns, intro)


def _interval(row: HostStage | HostFunction) -> str:
    return f"{share(row.low)} to {share(row.high)}"


def flame_graph(report: Report) -> Plot:
    """Who called whom in the gaps, as wide as it had samples; the root is on top."""
    frames = report.host.flame if report.host else ()
    parents = [frame.parent if frame.parent < n else -1 for n, frame in enumerate(frames)]
    height = 120 + _ROW_PIXELS * _depth(parents)
    drawn = new_figure("Stacks in the gaps", min(height, _TALLEST))
    tops = (f.samples for f, parent in zip(frames, parents, strict=True) if parent < 0)
    total = max(sum(tops), 1)
    drawn.add_icicle(
        ids=[str(number) for number in range(len(frames))],
        labels=[label(frame.function, 60) for frame in frames],
        parents=["" if parent < 0 else str(parent) for parent in parents],
        values=[frame.samples for frame in frames],
        customdata=[
            (label(frame.file, 80), f"{frame.samples:,}", share(frame.samples / total))
            for frame in frames
        ],
        branchvalues="total",
        tiling={"orientation": "v", "pad": 1},
        root={"color": "rgba(0,0,0,0)"},
        marker={"colors": _colors(frames, parents)},
        hovertemplate="%{label}<br>%{customdata[0]}<br>%{customdata[2]} of the samples in gaps "
        "(%{customdata[1]})<extra></extra>",
    )
    return drawn


def _colors(frames: Sequence[FlameFrame], parents: Sequence[int]) -> list[str]:
    """The colors of frames: of the stage that a rule names for a frame, else of its caller."""
    colors: list[str] = []
    for frame, parent in zip(frames, parents, strict=True):
        stage = stage_of_frame(frame.file, frame.function)
        above = colors[parent] if parent >= 0 else _GREY
        colors.append(_STAGE_COLORS.get(stage, _GREY) if stage else above)
    return colors


def _depth(parents: Sequence[int]) -> int:
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    return max(depths, default=0)
