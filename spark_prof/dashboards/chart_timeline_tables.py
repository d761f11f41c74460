"""What stands beside a time line: the same in numbers, and all about one call."""

from __future__ import annotations

import pandas as pd

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.findings.naming import short_name
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.views.columns import KernelColumns
from spark_prof.analyzers.views.timeline import Timeline
from spark_prof.analyzers.views.timeline_calls import Call
from spark_prof.dashboards.chart_timeline_texts import duration, instant
from spark_prof.dashboards.formats import MISSING, count, counted, difference, microseconds, share
from spark_prof.vocabulary import COMPONENTS


def numbers(drawn: Timeline, steps: int) -> tuple[tuple[str, str], ...]:
    """The range in a few figures: what each is called, and its value."""
    length = drawn.to_ns - drawn.from_ns
    return (
        ("Range", duration(length)),
        ("Something ran", f"{duration(drawn.busy_ns)} ({share(drawn.busy_ns / length)})"),
        ("Nothing ran", f"{duration(length - drawn.busy_ns)} "
                        f"({share(1 - drawn.busy_ns / length)})"),
        ("Kernels and copies", count(drawn.kernels)),
        ("Steps", count(steps)),
    )  # fmt: skip


def component_table(drawn: Timeline) -> pd.DataFrame:
    """How long each component ran; an instant of several counts to what began first."""
    length = drawn.to_ns - drawn.from_ns
    rows = sorted(((ns, name) for name, ns in zip(COMPONENTS, drawn.components, strict=True)))
    return pd.DataFrame(
        [(name, duration(ns), share(ns / length)) for ns, name in reversed(rows) if ns],
        columns=["Component", "Time", "Of the range"],
    )


def gap_table(drawn: Timeline, columns: KernelColumns, origin_ns: int) -> pd.DataFrame:
    """The longest gaps of the range in the order of `drawn.gaps`; names are not escaped."""
    return pd.DataFrame(
        [
            (
                duration(gap.length_ns),
                share(gap.length_ns / (drawn.to_ns - drawn.from_ns)),
                _named(columns, gap.before),
                _named(columns, gap.after),
                instant(gap.begin_ns - origin_ns),
            )
            for gap in drawn.gaps
        ],
        columns=["Nothing ran for", "Of the range", "After", "Before", "From"],
    )


def steps_table(steps: pd.DataFrame) -> pd.DataFrame:
    """Steps as a reader sees them, in their order."""
    tokens = (steps["prefill_tokens"] + steps["decode_tokens"]).astype(int)
    return pd.DataFrame(
        {
            "Step": steps["step"].to_numpy(),
            "Phase": steps["phase"].astype(str).to_numpy(),
            "Time": [microseconds(us) for us in steps["step_us"]],
            "Kernels": [microseconds(us) for us in steps["kernels_us"]],
            "Gaps": [microseconds(us) for us in steps["gap_us"]],
            "Tokens": tokens.to_numpy(),
        }
    )


def call_facts(
    call: Call, columns: KernelColumns, report: Report, origin_ns: int
) -> tuple[tuple[str, str], ...]:
    """All about a call but its name: what each fact is called, and the fact; not escaped."""
    place = call.place
    start, end = int(columns.start_ns[place]), int(columns.end_ns[place])
    component = COMPONENTS[int(columns.component[place])]
    step, layer = int(columns.step[place]), int(columns.layer[place])
    launch = columns.launches[int(columns.launch[place])]
    facts = [
        ("Takes", duration(end - start)),
        ("Among its calls", _rank(call, end - start)),
        ("Begins", f"{instant(start - origin_ns)} after the first kernel"),
        ("Component", component),
        ("Layer", count(layer) if layer >= 0 else "outside the layers"),
        ("Step", count(step) if step >= 0 else "outside the analyzed steps"),
        ("Stream", columns.streams[int(columns.stream[place])]),
        ("Gap before it", _gaps(call)),
        ("Runs after", _named(columns, call.before)),
        ("Runs before", _named(columns, call.after)),
    ]
    if launch.grid:
        shape = f"grid {launch.grid}, block {launch.block}"
        facts.append(("Launched as", f"{shape}, {counted(launch.registers, 'register')} a thread, "
                                     f"{count(launch.shared_bytes)} B shared"))  # fmt: skip
    return (*facts, *_engine(report, columns.names[int(columns.name[place])], component))


def _rank(call: Call, took: int) -> str:
    if call.calls == 1:
        return "the only call of this kernel"
    against = f"{difference(took, call.median_ns)} against their median {duration(call.median_ns)}"
    if not call.longer:
        return f"the longest of {count(call.calls)}; {against}"
    return f"{count(call.longer)} of {count(call.calls)} take longer; {against}"


def _gaps(call: Call) -> str:
    if call.idle_ns is None:
        return MISSING
    device = "the device idled " + duration(call.idle_ns) if call.idle_ns else "the device was busy"
    if call.gap_ns is None:
        return f"nothing ran on its stream before; {device}"
    return f"{duration(call.gap_ns)} on its stream; {device}"


def _named(columns: KernelColumns, place: int) -> str:
    return short_name(columns.names[int(columns.name[place])]) if place >= 0 else MISSING


def _engine(report: Report, name: str, component: str) -> list[tuple[str, str]]:
    """What the report knows about a kernel, best of the same component."""
    rows: list[KernelRow] = [row for row in report.kernels if row.name == name]
    rows.sort(key=lambda row: row.component != component)
    if not rows:
        return []
    row = rows[0]
    found = [("Engine", f"{row.engine}, {row.precision}" if row.precision else row.engine)]
    found.append(("By", row.evidence))
    if row.weights:
        found.append(("Weights stored as", row.weights))
    if row.conversion:
        found.append(("Conversion", row.conversion))
    return found
