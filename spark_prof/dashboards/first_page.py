"""What a report says first, as HTML without scripts: it can be seen before anything else is there.

It says what the explorer's first page says, in the same words, up to the findings.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from spark_prof.analyzers.model import Finding, Report
from spark_prof.analyzers.views.waterfall import Waterfall, waterfall_of
from spark_prof.dashboards import about_run, about_waterfall
from spark_prof.dashboards.formats import clean, microseconds
from spark_prof.dashboards.waterfall_bars import Bar, bars_of, furthest, title_of

if TYPE_CHECKING:
    from spark_prof.traces.some_steps import Share

__all__ = ["FINDINGS", "NO_FINDINGS", "first_look", "first_page"]

FINDINGS = "The largest gain first: what each change could bring a token at most."
NO_FINDINGS = "None of the rules found anything worth changing."

_MOST_FINDINGS = 10
_FILLED = 80.0
"""Percent of the width that the longest bar takes; the rest is for its text."""


def first_look(share: Share) -> str:
    """Says of how many steps a first look is."""
    return (
        f"First look: {share.steps:,} of {share.of_steps:,} steps, spread over the recording. "
        "The others are being read; this page then shows them all."
    )


def first_page(report: Report, share: Share | None = None) -> str:
    """Draws the verdict, the waterfall and the findings; every string of the report is escaped.

    Args:
        report: the report.
        share: what it was made of, None for all steps.
    """
    found = waterfall_of(report)
    verdict, *others = about_waterfall.verdict(report)
    return "".join(
        (
            "<h1>Overview</h1>\n",
            _lines([first_look(share)] if share else []),
            f'<h2 class="verdict">{_text(verdict)}</h2>\n',
            _lines(others),
            _headline(report),
            _waterfall(report, found),
            _findings(report.findings),
        )
    )


def _text(text: str) -> str:
    return escape(clean(text))


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"<p>{_text(text)}</p>\n" for text in texts)


def _headline(report: Report) -> str:
    figures = "".join(
        f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>"
        for name, value in about_run.headline(report)
    )
    return f'<dl class="headline">{figures}</dl>\n' if figures else ""


def _waterfall(report: Report, found: Waterfall) -> str:
    section = about_waterfall.waterfall(report)
    if not section.rows:
        return ""
    bars = bars_of(found)
    scale = _FILLED / furthest(bars)
    return (
        f"<h2>{_text(section.title)}</h2>\n{_lines(about_waterfall.explained(section, found))}"
        f'<div class="bars" role="img" aria-label="{_text(title_of(found))}">\n'
        + "".join(_bar(bar, scale) for bar in bars)
        + "</div>\n"
    )


def _bar(bar: Bar, scale: float) -> str:
    begin, end = sorted((bar.begin_us, bar.begin_us + bar.us))
    left, right = max(begin * scale, 0.0), max(end * scale, 0.0)
    return (
        f'<div><span class="name">{_text(bar.name)}</span><span class="track">'
        f'<i style="left:{left:.3f}%;width:{right - left:.3f}%;background:{bar.color}"></i>'
        f'<span class="text" style="left:{right:.3f}%">{_text(bar.text)}</span></span></div>\n'
    )


def _findings(findings: tuple[Finding, ...]) -> str:
    cards = "".join(map(_card, findings[:_MOST_FINDINGS]))
    return f"<h2>What to do about it</h2>\n{_lines([FINDINGS if cards else NO_FINDINGS])}{cards}"


def _card(finding: Finding) -> str:
    gain = finding.ms_per_token
    figure = "no figure" if gain is None else f"{microseconds(1000 * gain)} a token"
    return (
        f'<div class="finding"><b>{_text(figure)}</b>'
        f"<div>{_lines([finding.text, finding.fix])}</div></div>\n"
    )
