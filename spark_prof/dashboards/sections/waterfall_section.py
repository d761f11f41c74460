"""A token's time taken apart from its lower bound on: the table, the figure and the verdict."""

from __future__ import annotations

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.views.waterfall import SMALL_US, Part, Waterfall, waterfall_of
from spark_prof.dashboards import cells
from spark_prof.dashboards.charts import (
    COLORS,
    LINES,
    NEUTRAL,
    TEXT,
    Plot,
    add_bars,
    label,
    new_figure,
    set_time_axes,
)
from spark_prof.dashboards.section import Section, table
from spark_prof.dashboards.sections import token_section
from spark_prof.dashboards.sections.run_section import on_cpu
from spark_prof.dashboards.sections.token_section import at_batch
from spark_prof.dashboards.units import clean, counted, microseconds, share

_NO_TIME_US = 0.005  # parts that would be written as 0.00 us are left out
_NOT_DRAWN = 1e-4  # parts with less of the whole are not drawn
_NAME_WIDTH = 24  # characters of the name of a bar, on a phone too
_NAMES = {
    "floor": "lower bound",
    "nodes": "graph nodes",
    "components": "other components",
    "drafter": "the drafter",
    "small": "small kernels",
    "conversion": "conversions",
    "collective": "collectives",
    "launch_gaps": "launch gaps",
    **token_section.BEYOND,
}
_MEANINGS = {
    "floor": "What has to be moved at the memory's speed, or calculated at the peak.",
    "nodes": "What so many nodes of a CUDA graph cost that do nothing.",
    "components": "Components with less than 1 % each.",
    "drafter": "What makes the drafts; none of it is in a component above.",
    "small": f"Kernels under {SMALL_US:g} us: launching them takes as long as their work.",
    "conversion": "Kernels that only change a format.",
    "collective": "Kernels that exchange data between GPUs, waits for other ranks included.",
    "copies": "Copies and memsets.",
    "rest": "What no part accounts for; below zero what lower bounds of kernels that overlap count "
    "twice.",
    "launch_gaps": "Nothing runs between the first and the last kernel of a step.",
    "host": "Nothing runs before the first kernel of a step or after its last.",
    "uneven": "What the mean step takes beyond the median one.",
    "prompts": "What steps that read prompts beside it add.",
    "unprofiled": "What steps that were only timed take beyond profiled ones, of which all else "
    "is.",
}
"""What each kind of part is; components are what the vocabulary says of them."""
_FLOOR = (
    "Lower bound: reading the weights and the KV cache once. Small kernels: launching them takes "
    "as long as their work. Launch gaps and host: nothing runs, the GPU waits."
)
_WHOLE_RECORDING = "Idle: nothing runs."
_NO_FLOOR = "Launch gaps: nothing runs between a step's kernels. Host: nothing before and after."
_PATTERNS = {"small": "/", "conversion": "x", "rest": "-", "launch_gaps": ".", "host": "\\"}
"""What has no component is grey: its pattern tells it apart, for colour-blind readers too."""
_FLOOR_COLOR = "#3d7a8c"
_KIND_COLORS = {
    "floor": _FLOOR_COLOR,
    "collective": COLORS["collective"],
    "copies": COLORS["memcpy"],
}


def name_of(part: Part, of: str = "") -> str:
    """What a part of such a whole is called beside its bar."""
    if of == "recording" and part.kind == "launch_gaps":
        return "idle"
    return part.component if part.kind == "component" else _NAMES.get(part.kind, part.kind)


def waterfall(report: Report) -> Section:
    """Lists the parts of a token's time, or a step's, from the lower bound to what was measured."""
    waterfall = waterfall_of(report)
    parts = [part for part in waterfall.parts if abs(part.us) >= _NO_TIME_US]
    whole = Part("measured", waterfall.us)
    columns = (
        cells.Text("Part", lambda part: name_of(part, waterfall.of)),
        cells.Time(column_of(waterfall), "us"),
        cells.Share("Share", lambda part: part.us / waterfall.us),
        cells.Bar("", lambda part: 0.0 if part is whole else max(part.us / waterfall.us, 0.0)),
        cells.Prose(
            "What it is",
            lambda part: (
                _stands_on(report, waterfall)
                if part is whole
                else _meaning(part, waterfall, report)
            ),
        ),
    )
    rows = [*parts, whole] if parts and waterfall.us else []
    return table("waterfall", title(waterfall) + at_batch(report), rows, columns, _intro(waterfall))


