"""What is said of the map of layers: which layers are outliers, and which kernel makes them so."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.views.layer_outliers import LayerComparison, OutlierCause, OutlierCell
from spark_prof.dashboards import cells
from spark_prof.dashboards.section import Section, table
from spark_prof.dashboards.units import (
    MISSING,
    clean,
    count,
    counted,
    difference,
    microseconds,
    share,
)
from spark_prof.vocabulary import BASIS_CLASSES

_MOST_ROWS = 50


def placed_by(report: Report) -> tuple[str, ...]:
    """Says how the owners of the kernel time are known, where some are not proven or derived."""
    coverage = report.coverage
    owner = (owners(report),) if coverage.guessed or coverage.unknown else ()
    return (*map(clean, report.failed("layers-")), *owner)


def owners(report: Report) -> str:
    """Says in one line how the owners of the kernel time are known."""
    coverage = report.coverage
    parts = (f"{name} {share(getattr(coverage, name))}" for name in BASIS_CLASSES)
    return f"Owner of the time: {', '.join(parts)}."


def outlier_sentence(outlier: OutlierCell, cause: OutlierCause | None, names: Sequence[str]) -> str:
    """Says of an outlier how far it is from its like, and which kernel makes the difference."""
    because = "" if cause is None else f": {why(cause, names)}"
    return (
        f"Layer {outlier.layer} {outlier.component}: {microseconds(outlier.us)} against "
        f"{microseconds(outlier.like.middle_us)} in {counted(_like(outlier), 'layer')} like it, "
        f"{_off(outlier)}{because}."
    )


def why(cause: OutlierCause | None, names: Sequence[str]) -> str:
    """Says which kernel makes the difference."""
    if cause is None:
        return MISSING
    name = clean(short_name(names[cause.name]))
    if cause.kind == "other" and cause.calls:
        return f"{name}, which those like it do not run, takes {microseconds(cause.us)} a step"
    if cause.kind == "other":
        return f"those like it run {name}, {microseconds(cause.like_us)} a step"
    measured, usual = f"takes {microseconds(cause.us)} a step", str(microseconds(cause.like_us))
    if cause.kind == "calls":
        measured, usual = f"is called {cause.calls:.3g} times a step", f"{cause.like_calls:.3g}"
    return f"{name} {measured}, {usual} in those like it"


def outlier_layers(
    comparison: LayerComparison, causes: Sequence[OutlierCause | None], names: Sequence[str]
) -> Section:
    """Lists the layers that differ from their like, and says what was compared."""
    columns = (
        cells.Count("Layer", lambda pair: pair[0].layer),
        cells.Text("Component", lambda pair: pair[0].component),
        cells.Time("Takes", lambda pair: pair[0].us),
        cells.Time("Like layers", lambda pair: pair[0].like.middle_us),
        cells.Formatted("Difference", lambda pair: _off(pair[0])),
        cells.Formatted("Of the scatter", lambda pair: f"{abs(pair[0].scale):.0f} x"),
        cells.Count("Layers like it", lambda pair: _like(pair[0])),
        cells.Prose("Kernel that makes the difference", lambda pair: why(pair[1], names)),
    )
    rows = zip(comparison.outliers[:_MOST_ROWS], causes, strict=False)
    title = "Layers that differ from those like them"
    return table("odd-layers", title, rows, columns, _intro(comparison))


def _like(outlier: OutlierCell) -> int:
    """How many other layers it is held against."""
    return len(outlier.like.layers) - (outlier.layer in outlier.like.layers)


def _off(outlier: OutlierCell) -> str:
    return difference(outlier.us, outlier.like.middle_us)


def _intro(comparison: LayerComparison) -> tuple[str, ...]:
    if not comparison.enough_steps:
        return (f"{counted(comparison.steps, 'step')}: too few to tell a slow layer from noise.",)
    if not comparison.tested:
        return ("No component has four layers that run the same kernels: nothing to compare.",)
    outliers = len(comparison.outliers)
    differ = {0: "None differs", 1: "1 differs"}.get(outliers, f"{count(outliers)} differ")
    lines = [
        f"{count(comparison.tested)} cells were held against layers that run the same kernels in "
        f"the same {counted(comparison.steps, 'step')}. {differ} by at least 3 % and more than "
        f"scatter and noise explain, which takes {comparison.threshold:.1f} times the scatter "
        "here."
    ]
    if comparison.untested:
        lines.append(
            f"{counted(comparison.untested, 'cell')} have too few layers like them to tell."
        )
    if outliers > _MOST_ROWS:
        lines.append(f"The {_MOST_ROWS} largest differences are listed.")
    return tuple(lines)
