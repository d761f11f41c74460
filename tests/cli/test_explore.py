"""`spark-prof explore` on the command line: what it opens, and what it refuses in one line."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spark_prof.errors import CommandError
from spark_prof.explorer.entries import MOST_ENTRIES, find_entries, newest_here
from spark_prof.explorer.server import begin
from tests.cli.conftest import Refuses

COMMAND = "explore"
ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
BUNDLE = DATA / "h100-gpt-oss-20b-mxfp4-graphs"


@pytest.mark.slow
def test_what_cannot_be_shown_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no trace")
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "cut.json").write_text('{"traceEvents": [{"ph": "X", "ts"')
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "meta.json").write_text("{")
    for name, said in (
        ("none", "does not exist"), ("text", "nothing that can be read"), ("empty", "is empty"),
        ("folder", "holds"), ("cut.json", "not a whole Kineto trace"), ("bundle", "meta.json"),
    ):  # fmt: skip
        with pytest.raises(CommandError, match=said):
            begin([str(tmp_path / name)], ())
    for words in (("cut.json",), (BUNDLE, "--rank", "9")):
        command = [sys.executable, "-m", "spark_prof.cli.main", "explore", *map(str, words)]
        ended = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, timeout=300,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1), ended
    assert "no rank 9" in ended.stderr


def test_options_are_checked_before_anything_starts(
    refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refuses((BUNDLE, "--port", port), f"port {port} of 127.0.0.1 is taken")
    refuses((BUNDLE, "--port", "70000"))
    refuses((BUNDLE, "--rank", "-1"))
    refuses((), "holds no bundle")
    for name in ("http://box", "box:80", "*", ""):
        refuses((BUNDLE, "--allow-host", name), "is no host name")
    for token in ("short", "with space in it", "a&b=c#def", "x" * 201):
        monkeypatch.setenv("SPARK_PROF_TOKEN", token)
        assert token not in refuses((BUNDLE,))


def test_the_newest_of_a_folder_come_first(tmp_path: Path) -> None:
    for number, name in enumerate(["c", "a", "b"]):
        (tmp_path / name).mkdir()
        meta = tmp_path / name / "meta.json"
        meta.write_text("{}")
        os.utime(meta, (number, number))
    (tmp_path / "other").mkdir()
    shutil.copytree(DATA / "ab-cpu", tmp_path / "result")
    found = [Path(path).name for path in newest_here(tmp_path)]
    assert found == ["result", "b", "a", "c"]


def test_entries_have_labels_of_their_own(tmp_path: Path) -> None:
    for name in ("x/run", "y/run", "z"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "meta.json").write_text("{}")
    names = [tmp_path / name for name in ("x/run", "y/run", "z", "z")]
    entries, _ = find_entries(*map(str, names), str(DATA / "ab-cpu"), "/no/\x1b[31msuch")
    assert [entry.label for entry in entries] == [
        "x/run", "y/run", "z (1)", "z (2)", "ab-cpu", "such",
    ]  # fmt: skip
    assert [bool(entry.fault) for entry in entries] == [False] * 5 + [True]
    assert entries[4].result == DATA / "ab-cpu" / "result.json"


def test_a_load_generator_s_result_alone_is_refused() -> None:
    result = str(DATA / "benchmarks" / "guidellm.json")
    with pytest.raises(CommandError, match="spark-prof report"):
        find_entries(result)
    entries, clients = find_entries(result, str(BUNDLE))
    assert [entry.label for entry in entries] == [BUNDLE.name]
    assert clients == (Path(result),)


def test_too_many_recordings_are_refused(tmp_path: Path) -> None:
    for number in range(MOST_ENTRIES + 1):
        (tmp_path / f"{number}.trace.json").write_text(json.dumps({"traceEvents": []}))
    with pytest.raises(CommandError, match="more than 1,000 recordings"):
        find_entries(str(tmp_path))