def what_components_lack(waterfall: Waterfall) -> tuple[str, ...]:
    """Why the kernels of a component take more than its part; empty where they do not."""
    names = {part.component for part in waterfall.parts if part.kind == "component" and part.us > 0}
    kinds = ("drafter", "small", "conversion", "collective")
    apart = [_NAMES[part.kind] for part in waterfall.parts if part.kind in kinds and part.us > 0]
    beyond = " beyond the lower bound" if waterfall.floor_us else ""
    if not names or not (apart or beyond):
        return ()
    *most, last = apart or [""]
    listed = f"{', '.join(most)} and {last}" if most else last
    without = f" without {listed}" if apart else ""
    return (f"Components count{beyond}{',' if beyond and apart else ''}{without}.",)


def column_of(waterfall: Waterfall) -> str:
    """The title of the column with the times of the parts."""
    return "In all" if waterfall.of in ("run", "recording") else f"A {waterfall.of}"


def floor_waterfall(report: Report) -> Plot:
    """Draws the parts of `views.waterfall` from the top down, each where the one before ends.

    Every bar carries the part's kind and component as customdata.
    """
    waterfall = waterfall_of(report)
    parts = [part for part in waterfall.parts if abs(part.us) > _NOT_DRAWN * waterfall.us]
    texts = [f"{microseconds(part.us)}, {share(part.us / waterfall.us)}" for part in parts]
    colors = [_KIND_COLORS.get(p.kind) or COLORS.get(p.component, NEUTRAL) for p in parts]
    begins = [sum(part.us for part in parts[:place]) for place in range(len(parts))]
    times = [*(part.us for part in parts), waterfall.us]
    wholes = {"token": "an output token", "run": "the run", "recording": "the recording"}
    whole = wholes.get(waterfall.of, f"a {_step(report, waterfall)}")
    title = f"What {whole} takes{', from its lower bound on' if waterfall.floor_us else ''}"
    figure = new_figure(title, 90 + 28 * max(len(times), 2), margin={"r": 112})
    add_bars(
        figure,
        [*(label(name_of(part, waterfall.of), _NAME_WIDTH) for part in parts), "measured"],
        times,
        [*colors, NEUTRAL],
        base=[*begins, 0.0],
        customdata=[*((part.kind, clean(part.component)) for part in parts), ("measured", "")],
        text=[*texts, microseconds(waterfall.us)],
    )
    patterns = [*(_PATTERNS.get(part.kind, "") for part in parts), ""]
    look = {"shape": patterns, "fgcolor": TEXT, "fillmode": "replace", "size": 6}
    figure.update_traces(marker={"pattern": look})
    if waterfall.floor_us is not None:
        figure.add_vline(
            x=waterfall.floor_us, line={"color": _FLOOR_COLOR, "width": 1, "dash": "dot"}
        )
    # Where much runs at the same time, parts reach beyond the whole before the rest takes it back.
    set_time_axes(figure, max(1e-9, *map(sum, zip([*begins, 0.0], times, strict=True))))
    figure.update_yaxes(linecolor=LINES)
    return figure


def explained(section: Section, waterfall: Waterfall) -> tuple[str, ...]:
    """What to know before the bars can be read: the section's sentences, and what parts are."""
    if waterfall.of == "recording":
        return (*section.intro, _WHOLE_RECORDING)
    return (*section.intro, _NO_FLOOR if waterfall.floor_us is None else _FLOOR)


def speed_and_distance(report: Report) -> str:
    """Says how fast the run is, and how far from possible."""
    waterfall = waterfall_of(report)
    return " ".join(filter(None, (_speed(report, waterfall), _distance(report, waterfall))))


