"""`record --host`: what stands in its way is one line with exit code 2, and starts nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spark_prof.errors import CommandError
from spark_prof.profiler import launcher
from spark_prof.profiler.commands import Command
from spark_prof.profiler.settings import Settings
from tests.command_line import parsed, ran
from tests.support import refusal


def test_a_running_server_is_refused() -> None:
    code, _, error = ran("record", "--host", "--attach", "http://127.0.0.1:8000")
    assert code == 2
    assert "--host needs a command that spark-prof starts" in error


def test_a_container_is_refused() -> None:
    with refusal("--cap-add SYS_PTRACE"):
        launcher._py_spy_for(Command(("docker", "run", "image"), "container"))


@pytest.mark.parametrize("missing", ["find_py_spy", "check_allowed"])
def test_what_is_missing_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def refuse(*_: object) -> str:
        raise CommandError("--host needs it")

    monkeypatch.setattr(launcher, "find_py_spy", lambda: "py-spy")
    monkeypatch.setattr(launcher, missing, refuse)
    monkeypatch.setattr(launcher, "_start", lambda *_: pytest.fail("it was started"))
    out = tmp_path / "b"
    code, _, error = ran("record", "--host", "-o", out, "--", sys.executable, "-c", "")
    assert code == 2
    assert "--host needs it" in error
    assert not out.exists()


def test_steps_with_gaps_are_recorded_unless_somebody_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: list[Settings] = []

    def keep(_: object, wanted: Settings, *__: object) -> None:
        settings.append(wanted)
        raise CommandError("enough")

    monkeypatch.setattr(launcher, "record", keep)
    for options in (["--host"], ["--host", "--duty-cycle", "1/1"], []):
        ran("record", *options, "-o", tmp_path / "b", "--", "vllm", "serve", "m")
    assert [(s.host, s.stretch, s.period, s.sampled) for s in settings] == [
        (True, 25, 50, False), (True, 1, 1, False), (False, 0, 0, True),
    ]  # fmt: skip
    assert parsed(["record", "--host", "--", "x"])["host"] is True
