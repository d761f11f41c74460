"""Sampled counters on their way into the bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from spark_prof.traces.assemble import assemble
from spark_prof.traces.chunks import COUNTER_DTYPE, array_name, write_array
from tests.support import ORIGIN, Recorded, eager_decode


def samples(begin: int, count: int) -> np.ndarray:
    """Samples of 2 us each; what one sampling cannot take is NaN."""
    rows = np.zeros(count, COUNTER_DTYPE)
    rows["warps_active"] = np.nan
    rows["start_ns"] = ORIGIN + begin + 2_000 * np.arange(count)
    rows["end_ns"] = rows["start_ns"] + 2_000
    rows["dram_read_bytes"] = np.arange(count)
    rows["tensor_active"] = 0.5
    return rows


def two_pieces(tmp_path: Path) -> tuple[Path, Path]:
    pieces = Recorded({0: [eager_decode(), eager_decode(2, 5000)]}).write(tmp_path / "b")
    return tmp_path / "b", pieces


def test_samples_of_all_pieces_are_a_table(tmp_path: Path) -> None:
    folder, pieces = two_pieces(tmp_path)
    for piece in (0, 1):
        rows = samples(100_000 * piece, 3)
        write_array(pieces, array_name("rank0", "counters", piece), rows)
    found = assemble(folder, state="complete").frame("counters", 0)
    assert found["start_ns"].tolist() == [
        ORIGIN + t for t in (0, 2_000, 4_000, 100_000, 102_000, 104_000)
    ]
    assert found["dram_read_bytes"].tolist() == [0, 1, 2, 0, 1, 2]
    assert found["warps_active"].isna().all()
    assert (found["tensor_active"] == 0.5).all()
