"""Command lines are run in this process, in an empty folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_prof.cli import main as cli
from tests.read_once import few_recordings_open, recordings_read_once

__all__ = ["few_recordings_open", "recordings_read_once"]

Run = Callable[..., tuple[int, str, str]]
"""Runs the words behind the test module's `COMMAND`; exit code, stdout and stderr."""

Refuses = Callable[..., str]
"""Checks that the words are refused with code 2, one line that says this, and nothing else."""


@pytest.fixture
def run(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    monkeypatch.chdir(tmp_path)
    command = getattr(request.module, "COMMAND", "").split()

    def runner(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["spark-prof", *command, *map(str, words)])
        capsys.readouterr()
        code = cli.main()
        said = capsys.readouterr()
        return code, said.out, said.err

    return runner


@pytest.fixture
def refuses(run: Run, tmp_path: Path) -> Refuses:
    def check(words: object, says: str = "", *, files: bool = True) -> str:
        """Words are a line or a sequence; with `files` nothing in the folder changes either."""
        before = sorted(tmp_path.rglob("*"))
        code, out, errors = run(*(words.split() if isinstance(words, str) else words))
        assert (code, out) == (2, ""), (words, out, errors)
        assert errors.startswith("spark-prof: "), words
        assert errors.count("\n") == 1, errors
        assert errors.endswith("\n")
        assert "\x1b" not in errors
        assert says in errors, (words, errors)
        assert not files or sorted(tmp_path.rglob("*")) == before, words
        return errors

    return check
