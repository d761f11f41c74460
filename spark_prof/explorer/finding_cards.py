"""Draws findings: what each would bring, what it says, and a way to what it stands on."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from spark_prof.analyzers.model import Finding
from spark_prof.dashboards.formats import counted, microseconds
from spark_prof.dashboards.sections.run_section import findings
from spark_prof.datasets.prepared import Prepared
from spark_prof.explorer import links, places, widgets

_MOST = 10


def follow_cards(found: Sequence[Finding], shown: Prepared) -> None:
    """Goes where the button of a finding leads that was pressed, before anything is drawn."""
    for number, finding in enumerate(found[:_MOST]):
        if st.session_state.get(f"show-{number}"):
            place = places.place_of_finding(finding, shown)
            links.go(place.path, **place.values)


def finding_cards(found: Sequence[Finding], here: str = "") -> None:
    """Draws findings in their order, and all of them as a table; see `follow_cards`.

    Args:
        found: the findings.
        here: path of the page that draws them, to which no link leads.
    """
    for number, finding in enumerate(found[:_MOST]):
        with st.container(border=True, key=f"finding-{number}"):
            _card(finding, number, here)
    if found:
        with st.expander(f"{counted(len(found), 'finding')} as a table"):
            widgets.section(findings(found))


def _card(finding: Finding, number: int, here: str) -> None:
    left, middle, right = st.columns([1.1, 6, 1.7], vertical_alignment="center")
    with left:
        if finding.ms_per_token is not None:
            st.subheader(widgets.plain(microseconds(1000 * finding.ms_per_token)), anchor=False)
            widgets.lines(["a token"])
        else:
            widgets.lines(["no figure"])
    with middle:
        widgets.lines([finding.text, finding.fix])
    with right:
        path = places.page_of(finding)
        if path != here:
            st.button(f"Show in {path.capitalize()}", key=f"show-{number}")
        if finding.evidence:
            with st.popover("What it stands on"):
                widgets.lines(finding.evidence)
