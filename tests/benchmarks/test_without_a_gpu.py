"""What benchmarks that need a GPU or a result say where there is none: one line and code 2."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from tests.rows import each_row

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@each_row(
    ("name", "words", "says"),
    [
        ("chained_configs", ["result.json"], "no GPU"),
        ("decoder_step", [], "no GPU"),
        ("node_price", ["-o", "result.json"], "no GPU"),
        ("kernels", ["result.json"], "torch finds none"),
        ("kernels", ["result.json", "--show"], "cannot read result.json"),
        ("kernels", [RESULTS / "engine-steps-h200.json", "--show"], "is no result of"),
    ],
)
def test_it_is_one_line(
    name: str,
    words: list[str | Path],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
    assert importlib.import_module(f"benchmarks.{name}").main() == 2
    said = capsys.readouterr()
    assert says in said.out + said.err
    assert (said.out + said.err).count("\n") == 1
    assert not [*tmp_path.iterdir()]
