"""`spark-prof record` in a terminal: figures at its bottom, and all else as without them."""

from __future__ import annotations

import fcntl
import io
import os
import re
import struct
import sys
import termios
from pathlib import Path

import pytest

from spark_prof.cli.record import LiveScreen, live_screen
from spark_prof.profiler.terminal import BottomLines
from tests.profiler.test_terminal import CTRL_C, ROOT, Shown, check_whole, engine, record, shown

pytestmark = pytest.mark.slow

__all__ = ["shown"]

LINE = "print('ENGINE', done, 'SAYS', flush=True)"
TAKEN, GIVEN_BACK = "\x1b[1;21r", "\x1b[r"  # of 30 rows


def started(shown: list[Shown], argv: list[str], kind: str = "xterm") -> Shown:
    """Starts a command in a terminal of 30 rows, whose size is known before it runs."""
    person, program = os.openpty()
    fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("4H", 30, 100, 0, 0))
    pid = os.fork()
    if not pid:
        os.close(person)
        os.login_tty(program)
        os.environ |= {"PYTHONPATH": str(ROOT), "TERM": kind}
        os.chdir(ROOT)
        os.execvp(argv[0], argv)
    os.close(program)
    shown.append(Shown(pid, person))
    return shown[-1]


def screen_of(text: str) -> str:
    """What was drawn at the bottom, without what was written above."""
    return "".join(re.findall(r"\x1b7(.*?)\x1b8", text, re.S))


def test_figures_are_shown_and_the_engine_writes_as_before(
    shown: list[Shown], tmp_path: Path
) -> None:
    # The engine stops before its end until the first figures have come.
    seen = tmp_path / "seen"
    goes_on = f"lambda: done < 500 or os.path.exists({str(seen)!r})"
    stop = f"[time.sleep(0.05) for _ in iter({goes_on}, True)]"
    command = engine(tmp_path, steps=600, each=f"{LINE}; {stop}")
    run = started(shown, record(tmp_path / "b", command))
    run.wait_for(r"tokens/s")
    seen.touch()
    assert run.ended() == 0, run.text
    check_whole(tmp_path / "b", 600)
    screen = screen_of(run.text)
    assert TAKEN in screen
    assert re.search(r"recording step \d+.*ms a token.*tokens/s +batch 1", screen, re.S)
    above = re.sub(r"\x1b7.*?\x1b8", "", run.text, flags=re.S)
    assert re.findall(r"ENGINE (\d+) SAYS\r?\n", above) == [str(n) for n in range(1, 601)]
    assert run.text.rindex(GIVEN_BACK) > run.text.rindex(TAKEN)
    assert "spark-prof report" in run.text[run.text.rindex(GIVEN_BACK) :]
    assert "Traceback" not in run.text


def test_ctrl_c_gives_the_rows_back_and_keeps_every_step(
    shown: list[Shown], tmp_path: Path
) -> None:
    run = started(shown, record(tmp_path / "b", engine(tmp_path)))
    run.wait_for(r"tokens/s")
    run.type(CTRL_C)
    assert run.ended() == 0, run.text
    check_whole(tmp_path / "b")
    assert run.text.rindex(GIVEN_BACK) > run.text.rindex(TAKEN)
    assert "keeping what there is" in run.text


@pytest.mark.parametrize(
    "how",
    ["dumb terminal", "JSON", "--no-live", "stdout in a file"],
)
def test_where_nobody_looks_nothing_is_drawn(shown: list[Shown], tmp_path: Path, how: str) -> None:
    options = {"--no-live": ["--no-live"], "JSON": ["--format", "json"]}.get(how, [])
    words = record(tmp_path / "b", engine(tmp_path, steps=100, each=LINE), *options)
    if how == "stdout in a file":
        words = ["sh", "-c", '"$@" > "$0"', str(tmp_path / "out"), *words]
    run = started(shown, words, "dumb" if how == "dumb terminal" else "xterm")
    assert run.ended() == 0, run.text
    check_whole(tmp_path / "b", 100)
    assert "\x1b7" not in run.text


def test_a_fault_ends_the_screen_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BottomLines, "columns", property(lambda _: 1 // 0))
    monkeypatch.setattr(sys, "stderr", open(os.devnull, "w"))  # noqa: SIM115
    screen = LiveScreen(tmp_path)
    assert not screen.show("recording step 1")
    monkeypatch.setattr(BottomLines, "columns", property(lambda _: 99))
    assert not screen.show("recording step 2")  # it has ended
    screen.close()


def test_no_terminal_has_no_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert live_screen(tmp_path) is None
