"""What changing formats costs: for which kernels, in which layers, and how often in vain."""

from __future__ import annotations

from spark_prof.dashboards.sections import conversion_section
from spark_prof.datasets.prepared import Prepared
from spark_prof.explorer import links, widgets
from spark_prof.explorer.state import Sources

_COST, _BY_LAYER = "conversions", "conversions-by-layer"


def show(sources: Sources) -> None:
    prepared = sources.prepared
    conversions = prepared.report.conversions
    if (
        not conversions.attributed
        and not conversions.padding
        and not conversions.fused
        and not conversions.load_time
    ):
        widgets.lines("No kernel of this recording changes a format.")
        return
    _follow(prepared)
    about = links.findings_for(prepared, "conversions")
    if conversions.attributed:
        _cost(prepared)
    links.finding_cards(about, "conversions")
    for drawn in (
        conversion_section.attributed(prepared.report),
        conversion_section.repeated(prepared.report),
        conversion_section.uncounted(prepared.report),
    ):
        widgets.section(drawn)


def _follow(prepared: Prepared) -> None:
    """Goes where the last click leads, before anything is drawn."""
    for place in map(int, links.chosen_points(_COST)):
        name = conversion_section.ranked(prepared.report)[place].name if place >= 0 else ""
        if name in prepared.kernels.names:
            links.go("kernels", kernel=prepared.kernels.names.index(name))
    for layer in links.chosen_points(_BY_LAYER):
        links.go("layers", layer=int(layer))


def _cost(prepared: Prepared) -> None:
    widgets.lines("The colour is that of the component. Click a bar for its kernel.")
    widgets.figure(conversion_section.most_expensive(prepared.report), _COST, selection=("points",))
    if any(row.layer is not None for row in prepared.report.conversions.layers):
        widgets.figure(
            conversion_section.by_layer(prepared.report), _BY_LAYER, selection=("points",)
        )
