"""Every row of a start reads its own examples alone, and names stages that there are."""

from __future__ import annotations

from spark_prof.rules.start_advice import START_ADVICE
from spark_prof.rules.start_memory import MEMORY_LINES, MEMORY_PARTS, MEMORY_TOTALS, MemoryLine
from spark_prof.rules.start_stages import MILESTONES, STAGES, UP, Milestone
from tests.rows import each_row


@each_row("row", MILESTONES)
def test_a_milestone_takes_its_examples_and_no_other_does(row: Milestone) -> None:
    assert row.examples
    for example in row.examples:
        first = next(
            other for other in MILESTONES if other.word in example and other.pattern.search(example)
        )
        assert first is row, (example, first.id)
    named = {name for name in (row.stage, row.opens) if name}
    assert named <= STAGES.keys()
    # What claims a whole interval, or seconds of one, says for which stage.
    claims = {"seconds", "clock"} & set(row.pattern.groupindex)
    assert row.stage or not (row.whole or row.bar or row.through or claims), row.id


@each_row("row", MEMORY_LINES)
def test_a_line_of_memory_tells_figures(row: MemoryLine) -> None:
    names = set(row.pattern.groupindex)
    assert names <= {*MEMORY_PARTS, *MEMORY_TOTALS, "graphs_estimated"}
    for example in row.examples:
        match = row.pattern.search(example)
        assert row.word in example
        assert match, example
        assert all(float(value) >= 0 for value in match.groups() if value is not None)


def test_the_tables_are_whole() -> None:
    assert len({row.id for row in MILESTONES}) == len(MILESTONES)
    assert set(UP) <= {row.id for row in MILESTONES}
    reached = {name for row in MILESTONES for name in (row.stage, row.opens) if name}
    assert reached == set(STAGES) - {"recording"}, "a log has no line of that one"
    for advice in START_ADVICE:
        assert advice.stage in STAGES
        assert advice.reason, advice.what


def test_what_serves_as_a_request_is_no_milestone() -> None:
    for text in (
        "Warming up Mamba2 SSD Triton kernels...",
        "Warming up chat template processing...",
        "Received request: please explain 'Loading weights took 38.20 seconds'",
        "Engine 000: Avg prompt throughput: 1.0 tokens/s, GPU KV cache usage: 3.0%",
    ):
        assert not [row.id for row in MILESTONES if row.pattern.search(text)], text
