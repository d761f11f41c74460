"""Which kernels were chosen for which layers, who says so, and what would choose others."""

from __future__ import annotations

from spark_prof.dashboards.sections import audit_section, kernel_section
from spark_prof.explorer import links, widgets
from spark_prof.explorer.state import Sources

_ABOUT_ENGINE = (
    audit_section.settings,
    audit_section.batches,
    audit_section.engine,
    audit_section.log,
    audit_section.notes,
)


def show(sources: Sources) -> None:
    prepared = sources.prepared
    report = prepared.report
    audit = report.audit
    about = links.findings_for(prepared, "fallbacks")
    links.finding_cards(about, "fallbacks")
    if not about:
        widgets.lines("No rule about fallbacks found anything worth changing.")
    if audit is None:
        widgets.lines(
            "Nothing tells what the checkpoint asks for: a recording of spark-prof or a log of "
            "the engine does (spark-prof report --log)."
        )
    else:
        layers = audit_section.layers(audit)
        widgets.section(layers)
        if not layers.rows:
            widgets.lines("No layer of this checkpoint is quantized: nothing can fall back.")
        widgets.lines(*audit.conflicts)
        for draw in _ABOUT_ENGINE:
            widgets.section(draw(audit))
    widgets.section(kernel_section.machine_code(report))
    widgets.section(kernel_section.modules(report))
