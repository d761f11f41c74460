"""The sections and the JSON about a token's time, and about what clients saw beside it."""

from __future__ import annotations

import json
from dataclasses import replace

from spark_prof.analyzers.clients.client_comparison import ClientComparison, ClientRow
from spark_prof.analyzers.step_time import HOST, LAUNCH_GAPS, StepAccount
from spark_prof.dashboards.outline import outline
from spark_prof.dashboards.render import json_report
from spark_prof.dashboards.section import Section
from spark_prof.dashboards.sections import client_section, token_section
from spark_prof.dashboards.units import microseconds
from spark_prof.traces.benchmarks.load_test import Latency
from tests.rows import each_row

from .sample import SAMPLES

FULL = SAMPLES["mixture_of_experts"]
[DECODE, _] = FULL.typical_steps
LARGEST = max(
    (row for row in DECODE.parts if row.name not in (LAUNCH_GAPS, HOST)),
    key=lambda row: row.us,
)


def section_of(chosen: StepAccount) -> Section:
    return token_section.step_parts(replace(FULL, accounts=(chosen,)))


def column(section: Section, title: str) -> list[object]:
    """The cells of a column from the top down."""
    index = [each.title for each in section.columns].index(title)
    return [row[index] for row in section.rows]


def test_a_token_is_a_part_of_a_step_that_gives_several() -> None:
    assert DECODE.token
    us = DECODE.step_us / 2.5
    token = replace(DECODE.token, token_us=us, typical_us=us, uneven_us=0.0, steps_per_token=0.4)
    section = section_of(replace(DECODE, token=token))
    assert column(section, "A token")[0] == microseconds(LARGEST.us / 2.5)
    assert column(section, "A token")[-1] == microseconds(DECODE.step_us / 2.5)
    assert "2.50 tokens" in " ".join(section.intro)
    # The range and the layers stay those of the step.
    assert column(section, "A layer")[0] == microseconds(LARGEST.per_layer_us)


@each_row("sizes", [1, 2, 4, 5, 16, 17, 20])
def test_of_many_batch_sizes_those_with_the_most_time_are_listed(sizes: int) -> None:
    """The n-th has n steps and is of batch size 21 - n; a table lists small ones first."""
    (time,) = FULL.steps.batches
    batches = [replace(time, batch=21 - n, steps=n) for n in range(1, sizes + 1)]
    report = replace(FULL, steps=replace(FULL.steps, batches=tuple(batches)))
    drawn = {section.id: section for section in outline(report, only=("batches",)).sections}
    for most, section in ((16, drawn.get("batches")), (4, token_section.by_batch(report))):
        first = 21 - sizes
        expected = range(first, first + min(sizes, most)) if sizes > 1 else ()
        rows = section.rows if section else ()
        assert [str(row[0]) for row in rows] == [*map(str, expected)]
        left = max(sizes - most, 0)
        assert (f"({left} more size" in (section.title if section else "")) is (left > 0)


def test_a_run_without_decode_steps() -> None:
    section = section_of(replace(DECODE, phase="prefill", token=None, steps=1))
    assert section.title == "Where the time of a step goes"
    assert column(section, "A step")[-1] == microseconds(DECODE.step_us)
    # One step has no range.
    assert set(column(section, "10 to 90 % of the steps")) == {"-"}


def test_a_client_stands_beside_it() -> None:
    none = Latency()
    client = ClientRow(
        tool="vllm bench serve", model="m", label="c1", concurrency=1, mean_concurrency=None,
        request_rate=None, duration_s=None, completed=None, failed=None, output_throughput=None,
        ttft=none, tpot=none, itl=none, e2e=none, tokens_per_chunk=None, acceptance_length=None,
        comparisons=(ClientComparison("output_token", "mean", 1100.0, 1000.0),), verdict="agrees",
        sentences=("They agree.",),
    )  # fmt: skip
    assert DECODE.token
    step = replace(DECODE, token=replace(DECODE.token, token_us=1000.0))
    subject = replace(FULL, accounts=(step,), clients=(client,))
    assert token_section.step_parts(subject).intro[-1] == (
        "vllm bench serve c1: 1.10 ms per output token (mean), +10.0 % against the 1.00 ms of a "
        "decode step; 100.0 us lie outside it."
    )
    beside = client_section.agreement(subject)
    name, intro = "vllm bench serve, c1, 1 at a time", beside.intro[0]
    assert beside.rows == ((name, "TPOT", "1.10 ms", "1.00 ms", "+10.0 %", "100.0 us", "agrees"),)
    assert intro == f"{name}: They agree."
    (row,) = json.loads(json_report.write(json_report.record_of(subject)))["client_tokens"]
    assert (row["client_us"], row["ledger_us"], row["beyond_us"]) == (1100.0, 1000.0, 100.0)
