"""A section that takes a token's time apart from its floor on, and what that says in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.views.waterfall import SMALL_US, Part, Waterfall, waterfall_of
from spark_prof.dashboards import about_run
from spark_prof.dashboards.about_run import on_cpu
from spark_prof.dashboards.formats import clean, counted, microseconds, rate, share, shorten
from spark_prof.dashboards.section import Cell, Column, Section

_LONGEST_PROSE = 1000
_NO_TIME_US = 0.005
"""Parts that would be written as 0.00 us are left out."""

_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "components": "other components",
        "small": "small kernels",
        "conversion": "conversions",
        "collective": "collectives",
        "copies": "copies",
        "rest": "rest",
        "launch_gaps": "launch gaps",
        "host": "host",
    }
)

_MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "floor": "What has to be moved at the memory's speed, or calculated at the peak.",
        "components": "Components with less than 1 % each.",
        "small": f"Kernels under {SMALL_US:g} us: launching them takes as long as their work.",
        "conversion": "Kernels that only change a format.",
        "collective": "Kernels that exchange data between GPUs, waits for other ranks included.",
        "copies": "Copies and memsets.",
        "rest": "What no part accounts for.",
        "launch_gaps": "Nothing runs between the first and the last kernel of a step.",
        "host": "Nothing runs before the first kernel of a step or after its last.",
    }
)
"""What each kind of part is; components are what the vocabulary says of them."""

_FLOOR = (
    "Memory floor: reading the weights and the KV cache once. Small kernels: launching them takes "
    "as long as their work. Launch gaps and host: nothing runs, the GPU waits."
)
_NO_FLOOR = "Launch gaps: nothing runs between a step's kernels. Host: nothing before and after."


def name_of(part: Part, found: Waterfall) -> str:
    """What a part is called beside its bar."""
    if part.kind == "component":
        return clean(part.component)
    if part.kind == "floor":
        return "memory floor" if found.phase == "decode" else "floor"
    return _NAMES[part.kind]


def waterfall(report: Report) -> Section:
    """Lists the parts of a token's time, or a step's, from the floor to what was measured."""
    found = waterfall_of(report)
    rows: list[tuple[Cell, ...]] = [
        (
            name_of(part, found),
            microseconds(part.us),
            share(part.us / found.us if found.us else None),
            max(part.us / found.us, 0.0) if found.us else 0.0,
            _meaning(part, found, on_cpu(report)),
        )
        for part in found.parts
        if abs(part.us) >= _NO_TIME_US
    ]
    if rows:
        rows.append(("measured", microseconds(found.us), share(1.0), 0.0, _stands_on(found)))
    columns = (
        Column("Part"),
        Column(f"A {found.of}", "number"),
        Column("Share", "number"),
        Column("", "bar"),
        Column("What it is", "prose"),
    )
    return Section("waterfall", _title(found), columns, tuple(rows), _intro(found))


def explained(section: Section, found: Waterfall) -> tuple[str, ...]:
    """What to know before the bars can be read: the section's sentences, and what parts are."""
    return (*section.intro, _NO_FLOOR if found.floor_us is None else _FLOOR)


def verdict(report: Report) -> tuple[str, ...]:
    """Says how fast the run is, how far from possible, and what to do first; one sentence each."""
    found = waterfall_of(report)
    sentences = [" ".join(filter(None, (_speed(report, found), _distance(found))))]
    beyond = [part for part in found.parts if part.kind not in ("floor", "rest")]
    if most := max(beyond, key=lambda part: part.us, default=None):
        sentences.append(
            f"The largest part{' beyond it' if found.floor_us is not None else ''}: "
            f"{name_of(most, found)}, {microseconds(most.us)} ({share(most.us / found.us)})."
            if found.us
            else ""
        )
    sentences += about_run.caveats(report)
    if not report.findings:
        sentences.append("None of the rules found anything worth changing.")
        return tuple(filter(None, sentences))
    first = report.findings[0]
    gain = (
        ""
        if first.ms_per_token is None
        else f", at most {microseconds(1000 * first.ms_per_token)} of each token"
    )
    sentences += [f"First thing to do{gain}: {first.fix}", f"Because: {first.text}"]
    return tuple(shorten(clean(text), _LONGEST_PROSE) for text in sentences if text)


def _title(found: Waterfall) -> str:
    if found.floor_us is None:
        return f"What the time of a {found.of} consists of"
    floor = "the memory floor" if found.phase == "decode" else "the floor"
    return f"From {floor} to the time of a {found.of}"


def _stands_on(found: Waterfall) -> str:
    if found.of == "run":
        return "The sum of all kernels."
    kind = "" if found.phase == "unknown" else f"{found.phase} "
    return f"The median of {counted(found.steps, f'{kind}step')}."


def _meaning(part: Part, found: Waterfall, cpu: bool) -> str:
    text = _MEANINGS.get(part.kind, "")
    unit = "operator" if cpu else "kernel"
    if part.kind == "component" and found.floor_us is not None:
        text = f"What its {unit}s take beyond their floor."
    if not part.calls:
        return text
    return f"{counted(max(round(part.calls), 1), unit)}. {text}".strip()


def _intro(found: Waterfall) -> tuple[str, ...]:
    if found.floor_us is None:
        return (f"There is no floor to begin with: {found.no_floor}",) if found.no_floor else ()
    return (
        "The parts add up to what was measured; what runs at the same time shares it. Each kernel "
        "is in one of them: up to its floor in the first, beyond it in its own. "
        f"What they need is known for {share(found.known)} of "
        "the kernel time; other kernels have no floor.",
    )


def _speed(report: Report, found: Waterfall) -> str:
    where = " on this processor" if on_cpu(report) else ""
    if found.of == "token" and found.us:
        tokens = rate(1e6 / found.us)
        return (
            f"An output token takes {microseconds(found.us)}{where}, {tokens} tokens/s a sequence."
        )
    if found.of == "run":
        return f"Kernels take {microseconds(found.us)} in all; nothing tells the time of a token."
    kind = "" if found.phase == "unknown" else f"{found.phase} "
    return f"A {kind}step takes {microseconds(found.us)}{where}; nothing tells the time of a token."


def _distance(found: Waterfall) -> str:
    if found.floor_us is None:
        return f"How far that is from possible is not known. {found.no_floor}".strip()
    limit = "the memory allows" if found.phase == "decode" else "the GPU allows"
    return (
        f"At best {limit} {microseconds(found.floor_us)}: {share(found.floor_us / found.us)} of "
        "the time is that floor."
        if found.us
        else ""
    )
