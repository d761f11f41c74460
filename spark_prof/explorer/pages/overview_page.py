"""The first page: how fast a token is, how far from possible, and what to do about it first."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from spark_prof.analyzers.views.waterfall import waterfall_of
from spark_prof.dashboards.report_verdict import verdict_of
from spark_prof.dashboards.sections import kernel_section, run_section, waterfall_section
from spark_prof.dashboards.sections.kernel_section import evidence_bars
from spark_prof.dashboards.sections.waterfall_section import floor_waterfall
from spark_prof.datasets.prepared import Prepared
from spark_prof.explorer import links, widgets
from spark_prof.explorer.state import Sources

_TIME = "time-of-a-token"
_FINDINGS = (
    "The largest gain first. Each is what a change could bring a token at most; they are not to be "
    "added up."
)
_NO_FINDINGS = "None of the rules found anything worth changing."


def show(sources: Sources) -> None:
    prepared = sources.prepared
    report = prepared.report
    _follow(prepared)
    st.subheader(widgets.plain(verdict_of(report)), anchor="verdict")
    widgets.lines(waterfall_section.speed_and_distance(report), *run_section.caveats(report))
    _waterfall(prepared)
    _findings(prepared)
    _answers(prepared)
    _evidence(prepared)
    if report.notes:
        st.subheader(run_section.notes(report).title, anchor="notes")
        widgets.lines(*report.notes)
    widgets.section(run_section.recording(report))


def _follow(prepared: Prepared) -> None:
    """Goes where the last click leads, before anything is drawn."""
    for kind, component in links.chosen_points(_TIME):
        path, values = links.place_of_part(str(kind), str(component), prepared)
        links.go(path, **values)
    links.findings_for(prepared)


def _waterfall(prepared: Prepared) -> None:
    section = waterfall_section.waterfall(prepared.report)
    if not section.rows:
        return
    widgets.figure(floor_waterfall(prepared.report), _TIME, selection=("points",))
    widgets.lines("Click a bar to see its kernels or steps.")
    intro = waterfall_section.explained(section, waterfall_of(prepared.report))
    parts = replace(section, id="waterfall-parts", intro=intro)
    label = "The same in numbers, and what each part is"
    widgets.folded("waterfall", label, lambda: widgets.section(parts))


def _findings(prepared: Prepared) -> None:
    findings = prepared.report.findings
    st.subheader("What to do about it", anchor="findings")
    if not findings:
        widgets.lines(_NO_FINDINGS)
        return
    widgets.lines(_FINDINGS)
    links.finding_cards(findings)


def _answers(prepared: Prepared) -> None:
    answers = prepared.report.answers
    if not answers:
        return
    st.subheader(run_section.answers(prepared.report).title, anchor="answers")
    for answer in answers:
        left, right = st.columns([2, 6])
        with left:
            widgets.lines(answer.question)
        with right:
            widgets.lines(answer.text, answer.evidence)


def _evidence(prepared: Prepared) -> None:
    section = kernel_section.coverage(prepared.report)
    if not section.rows:
        return
    st.subheader("Evidence of the figures", anchor="evidence")
    widgets.figure(evidence_bars(prepared.report), "evidence")
    widgets.folded("evidence", "The same in numbers", lambda: widgets.section(section))
