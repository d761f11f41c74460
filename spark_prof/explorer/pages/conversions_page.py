"""What changing formats costs: for which kernels, in which layers, and how often in vain."""

from __future__ import annotations

from spark_prof.dashboards.sections import conversion_section
from spark_prof.datasets.prepared import Prepared
from spark_prof.explorer import links, widgets
from spark_prof.explorer.state import Sources

_COST, _BY_LAYER = "conversions", "conversions-by-layer"


def show(sources: Sources) -> None:
    shown = sources.shown
    found = shown.report.conversions
    if not found.charged and not found.padding and not found.fused and not found.load_time:
        widgets.lines("No kernel of this recording changes a format.")
        return
    _follow(shown)
    about = links.findings_for(shown, "conversions")
    if found.charged:
        _cost(shown)
    links.finding_cards(about, "conversions")
    for drawn in (
        conversion_section.attributed(shown.report),
        conversion_section.repeated(shown.report),
        conversion_section.uncounted(shown.report),
    ):
        widgets.section(drawn)


def _follow(shown: Prepared) -> None:
    """Goes where the last click leads, before anything is drawn."""
    for place in map(int, links.chosen_points(_COST)):
        name = conversion_section.ranked(shown.report)[place].name if place >= 0 else ""
        if name in shown.kernels.names:
            links.go("kernels", kernel=shown.kernels.names.index(name))
    for layer in links.chosen_points(_BY_LAYER):
        links.go("layers", layer=int(layer))


def _cost(shown: Prepared) -> None:
    widgets.lines("The colour is that of the component. Click a bar for its kernel.")
    widgets.figure(conversion_section.most_expensive(shown.report), _COST, selection=("points",))
    if any(row.layer is not None for row in shown.report.conversions.layers):
        widgets.figure(conversion_section.by_layer(shown.report), _BY_LAYER, selection=("points",))
