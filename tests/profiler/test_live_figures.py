"""The figures of a running recording, from the pieces that are written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spark_prof.profiler.live_figures import LiveReader, figures_of, largest_kernels
from spark_prof.traces.chunk_files import load_array
from spark_prof.traces.chunks import STEP_DTYPE, activity_name, array_name, pieces_folder
from tests.support import Piece, Recorded, eager_decode, kernel, kineto, rows, step

MS = 1_000_000


def decoding(*begins: int, first: int = 0, **counts: int) -> list[dict[str, int]]:
    """Decode steps that begin at these milliseconds."""
    return [step(first + at, ms * MS, ms * MS + MS, **counts) for at, ms in enumerate(begins)]


def test_a_step_lasts_until_the_next_one_begins() -> None:
    steps = decoding(0, 10, 20, 32, decode_requests=4, decode_tokens=4)
    figures = figures_of(rows(STEP_DTYPE, *steps))
    assert (figures.steps, figures.profiled, figures.batch) == (3, True, 4)
    assert figures.step_ns == pytest.approx(32 / 3 * MS)
    assert figures.tokens_per_s == pytest.approx(3 * 4 / 0.032)
    assert not figures.drafts


def test_waiting_writing_and_other_batches_are_in_no_step() -> None:
    waits = [
        *decoding(0, 10),
        step(2, 900 * MS, 910 * MS, "prefill"),
        *decoding(1000, 1010, first=3),
    ]
    assert figures_of(rows(STEP_DTYPE, *waits)).step_ns == 10 * MS
    writes = [*decoding(0, 10), *decoding(60, first=2, paused_ns=40 * MS)]
    assert figures_of(rows(STEP_DTYPE, *writes)).step_ns == 10 * MS
    grows = [*decoding(0, 10), *decoding(99, 119, first=2, decode_requests=2, decode_tokens=2)]
    assert figures_of(rows(STEP_DTYPE, *grows)).step_ns == 15 * MS  # 10 and 20, not the 89
    lost = [*decoding(0, 10), *decoding(500, 510, first=90)]
    assert figures_of(rows(STEP_DTYPE, *lost)).step_ns == 10 * MS


def test_times_are_those_of_steps_that_were_only_timed_where_there_are_enough() -> None:
    begins = [*range(0, 200, 20), *range(200, 300, 10)]  # ten profiled steps of 20 ms, ten of 10
    steps = decoding(*begins)
    for row in steps[10:]:
        row["watched"] = 0
    figures = figures_of(rows(STEP_DTYPE, *steps))
    assert (figures.profiled, figures.step_ns) == (False, 10 * MS)
    assert figures_of(rows(STEP_DTYPE, *steps[:14])).profiled


def test_the_overhead_is_known_once_profiled_steps_lie_between_others() -> None:
    lengths = [10] * 8 + [13] * 8 + [10] * 8 + [10]
    steps = decoding(*np.cumsum([0, *lengths]).tolist())
    for at, row in enumerate(steps):
        row["watched"] = int(8 <= at < 16)
    assert figures_of(rows(STEP_DTYPE, *steps)).profiled_over_timed == pytest.approx(1.3)
    assert figures_of(rows(STEP_DTYPE, *steps[:12])).profiled_over_timed is None


def test_drafts_are_not_taken_for_tokens() -> None:
    assert figures_of(rows(STEP_DTYPE, *decoding(0, 10, 20, decode_tokens=3))).drafts


def test_nothing_is_made_up_of_no_steps() -> None:
    for steps in ([], decoding(0), [step(0, 0, MS, "prefill"), step(1, MS, 2 * MS, "prefill")]):
        figures = figures_of(rows(STEP_DTYPE, *steps))
        assert (figures.steps, figures.step_ns, figures.tokens_per_s) == (0, 0.0, 0.0)


def test_the_largest_kernels_of_a_piece(tmp_path: Path) -> None:
    events = [kernel(f"k{n}", n * 1000, n * 1000 + 100 * n, n, n * 1000 - 10) for n in range(1, 8)]
    events += [kernel("k7", 9000, 9300, 8, 8990)]
    steps = decoding(0, 10)
    Piece(steps, trace=kineto(*events)).write(tmp_path, "rank0", 3)
    loaded = load_array(tmp_path / array_name("rank0", "steps", 3), STEP_DTYPE)
    kernels, count = largest_kernels(tmp_path, "rank0", 3, loaded)
    assert count == 2
    assert [row.name for row in kernels] == ["k7", "k6", "k5", "k4", "k3"]
    assert kernels[0].step_ns == pytest.approx((700 + 300) / 2)
    assert kernels[0].share == pytest.approx(1000 / 3100)


def test_it_reads_whole_pieces_and_survives_the_rest(tmp_path: Path) -> None:
    pieces = Recorded({0: [eager_decode()]}).write(tmp_path / "run")
    reader = LiveReader(tmp_path / "nothing-there")
    try:
        assert reader.read() is None
    finally:
        reader.close()
    reader = LiveReader(pieces)
    try:
        first = reader.read()
        assert first is not None
        assert first.kernel_steps == 2
        assert first.kernels
        eager_decode(2, 2000).write(pieces, "rank0", 1)
        (pieces / array_name("rank0", "steps", 2)).write_bytes(b"half")
        (pieces / activity_name("rank0", 3)).write_bytes(b"half")  # of a piece without steps yet
        second = reader.read()
        assert second is not None
        assert second.kernel_steps == 2
    finally:
        reader.close()
    assert pieces == pieces_folder(tmp_path / "run")
