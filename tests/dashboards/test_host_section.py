"""The host's section in every format, and its flame graph."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_prof.analyzers.summary import summary_of
from spark_prof.dashboards.outline import figures, outline
from spark_prof.dashboards.render import render_report
from spark_prof.dashboards.section import DocumentBounds, Layout
from spark_prof.dashboards.sections.host_section import flame_graph
from tests import host_stacks


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return host_stacks.bundle(tmp_path_factory.mktemp("host") / "b").path


def test_every_format_names_the_slow_function_with_its_share(bundle: Path) -> None:
    from spark_prof.traces.bundle import Bundle

    report = summary_of(Bundle(bundle)).report
    only = DocumentBounds(sections=("host",))
    for kind in ("text", "md", "html"):
        drawn = render_report(report, Layout(kind, bounds=only), whole=True)
        for words in ("slow_policy", "75.0 %", "choosing the batch", "The GPU waits for 4.00 ms",
                      "throttled in 25.0 %", "OMP_NUM_THREADS is 4", "pt_main_thread",
                      "2.50 processors"):  # fmt: skip
            assert words in drawn, (kind, words)
    told = json.loads(render_report(report, Layout("json"), whole=True))["host"]
    assert told["stages"][0]["share"] == 0.75
    assert told["limits"]["quota"] == 2.5
    assert told["functions"][0]["low"] < told["functions"][0]["high"]


def test_few_samples_say_what_to_do(tmp_path: Path) -> None:
    report = summary_of(host_stacks.bundle(tmp_path / "b", looks=60)).report
    sections = {section.id: section for section in outline(report, only=("host",)).sections}
    assert set(sections) == {"host"}
    assert any("too few" in str(row[0]) for row in sections["host"].rows)


def test_the_flame_graph_is_a_tree_that_adds_up(bundle: Path) -> None:
    from spark_prof.traces.bundle import Bundle

    report = summary_of(Bundle(bundle)).report
    (tree,) = flame_graph(report).data
    values = dict(zip(tree.ids, tree.values, strict=True))
    for parent in set(tree.parents) - {""}:
        beneath = [v for v, p in zip(tree.values, tree.parents, strict=True) if p == parent]
        assert sum(beneath) <= values[parent]
    assert "host-functions" in figures(report, only=("host",))
    assert len(set(tree.marker.colors)) > 1
