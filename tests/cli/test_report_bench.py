"""`spark-prof report --bench`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_prof.cli import main as cli

DATA = Path(__file__).parents[1] / "data" / "benchmarks"
BUNDLE = DATA / "vllm-serve-bundle"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def runner(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["spark-prof", "report", *map(str, words)])
        code = cli.main()
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return runner


def test_two_results_beside_a_recording(run: Run) -> None:
    before = sorted((path.name, path.stat().st_mtime_ns) for path in BUNDLE.iterdir())
    results = [DATA / "vllm-serve-detailed.json", DATA / "sglang.jsonl"]
    options = [word for path in results for word in ("--bench", path)]
    code, out, errors = run(BUNDLE, "--format", "json", *options)
    assert (code, errors) == (0, "")
    rows = json.loads(out)["clients"]
    assert [(r["basis"], r["verdict"]) for r in rows[:1]] == [("window", "agrees")]
    assert [r["tool"] for r in rows[1:]] == ["sglang bench_serving"] * 2
    assert sorted((path.name, path.stat().st_mtime_ns) for path in BUNDLE.iterdir()) == before


def test_without_the_option_nobody_is_compared(run: Run) -> None:
    assert json.loads(run(BUNDLE, "--format", "json")[1])["clients"] == []


@pytest.mark.parametrize("name", ["nosuch.json", "README.md", "vllm-serve-bundle"])
def test_what_is_no_result(run: Run, name: str) -> None:
    code, out, errors = run(BUNDLE, "--bench", DATA / name)
    assert (code, out) == (2, "")
    assert errors.count("\n") == 1
    assert name in errors
