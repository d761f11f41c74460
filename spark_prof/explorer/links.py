"""Ways from one page to a place on another; the source and rank that are looked at stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

import pandas as pd
import streamlit as st

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.ranking import PAGES
from spark_prof.dashboards.section import FROM_FILE, RECORDED_AS
from spark_prof.dashboards.sections.run_section import findings
from spark_prof.dashboards.units import counted, microseconds
from spark_prof.datasets.prepared import Prepared
from spark_prof.explorer import state, widgets

_MOST = 10


def findings_for(prepared: Prepared, page: str = "") -> Sequence[Finding]:
    """The findings whose evidence a page shows, or all; follows a pressed button of one."""
    findings = [f for f in prepared.report.findings if page in ("", page_of(f))]
    for number, finding in enumerate(findings[:_MOST]):
        if st.session_state.get(f"show-{number}"):
            path, values = place_of_finding(finding, prepared)
            go(path, **values)
    return findings


def finding_cards(cards: Sequence[Finding], here: str = "") -> None:
    """Draws findings in their order, and all of them as a table; see `findings_for`.

    Args:
        here: path of the page that draws them, to which no link leads.
    """
    if cards and here:
        st.subheader("What to do about it", anchor="findings")
    for number, finding in enumerate(cards[:_MOST]):
        with st.container(border=True, key=f"finding-{number}"):
            _card(finding, number, here)
    if cards:
        label = f"{counted(len(cards), 'finding')} as a table"
        widgets.folded("findings", label, lambda: widgets.section(findings(cards)))


def _card(finding: Finding, number: int, here: str) -> None:
    left, middle, right = st.columns([1.1, 6, 1.7], vertical_alignment="center")
    with left:
        if finding.ms_per_token is not None:
            widgets.lines("at most")
            st.subheader(widgets.plain(microseconds(1000 * finding.ms_per_token)), anchor=False)
            widgets.lines("a token")
        else:
            widgets.lines("no figure")
    with middle:
        widgets.lines(finding.text, finding.fix, *filter(None, (finding.measured,)))
        if finding.command:
            widgets.command(finding.command)
        if finding.recorded_as:
            widgets.lines(f"{RECORDED_AS}: {finding.recorded_as} ({FROM_FILE})")
    with right:
        path = page_of(finding)
        if path != here:
            st.button(f"Show in {path.capitalize()}", key=f"show-{number}")
        if finding.evidence:
            with st.popover("Evidence"):
                widgets.lines(*finding.evidence)


def chosen_points(figure: str) -> list[Any]:
    """The customdata of the points that are chosen in a figure; a point without has none."""
    customdata = [point.get("customdata") for point in _chosen(figure, "points")]
    return [data for data in customdata if data is not None]


def chosen_rows(table: str) -> list[int]:
    """The places of the rows that are chosen in a table."""
    return list(_chosen(table, "rows"))


def clicked(figure: str) -> Any:
    """The customdata of the point that was chosen just now; None if none was."""
    point = next(iter(chosen_points(figure)), None)
    key = f"clicked-{figure}"
    if point == st.session_state.get(key):
        return None
    st.session_state[key] = point
    return point


def _chosen(name: str, kind: str) -> list[Any]:
    event: Any = st.session_state.get(name)
    return event["selection"][kind] if event and event.get("selection") else []


PARTS: Mapping[str, str] = {
    "floor": "kernels",
    "component": "kernels",
    "components": "kernels",
    "drafter": "steps",
    "small": "kernels",
    "conversion": "conversions",
    "collective": "ranks",
    "copies": "timeline",
    "launch_gaps": "timeline",
    "host": "timeline",
    "rest": "steps",
    "measured": "steps",
}
"""The page of each kind of part of the waterfall."""

_COMPONENTS: Mapping[str, str] = {
    "sampler-cost": "sampler", "lm-head-widened": "lm_head", "lm-head-not-quantized": "lm_head",
}  # fmt: skip


Place = tuple[str, dict[str, str | int]]  # a place on a page: its path, and what its address says


def page_of(finding: Finding) -> str:
    """Path of the page that shows what a finding stands on."""
    return PAGES.get(finding.id, "overview")


def place_of_finding(finding: Finding, prepared: Prepared) -> Place:
    """The page of the finding, at the kernel or step that it speaks of where it names one."""
    path = page_of(finding)
    values: dict[str, str | int] = {}
    if path == "timeline":
        values = _step(prepared.steps)
    elif path == "kernels":
        row = _first_kernel(finding, prepared.report.kernels)
        if row is not None and row.name in prepared.kernels.names:
            values["kernel"] = prepared.kernels.names.index(row.name)
            values["component"] = row.component
        elif finding.id in _COMPONENTS:
            values["component"] = _COMPONENTS[finding.id]
    return path, values


def place_of_part(kind: str, component: str, prepared: Prepared) -> Place:
    """Where the kernels or gaps of a part of the waterfall are."""
    path = PARTS.get(kind, "kernels")
    if path == "timeline":
        return path, _step(prepared.steps)
    return path, {"component": component} if component else {}


def ranked_step(steps: pd.DataFrame, which: Literal["median", "slowest"]) -> int | None:
    """The decode step of median length or the slowest; of any phase where none decodes."""
    if steps.empty or "step_us" not in steps:
        return None
    candidates = steps[(steps["phase"].astype(str) == "decode").to_numpy()]
    candidates = candidates if len(candidates) else steps
    order = candidates["step_us"].to_numpy().argsort(kind="stable")
    return int(candidates["step"].iloc[order[len(order) // 2] if which == "median" else order[-1]])


def _step(steps: pd.DataFrame) -> dict[str, str | int]:
    step = ranked_step(steps, "median")
    return {} if step is None else {"step": step}


def _first_kernel(finding: Finding, kernels: Sequence[KernelRow]) -> KernelRow | None:
    """The kernel that a finding names first, of its component before others."""
    for named in finding.kernels:
        rows = [row for row in kernels if row.name == named.name]
        if rows:
            return max(rows, key=lambda row: row.component == named.component)
    return None


_SHARED_PARAMETERS = ("source", "rank", "other")


def link(path: str, label: str, **values: str | int) -> None:
    """Draws a link."""
    st.page_link(_page(path), label=widgets.plain(label), query_params=_query(values))


def go(path: str, **values: str | int) -> NoReturn:
    """Leaves this page for a place on another."""
    st.switch_page(_page(path), query_params=_query(values))


def _page(path: str) -> st.Page:
    # Streamlit finds a page by its path: what a page of the same path would run does not matter.
    return st.Page(lambda: None, title=path, url_path=path)


def _query(values: dict[str, str | int]) -> dict[str, str]:
    parameters = {
        name: value for name, value in state.shared().items() if name in _SHARED_PARAMETERS
    }
    return parameters | {name: str(value) for name, value in values.items()}