def title(waterfall: Waterfall) -> str:
    """What the table of the parts is called."""
    if waterfall.floor_us is None:
        one = "the" if waterfall.of in ("run", "recording") else "a"
        return f"What the time of {one} {waterfall.of} consists of"
    return f"From the lower bound to the time of a {waterfall.of}"


def _stands_on(report: Report, waterfall: Waterfall) -> str:
    if waterfall.of == "run":
        return "The sum of all kernels."
    if waterfall.of == "recording":
        return f"From the first {'operator' if on_cpu(report) else 'kernel'} to the last."
    if waterfall.of == "token":
        return "Time over tokens."
    return f"The median of {counted(waterfall.account.steps, _step(report, waterfall))}."


def _step(report: Report, waterfall: Waterfall) -> str:
    if waterfall.account.phase == "unknown":
        return "training step" if report.run.training else "step"
    return f"{waterfall.account.phase} step"


def _meaning(part: Part, waterfall: Waterfall, report: Report) -> str:
    text = _MEANINGS.get(part.kind, "")
    if waterfall.of == "recording" and part.kind in ("launch_gaps", "host"):
        text = "Nothing runs."
    unit = "operator" if on_cpu(report) else "kernel"
    if part.kind == "component" and waterfall.floor_us is not None:
        text = f"What its {unit}s take beyond their lower bound."
    if not part.calls:
        return text
    return f"{counted(max(round(part.calls), 1), unit)}. {text}".strip()


def _intro(waterfall: Waterfall) -> tuple[str, ...]:
    if waterfall.floor_us is None:
        return (f"There is no lower bound: {waterfall.no_floor}",) if waterfall.no_floor else ()
    return (
        "The parts add up to what was measured; what runs at the same time shares it. Each kernel "
        "is in one of them: up to its lower bound in the first, beyond it in its own. "
        f"What they need is known for {share(waterfall.known)} of "
        "the kernel time; other kernels have no lower bound.",
    )


def _speed(report: Report, waterfall: Waterfall) -> str:
    where = " on this processor" if on_cpu(report) else ""
    token = token_section.sentence(report, where)
    if waterfall.of == "token" and waterfall.us:
        headline = report.steps.headline_and_screen
        if headline is None or headline.time == headline.screen:
            return token
        batch = at_batch(report).strip().capitalize()
        return f"{token} {batch} it takes {microseconds(waterfall.us)}."
    if waterfall.of == "run":
        return (
            f"Kernels take {microseconds(waterfall.us)} in all; nothing tells the time of a token."
        )
    if waterfall.of == "recording":
        return f"The recording lasts {microseconds(waterfall.us)}{where}; nothing tells its steps."
    took = f"A {_step(report, waterfall)} takes {microseconds(waterfall.us)}{where}"
    if report.run.training:
        return f"{took}, the median of {counted(waterfall.account.steps, 'step')}."
    return f"{token} {took}." if token else f"{took}; nothing tells the time of a token."


def _distance(report: Report, waterfall: Waterfall) -> str:
    if waterfall.floor_us is None:
        why = "" if waterfall.of == "recording" or report.run.training else waterfall.no_floor
        return f"How far that is from possible is not known. {why}".strip()
    if not waterfall.us:
        return ""
    limit = "the memory allows" if waterfall.account.phase == "decode" else "the GPU allows"
    nodes = next((part for part in waterfall.parts if part.kind == "nodes"), None)
    text = (
        f"At best {limit} {microseconds(waterfall.floor_us)}: "
        f"{share(waterfall.floor_us / waterfall.us)} of the time is that bound"
    )
    if nodes is None:
        return f"{text}."
    with_nodes = waterfall.floor_us + nodes.us
    return (
        f"{text}, {share(with_nodes / waterfall.us)} with the {microseconds(nodes.us)} that "
        f"{counted(round(nodes.calls), 'node')} of a CUDA graph cost at least."
    )
