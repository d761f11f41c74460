"""The file of recorded logits: what is written is read, and what cannot be is one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spark_prof.errors import CommandError
from spark_prof.swaps.tap import LogitComparison, LogitRecording, TappedRequest


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_what_is_written_is_read_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    logits = torch.randn(2, 40, generator=torch.Generator().manual_seed(3)).to(dtype)
    requests = [TappedRequest(number, 5, 0xFFFFFFFF - number) for number in range(2)]
    written = LogitRecording(tmp_path / "a", keeps=True)
    tokens = written.take(requests, logits)
    written.finish()
    read = LogitComparison(tmp_path / "a", compares=True)
    assert read.take(requests[::-1], logits.flip(0)).tolist() == tokens.tolist()[::-1]
    assert [row["kl_nats"] == row["worst"] == 0 for row in read.compared] == [True, True]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    written = LogitRecording(tmp_path / "a", keeps=True)
    written.take([TappedRequest(0, 1, 0)], torch.zeros(1, 4))
    with pytest.raises(CommandError, match="cannot be written"):
        written.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("content", [None, b"", b"not a file of torch"])
def test_other_files_are_refused_in_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CommandError, match="cannot be read as recorded logits") as caught:
        LogitComparison(path, compares=True)
    assert "\n" not in str(caught.value)
