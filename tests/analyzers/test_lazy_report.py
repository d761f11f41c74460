"""A report computes the topics that are read, and no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path

import pytest

from spark_prof.analyzers.model import LazyReport, Report
from spark_prof.analyzers.recorded_report import RecordedReport
from spark_prof.analyzers.summary import summarize, summary_of
from spark_prof.dashboards.outline import outline
from spark_prof.dashboards.render import Layout, render_report
from spark_prof.dashboards.render.limits import bounded
from spark_prof.dashboards.render.terminal import draw
from spark_prof.dashboards.report_verdict import verdict_of
from spark_prof.dashboards.section import DocumentBounds, group_of
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle
from tests.rows import each_row

DATA = Path(__file__).parents[1] / "data"
EAGER = DATA / "h100-gpt-oss-20b-mxfp4-eager"
SEVERAL_BATCHES = DATA / "compare-h100" / "gpt-graph"
TOPICS = {
    name for name, value in vars(RecordedReport).items() if isinstance(value, cached_property)
}
ALWAYS = {"run", "_run", "steps"}
"""What the title needs, and which batch size a screen is of."""

ROOFLINE = {"roofline", "gpu", "counters", "accounts", "typical", "conversions", "kernels"}
"""A roofline is checked against the waterfall, which has all these."""


@contextmanager
def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The topics that are computed meanwhile."""
    names: set[str] = set()
    with monkeypatch.context() as patch:
        for name in TOPICS:
            topic = vars(RecordedReport)[name]

            def counted(report: RecordedReport, name: str = name, topic: object = topic) -> object:
                names.add(name)
                assert isinstance(topic, cached_property)
                return topic.func(report)

            counting = cached_property(counted)
            counting.__set_name__(RecordedReport, name)
            patch.setattr(RecordedReport, name, counting)
        yield names


def test_every_topic_is_computed_somewhere() -> None:
    plain = {"findings", "answers", "invariants"}  # a checked report has them
    assert {topic.name for topic in fields(Report)} - plain <= TOPICS


@each_row(
    ("section", "topics"),
    [
        ("conversions", {"conversions", "kernels"}),
        ("ranks", {"ranks", "_collectives"}),
        ("clients", {"clients", "overhead", "wall_us"}),
        ("modules", {"modules", *ROOFLINE}),  # which tells the format of packed weights
        ("kernels", {"kernels", "accounts"}),
        ("copies", {"copies", "accounts"}),
        ("books", {"accounts", "wall_us"}),
        ("audit", {"audit", "kernels"}),
        ("shapes", {"shapes", "counters"}),
        ("coverage", {"coverage", "kernels", "accounts", "gpu"}),
        ("roofline", ROOFLINE),
    ],
)
def test_a_section_computes_its_topic_alone(
    section: str, topics: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of ranks and clients this recording has none: the whole report is drawn to say so.
    with computed(monkeypatch) as names:
        report = summary_of(Bundle(EAGER)).report
        document = outline(report, only=(section,))
    shown = {group_of(part) for part in document.sections}
    if section in ("ranks", "clients"):
        assert section not in shown
        assert names >= topics
        return
    assert shown == {section}
    assert names <= topics | ALWAYS, names - topics - ALWAYS


def test_json_of_a_section_computes_its_topic_and_what_the_verdict_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = json.loads(render_report(summary_of(Bundle(EAGER)).report, Layout("json")))
    with computed(monkeypatch) as of_verdict:
        verdict_of(summary_of(Bundle(EAGER)).report)
    assert not of_verdict & {"memory", "prefill", "clients"}
    for section, topics in (("memory", {"memory"}), ("time", {"wall_us", "ahead_us"})):
        layout = Layout("json", bounds=DocumentBounds(sections=(section,)))
        with computed(monkeypatch) as names:
            drawn = json.loads(render_report(summary_of(Bundle(EAGER)).report, layout))
        assert names == of_verdict | topics
        assert drawn.keys() == {"schema", "verdict", section, "left_out"}
        assert all(drawn[key] == whole[key] for key in drawn if key != "left_out")


@pytest.mark.slow
def test_a_section_alone_is_what_the_whole_report_has() -> None:
    for path in (EAGER, SEVERAL_BATCHES):
        whole, report = outline(summarize(Bundle(path))), summary_of(Bundle(path)).report
        for name in reversed(list(dict.fromkeys(map(group_of, whole.sections)))):
            bounds = DocumentBounds(sections=(name,))
            alone = outline(report, only=(name,))
            drawn = (draw(bounded(document, bounds)) for document in (alone, whole))
            assert len(set(drawn)) == 1, name


def test_a_section_that_is_not_there_is_refused_with_those_that_are() -> None:
    report = summary_of(Bundle(EAGER)).report
    whole = ", ".join(dict.fromkeys(map(group_of, outline(report).sections)))
    with pytest.raises(CommandError, match=f"no section ranks; there are {whole}"):
        render_report(report, Layout(bounds=DocumentBounds(sections=("ranks",))))


def test_replacing_makes_a_whole_report_that_needs_no_bundle() -> None:
    report = summary_of(Bundle(EAGER)).report
    changed = replace(report, notes=("note",))
    assert type(changed) is Report
    assert vars(changed).keys() == {topic.name for topic in fields(Report)}
    assert changed == replace(summarize(Bundle(EAGER)), notes=("note",))


def test_a_lazy_report_takes_over_what_it_does_not_change() -> None:
    report = summarize(Bundle(EAGER))
    lazy = LazyReport(report, roofline=None)
    assert lazy.roofline is None
    assert lazy.kernels is report.kernels
    assert lazy.failed("") == report.failed("")
    assert "clients" not in vars(lazy)
