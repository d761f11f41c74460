"""What `spark-prof record` shows at the bottom of its terminal while it records."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len, set_cell_size

from spark_prof.dashboards.cells import called
from spark_prof.dashboards.units import (
    clean,
    count,
    counted,
    figure,
    microseconds,
    rate,
    share,
    shorten,
)  # fmt: skip
from spark_prof.profiler.live_figures import MOST_KERNELS, LiveFigures

ROWS = MOST_KERNELS + 4
_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_BAR = 20


def live_lines(
    state: str, figures: LiveFigures | None, width: int, *, color: bool = True
) -> list[str]:
    """The rows of the screen, none wider than `width`.

    live_lines("recording step 58 of 500", figures, 100)
    """
    rows = [*_rows(state, figures, width), *[("", "")] * ROWS][:ROWS]
    return [
        f"{style if color and text else ''}{set_cell_size(text, width).rstrip()}"
        f"{_PLAIN if color and style and text else ''}"
        for style, text in rows
    ]


def _rows(state: str, figures: LiveFigures | None, width: int) -> Iterator[tuple[str, str]]:
    title = f"── spark-prof: {clean(state)} "
    yield _DIM, title + "─" * max(width - cell_len(title), 0)
    if figures is None or not figures.steps:
        yield "", "No decode steps in a row are written yet."
    else:
        yield _BOLD, _times(figures)
    if figures is None:
        return
    yield _DIM, _basis(figures)
    if not figures.kernels:
        return
    name_width = max(width - _BAR - 22, 16)
    newest = counted(figures.kernel_steps, "profiled step")
    title = shorten(f"Largest kernels of the newest {newest}", name_width).ljust(name_width)
    yield _DIM, f"{title} {'a step':>10} {'share':>7}"
    names = called(kernel.name for kernel in figures.kernels)
    for kernel in figures.kernels:
        name = shorten(names[kernel.name], name_width)
        time = microseconds(kernel.step_ns / 1e3)
        bar = "█" * max(round(_BAR * kernel.share), 1)
        space = " " * (name_width - cell_len(name))
        yield "", f"{name}{space} {time:>10} {share(kernel.share):>7}  {bar}"


def _times(figures: LiveFigures) -> str:
    # A step with drafts is no token: how many are accepted is not known here.
    unit = "step" if figures.drafts else "token"
    parts = [f"{microseconds(figures.step_ns / 1e3)} a {unit}"]
    if not figures.drafts:
        parts.append(f"{rate(figures.tokens_per_s)} tokens/s")
    whole = figures.batch == round(figures.batch)
    size = count(round(figures.batch)) if whole else figure(figures.batch, ".1f")
    return "   ".join([*parts, f"batch {size}"])


def _basis(figures: LiveFigures) -> str:
    text = ""
    if figures.steps:
        kind = "profiled" if figures.profiled else "not profiled"
        text = f"rank {figures.rank}, the last {counted(figures.steps, 'decode step')}, {kind}"
    if figures.profiled_over_timed is not None:
        ratio = figure(figures.profiled_over_timed, ".2f")
        return f"{text}; profiling overhead: {ratio} x the time of a step"
    return f"{text}; profiling overhead: not known yet" if text else ""
