"""The pages that show a report, drawn for real recordings and for reports of every kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_prof.analyzers.summary import summarize
from spark_prof.datasets.opened import opened
from spark_prof.datasets.prepared import prepare
from spark_prof.traces.benchmarks.read import read_benchmark
from tests import host_stacks
from tests.analyzers.ranks.bundles import bundle, parallel
from tests.analyzers.ranks.play import Play
from tests.dashboards.sample import SAMPLES
from tests.explorer.framed import DATA, of_recording, texts
from tests.rows import each_row

CODE = "code-h100/qwen3-30b-a3b-nvfp4"


@pytest.mark.slow
@each_row("sample", ["hostile", "filled_with_hostile_text", "nothing", "sums", "cpu"])
@each_row("page", ["overview", "conversions", "fallbacks", "ranks", "host"])
def test_a_report_of_any_kind_is_drawn(page: str, sample: str) -> None:
    known = prepare(str(DATA / CODE))
    of_recording(page, replace(known, ranks=(0, 1), report=SAMPLES[sample]))


def test_the_overview_says_what_the_report_says() -> None:
    shown = prepare(str(DATA / CODE))
    said = texts(of_recording("overview", shown))
    first = shown.report.findings[0]
    for text in (first.text, first.fix, *(answer.text for answer in shown.report.answers)):
        assert text in said
    assert "4.54 ms" in said


def test_the_largest_finding_comes_first() -> None:
    shown = prepare(str(DATA / CODE))
    said = texts(of_recording("overview", shown))
    places = [said.rindex(finding.text) for finding in shown.report.findings[:5]]
    assert places == sorted(places)


def test_the_host_page_has_its_flame_graph_only_with_stacks(tmp_path: Path) -> None:
    known = prepare(str(host_stacks.bundle(tmp_path / "b").path))
    app = of_recording("host", known)
    assert "slow_policy" in texts(app)
    assert len(app.get("plotly_chart")) == 1
    without = prepare(str(host_stacks.recorded().assemble(tmp_path / "without").path))
    assert "record --host" in texts(of_recording("host", without))


def test_one_rank_is_told_what_to_do() -> None:
    assert "one rank" in texts(of_recording("ranks", prepare(str(DATA / CODE))))


def test_eight_ranks_are_compared(tmp_path: Path) -> None:
    hosts = {rank: {"host": "a", "boot": "1"} for rank in range(8)}
    play = Play(ranks=8, slow=dict.fromkeys(range(40), 3))
    made = bundle(tmp_path / "b", play, hosts, parallel=parallel(tensor=8))
    shown = prepare(str(made.path))
    said = texts(of_recording("ranks", shown))
    assert "Within decode steps rank 3 comes to the collectives" in said
    assert "Click a bar to look at that rank." in said
    assert shown.ranks == tuple(range(8))
    first, *others = shown.report.ranks
    report = replace(shown.report, ranks=(replace(first, steps=0), *others))
    said = texts(of_recording("ranks", replace(shown, report=report)))
    assert "Click a bar to look at that rank." in said


def test_steps_without_times_are_not_drawn() -> None:
    known = prepare(str(DATA / CODE))
    shown = replace(known, report=SAMPLES["sums"], timed=False)
    assert "nothing tells when a step ran" in texts(of_recording("steps", shown))


@pytest.mark.slow
def test_a_load_generators_result_stands_beside_the_steps() -> None:
    bench = DATA / "benchmarks"
    shown = prepare(str(bench / "vllm-serve-bundle"))
    result = bench / "vllm-serve-detailed.json"
    said = texts(of_recording("steps", shown, result))
    with opened(shown.source) as made:
        report = summarize(made, results=[read_benchmark(result)])
    assert report.clients[0].verdict == "agrees"
    assert report.clients[0].sentences[0] in said
    assert "No load generator's result" in texts(of_recording("steps", shown))
