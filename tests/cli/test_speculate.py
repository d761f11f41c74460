"""`spark-prof speculate` at the command line: what is refused, and what a result shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.speculate.speculate_result import to_json
from tests.command_line import ran
from tests.speculate.sample import DRAFTED

DRAFTER = '{"method": "ngram", "num_speculative_tokens": 4}'


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "no model and no command"),
        (("--", "org/m"), "the command has no drafter"),
        (("--acceptance", "0.5,0.7", "--", "org/m"), "--acceptance"),
        (("--acceptance", "0.5", "--server", "http://x", "--", "org/m"), "give one of"),
        (("--drafts", "0,1", "--", "org/m"), "--drafts"),
        (("--drafts", "65", "--", "org/m"), "--drafts"),
        (("--requests", "absent.jsonl", "--", "org/m"), "absent.jsonl"),
        (("--from", "absent", "--", "org/m"), "absent"),
        (("--server", "ftp://x", "--", "org/m"), "--server"),
        (("--", "org/m", "--speculative-config", "{"), "no JSON"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(
    words: tuple[str, ...], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output, errors = ran("speculate", *words)
    assert code == 2
    assert line in errors
    assert len(errors.strip().splitlines()) == 1
    assert not output
    assert not list(tmp_path.glob("spark-prof-speculate*"))


def test_a_result_is_reported_and_is_no_recording(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(to_json(DRAFTED))
    code, output, _ = ran("report", str(tmp_path))
    assert code == 0
    assert output.startswith("k = 2 at batch 1")
    code, _, errors = ran("report", str(tmp_path), "--rank", "0")
    assert code == 2
    assert "a result of spark-prof ab, tune or speculate" in errors
    code, _, errors = ran("explore", "--help")
    assert code == 0
    code, _, errors = ran("query", str(tmp_path), "select 1")
    assert code == 2
    assert "is a result of spark-prof speculate and no recording" in errors
