"""What reports say about clients: beside a recording, and alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spark_prof.analyzers.clients.client_rows import ClientRow, Comparison
from spark_prof.analyzers.model import Report
from spark_prof.dashboards.sections.client_section import agreement
from spark_prof.traces.benchmarks.load_test import Latency

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
