"""Which code of the host the GPU waits for, as a flame graph and by stage and function."""

from __future__ import annotations

from spark_prof.dashboards.sections import host_section
from spark_prof.explorer import links, widgets
from spark_prof.explorer.state import Sources


def show(sources: Sources) -> None:
    prepared = sources.prepared
    report = prepared.report
    if report.host is None:
        widgets.lines(
            "No stacks were sampled. spark-prof record --host samples those of the engine's "
            "processes from outside, with py-spy."
        )
        return
    links.finding_cards(links.findings_for(prepared, "host"), "host")
    text, *tables = host_section.sections(report)
    widgets.section(text)
    if report.host.flame:
        widgets.lines("Click a function to see what it calls; click the top to come back.")
        widgets.figure(host_section.flame_graph(report), "host-flame")
    for drawn in tables:
        widgets.section(drawn)
