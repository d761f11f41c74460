"""What reports say about clients: beside a recording, and alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from spark_prof.analyzers.clients.client_rows import ClientRow, Comparison
from spark_prof.analyzers.model import Report
from spark_prof.dashboards.client_report import render_clients
from spark_prof.dashboards.render import RENDERERS
from spark_prof.dashboards.sections.client_section import agreement, runs
from spark_prof.traces.benchmarks.load_test import Latency
from spark_prof.traces.benchmarks.read import read_benchmark
from tests.rows import each_row

from .sample import SAMPLES

DATA = Path(__file__).parents[1] / "data" / "benchmarks"


def row(**more: object) -> ClientRow:
    usual: dict[str, object] = {
        "tool": "vllm bench serve", "model": "m", "label": "", "concurrency": 2,
        "mean_concurrency": None, "request_rate": None, "duration_s": 4.0, "completed": 8,
        "failed": 0, "output_throughput": 94.5, "ttft": Latency(80_000), "tpot": Latency(11_000),
        "itl": Latency(), "e2e": Latency(), "tokens_per_chunk": None, "acceptance_length": None,
        "sentences": ("They agree.",),
    }  # fmt: skip
    return ClientRow(**(usual | more))  # type: ignore[arg-type]


COMPARED = row(
    comparisons=(Comparison("output_token", "mean", 11_000.0, 10_000.0),), verdict="agrees"
)


def report(*rows: ClientRow) -> Report:
    return replace(SAMPLES["mixture_of_experts"], clients=rows)


def test_both_sides_and_how_far_they_are_apart() -> None:
    section = agreement(report(COMPARED))
    assert section.rows == (
        (
            "vllm bench serve, 2 at a time",
            "TPOT",
            "11.00 ms",
            "10.00 ms",
            "+10.0 %",
            "1.00 ms",
            "agrees",
        ),
    )
    assert section.intro[0] == "vllm bench serve, 2 at a time: They agree."


def test_what_cannot_be_compared_is_still_said() -> None:
    section = agreement(report(row(sentences=("Nothing to compare.",))))
    assert section.rows[0][-1] == "not compared"
    assert section.intro == ("vllm bench serve, 2 at a time: Nothing to compare.",)


def test_many_runs_share_their_sentences() -> None:
    alike = [row(label=f"{n}", sentences=("Nothing to compare.",)) for n in range(9)]
    section = agreement(report(*alike))
    assert section.intro == ("Nothing to compare.",)
    assert len(section.rows) == 9


def test_a_derived_figure_is_called_derived() -> None:
    section = runs([row(tpot=Latency(1.0, derived="1000 / speed"))])
    assert "Derived, 1000 / speed: TPOT." in section.intro


@each_row("kind", RENDERERS)
@each_row("name", ["vllm-serve-detailed.json", "llama-benchy.md", "vllm-log.txt"])
def test_results_alone(kind: str, name: str) -> None:
    drawn = render_clients([read_benchmark(DATA / name)], kind)
    assert name in drawn
    if kind == "json":
        document = json.loads(drawn)
        assert document["schema"] == 1
        assert document["clients"]
    else:
        assert "What the clients saw" in drawn
