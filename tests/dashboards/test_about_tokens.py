"""The sections and the JSON about the token ledger, and about what clients saw beside it."""

from __future__ import annotations

import json
from dataclasses import replace

from spark_prof.analyzers.clients.client_rows import ClientRow, Comparison
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_time import HOST, LAUNCH_GAPS, Ledger, LedgerRow, StepSpread
from spark_prof.dashboards.render import json_report
from spark_prof.dashboards.section import Section
from spark_prof.dashboards.sections import client_section, token_section
from spark_prof.traces.benchmarks.load_test import Latency

from .sample import SAMPLES

FULL = SAMPLES["mixture_of_experts"]


def spread(us: float) -> StepSpread:
    return StepSpread(us, us, 0.9 * us, 1.1 * us, 1.5 * us)


def part(name: str, us: float, step: float, tokens: float | None, *, twice: float = 0.0,
         layers: int = 0) -> LedgerRow:  # fmt: skip
    """A row; `twice` is how long it shared the GPU with another kernel."""
    return LedgerRow(
        name=name, summed_us=us + twice / 2, charged_us=us, alone_us=us - twice / 2,
        share=us / step, ms_per_token=None if tokens is None else us / tokens / 1e3,
        layers=layers, per_layer_us=us / layers if layers else None, spread=spread(us),
    )  # fmt: skip


def ledger(
    phase: str = "decode", scale: float = 1.0, tokens: float | None = 1.0, *,
    batch_size: int | None = None, twice: float = 40.0, steps: int = 30,
) -> Ledger:  # fmt: skip
    """A ledger of 1,000 us a step, or `scale` times that."""
    step = 1000.0 * scale
    rows = (
        part("qkv", 200.0 * scale, step, tokens, layers=4),
        part("experts", 500.0 * scale, step, tokens, layers=4, twice=twice),
        part("shared_experts", 100.0 * scale, step, tokens, layers=4, twice=twice),
        part(LAUNCH_GAPS, 150.0 * scale, step, tokens),
        part(HOST, 50.0 * scale, step, tokens),
    )
    per_token = None if tokens is None else step / tokens / 1e3
    return Ledger(phase, batch_size, steps, spread(step), per_token, twice, rows)


def report(*ledgers: Ledger, base: Report = FULL) -> Report:
    return replace(base, tokens=ledgers)


def column(section: Section, title: str) -> list[object]:
    """The cells of a column from the top down."""
    index = [each.title for each in section.columns].index(title)
    return [row[index] for row in section.rows]


def test_a_token_is_a_part_of_a_step_that_gives_several() -> None:
    section = token_section.ledger(report(ledger(tokens=2.5)))
    assert column(section, "A token")[0] == "200.0 us"
    assert column(section, "A token")[-1] == "400.0 us"
    assert "2.50 tokens" in " ".join(section.intro)
    # The range and the layers stay those of the step.
    assert column(section, "A layer")[0] == "125.0 us"


def test_a_run_without_decode_steps() -> None:
    section = token_section.ledger(report(ledger("prefill", 10.0, None, steps=1)))
    assert section.title == "Where the time of a step goes"
    assert column(section, "A step")[-1] == "10.00 ms"
    # One step has no range.
    assert set(column(section, "10 to 90 % of the steps")) == {"-"}


def client() -> ClientRow:
    none = Latency()
    return ClientRow(
        tool="vllm bench serve", model="m", label="c1", concurrency=1, mean_concurrency=None,
        request_rate=None, duration_s=None, completed=None, failed=None, output_throughput=None,
        ttft=none, tpot=none, itl=none, e2e=none, tokens_per_chunk=None, acceptance_length=None,
        comparisons=(Comparison("output_token", "mean", 1100.0, 1000.0),), verdict="agrees",
        sentences=("They agree.",),
    )  # fmt: skip


def test_a_client_stands_beside_it() -> None:
    subject = replace(report(ledger()), clients=(client(),))
    section = token_section.ledger(subject)
    assert section.intro[-1] == (
        "vllm bench serve c1: 1.10 ms per output token (mean), +10.0 % against the 1.00 ms of a "
        "decode step; 100.0 us lie outside it."
    )
    beside = client_section.agreement(subject)
    name, intro = "vllm bench serve, c1, 1 at a time", beside.intro[0]
    assert beside.rows == ((name, "TPOT", "1.10 ms", "1.00 ms", "+10.0 %", "100.0 us", "agrees"),)
    assert intro == f"{name}: They agree."
    (row,) = json.loads(json_report.write(json_report.record_of(subject)))["client_tokens"]
    assert (row["client_us"], row["ledger_us"], row["beyond_us"]) == (1100.0, 1000.0, 100.0)
