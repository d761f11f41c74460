"""What a scheduled batch holds."""

from __future__ import annotations

from typing import Any

from spark_prof.profiler.batch import DECODE, MIXED, PREFILL, read_batch
from tests.rows import each_row

from .fakes import batch

NEW = batch({"a": 8}, new={"a": 0})
CHUNK = batch({"a": 4}, cached={"a": 8}, context=("a",))
DECODING = batch({"a": 1, "b": 3}, cached={"a": 9, "b": 20}, drafts={"b": 2})
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


RESUMED = batch({"a": 1, "b": 227}, cached={"a": 9, "b": 0}, preempted=("c",))
CHUNKED = batch({"a": 1, "b": 64}, cached={"a": 9, "b": 128})


@each_row(
    ("output", "phase", "prefill", "decode", "recomputed"),
    [
        (RESUMED, MIXED, (1, 227), (1, 1), 227),
        (CHUNKED, MIXED, (1, 64), (1, 1), 64),  # in parts: only the first is said to be resumed
        (batch({"b": 227}, cached={"b": 0}), PREFILL, (1, 227), (0, 0), 227),
        (batch({"b": 2}, cached={"b": 225}), PREFILL, (1, 2), (0, 0), 2),
        # All but the last token came out of the prefix cache: nothing is computed again.
        (batch({"b": 1}, cached={"b": 226}), DECODE, (0, 0), (1, 1), 0),
        # Preempted before its first token: it reads its prompt, as before.
        (batch({"b": 9}, cached={"b": 0}, context=("b",)), PREFILL, (1, 9), (0, 0), 0),
        # Drafts are no part of a prompt; a request without drafts beside one that has some.
        (
            batch({"a": 4, "b": 1}, cached={"a": 9, "b": 9}, drafts={"a": 3}),
            DECODE,
            (0, 0),
            (2, 5),
            0,
        ),
        (
            batch({"a": 4, "b": 9}, cached={"a": 9, "b": 0}, drafts={"a": 3}),
            MIXED,
            (1, 9),
            (1, 4),
            9,
        ),
        # Model runner V2 gets it as a new request with all its tokens.
        (batch({"b": 227}, new={"b": 0}, known={"b": (220, 227)}), PREFILL, (1, 227), (0, 0), 227),
        (batch({"b": 220}, new={"b": 0}, known={"b": (220, 220)}), PREFILL, (1, 220), (0, 0), 0),
        (batch({"b": 1}, new={"b": 226}, known={"b": (220, 227)}), DECODE, (0, 0), (1, 1), 0),
        (batch({"b": 1}, new={"b": 0}, known={"b": (1, 1)}), PREFILL, (1, 1), (0, 0), 0),
    ],
)
def test_what_is_computed_again_is_prefill(
    output: Any, phase: int, prefill: tuple[int, int], decode: tuple[int, int], recomputed: int
) -> None:
    found = read_batch(output)
    assert found.phase == phase
    assert (found.prefill_requests, found.prefill_tokens) == prefill
    assert (found.decode_requests, found.decode_tokens) == decode
    assert found.recomputed_tokens == recomputed


def test_preempted_requests_are_counted() -> None:
    assert [read_batch(output).preempted for output in (RESUMED, CHUNKED)] == [1, 0]
    older = batch({"a": 1}, cached={"a": 9})
    older.preempted_req_ids = None
    assert read_batch(older).preempted == 0


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
