"""What a scheduled batch holds."""

from __future__ import annotations

from typing import Any

from spark_prof.profiler.batch import DECODE, MIXED, PREFILL, read_batch
from tests.rows import each_row

from .fakes import batch

NEW = batch({"a": 8}, new={"a": 0})
CHUNK = batch({"a": 4}, cached={"a": 8}, context=("a",))
DECODING = batch({"a": 1, "b": 3}, cached={"a": 9, "b": 20})
BOTH = batch({"a": 1, "c": 6}, new={"c": 2}, cached={"a": 9})


@each_row(
    ("output", "phase", "counts"),
    [
        (NEW, PREFILL, (1, 8, 0, 0, 0)),
        (CHUNK, PREFILL, (1, 4, 0, 0, 8)),
        (DECODING, DECODE, (0, 0, 2, 4, 29)),
        (BOTH, MIXED, (1, 6, 1, 1, 11)),
        (batch({}), PREFILL, (0, 0, 0, 0, 0)),
        (batch({"a": 1}, cached={"a": 9, "z": 500}), DECODE, (0, 0, 1, 1, 9)),
    ],
)
def test_counts_and_phase(output: Any, phase: int, counts: tuple[int, ...]) -> None:
    found = read_batch(output)
    assert found.phase == phase
    assert (
        found.prefill_requests, found.prefill_tokens, found.decode_requests,
        found.decode_tokens, found.context_tokens,
    ) == counts  # fmt: skip


def test_the_key_tells_batches_apart_and_is_the_same_wherever_one_is_read() -> None:
    again = batch({"a": 1, "b": 3}, cached={"a": 9, "b": 20})
    assert read_batch(again).key == read_batch(DECODING).key
    others = [
        batch({"a": 1, "b": 3}, cached={"a": 10, "b": 20}),
        batch({"a": 2, "b": 3}, cached={"a": 9, "b": 20}),
        batch({"x": 1, "b": 3}, cached={"x": 9, "b": 20}),
        batch({"a": 1}, cached={"a": 9}),
        NEW, CHUNK, BOTH, DECODING,
    ]  # fmt: skip
    assert len({read_batch(output).key for output in others}) == len(others)
