"""Lends the terminal to a command that reads from it, but for Ctrl-C and lines at its bottom.

Ctrl-C sends SIGINT to every process of the terminal's foreground group. vLLM's processes end at
once of it, with all steps that they have not flushed. So the command runs in a group of its own,
in the background, where it writes as before; spark-prof gets the signal, has the steps flushed and
sends the command its SIGINT then.

A command in the background that reads from the terminal is stopped by SIGTTIN. That is seen here:
its group becomes the foreground and goes on. Linux asks who is in the foreground when a read
begins, not while it waits: so a moment later, when the command waits for its line, spark-prof takes
the foreground back, and Ctrl-C is its own again. (A read that has not begun by then is stopped once
more, and gets twice the time.) It stays lent while the terminal is not as usual: without echo
somebody types a password, or edits a line; and where Ctrl-C is no signal, as for `docker run -t`,
to keep it would be of no use.
"""

from __future__ import annotations

import os
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType

_POLL_SECONDS = 0.05
_LEAST_SECONDS, _MOST_SECONDS = 0.05, 1.0  # for which it is lent
_USUAL = termios.ISIG | termios.ICANON | termios.ECHO


class Terminal:
    """The terminal of this process, if it has one, beside a command in a group of its own."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        say: Callable[[str], None],
        before_suspend: Callable[[], None] = lambda: None,
    ) -> None:
        self._child = child
        self._say = say
        self._before_suspend = before_suspend
        self._input_requested = self._key_mode_reported = False
        self._lent_at, self._seconds = 0.0, _LEAST_SECONDS
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="terminal", daemon=True)
        self._before: signal.Handlers | Callable[..., object] | int | None = None
        try:
            self._terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError:
            self._terminal = -1
            return
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGTSTP)
            if self._before is not signal.SIG_IGN:
                signal.signal(signal.SIGTSTP, self._on_suspend)
        self._thread.start()

    def close(self) -> None:
        """Takes the terminal back for good."""
        if self._terminal < 0:
            return
        self._closed.set()
        self._thread.join()
        self._foreground(os.getpgrp(), instead_of=self._child.pid)
        if self._before is not None:
            signal.signal(signal.SIGTSTP, self._before)
        os.close(self._terminal)
        self._terminal = -1

    def give(self) -> bool:
        """Leaves it to the command, which Ctrl-C ends then; False where there is none."""
        if self._terminal < 0:
            return False
        self._closed.set()
        self._thread.join()
        return self._foreground(self._child.pid, instead_of=os.getpgrp())

    def _serve(self) -> None:
        # Else who is not in the foreground is stopped when it sets the foreground.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        while not self._closed.wait(_POLL_SECONDS):
            with suppress(OSError, termios.error):  # the terminal, or the command, is gone
                state = os.waitid(os.P_PID, self._child.pid, os.WSTOPPED | os.WNOHANG)
                if state is not None and state.si_status in (signal.SIGTTIN, signal.SIGTTOU):
                    self._input_requested = True
                elif state is not None and state.si_status == signal.SIGTSTP and self._is_lent():
                    os.kill(os.getpid(), signal.SIGTSTP)  # Ctrl-Z reached the command alone
                if self._input_requested:
                    self._lend()
                elif self._is_lent():
                    self._take_back()

    def _is_lent(self) -> bool:
        return os.tcgetpgrp(self._terminal) == self._child.pid

    def _lend(self) -> None:
        if os.tcgetpgrp(self._terminal) not in (os.getpgrp(), self._child.pid):
            # In the background: the job stops as a whole, as it would without spark-prof.
            os.kill(os.getpid(), signal.SIGTTIN)
            return
        self._input_requested = False
        now = time.monotonic()
        again = now - self._lent_at < 2 * _MOST_SECONDS
        self._seconds = min(2 * self._seconds, _MOST_SECONDS) if again else _LEAST_SECONDS
        self._lent_at = now
        os.tcsetpgrp(self._terminal, self._child.pid)
        os.killpg(self._child.pid, signal.SIGCONT)

    def _take_back(self) -> None:
        mode = termios.tcgetattr(self._terminal)[3]
        if mode & _USUAL == _USUAL:
            if time.monotonic() - self._lent_at >= self._seconds:
                os.tcsetpgrp(self._terminal, os.getpgrp())
        elif not mode & termios.ISIG and not self._key_mode_reported:
            self._key_mode_reported = True
            self._say(
                "the command reads the terminal key by key, Ctrl-C too; to end the recording "
                f"first: kill -INT {os.getpid()}"
            )

    def _foreground(self, group: int, *, instead_of: int) -> bool:
        """Puts a group into the foreground, if another one is there."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            if os.tcgetpgrp(self._terminal) == instead_of:
                os.tcsetpgrp(self._terminal, group)
                return True
        except OSError:
            pass
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return False

    def _on_suspend(self, sent: int, _: FrameType | None) -> None:
        """Ctrl-Z stops the command as well, and `fg` or `bg` lets both go on."""
        self._before_suspend()
        self._foreground(os.getpgrp(), instead_of=self._child.pid)
        with suppress(OSError):
            os.killpg(self._child.pid, signal.SIGTSTP)
        signal.signal(sent, signal.SIG_DFL)
        os.kill(os.getpid(), sent)
        signal.signal(sent, self._on_suspend)
        with suppress(OSError):
            os.killpg(self._child.pid, signal.SIGCONT)


_SAVE, _RESTORE = "\x1b7\x1b[0m", "\x1b8"
_LINE_MODE = termios.ICANON | termios.ECHO
_LEAST_ROWS_LEFT, _LEAST_COLUMNS = 8, 60


class BottomLines:
    """So many rows of the terminal behind a file descriptor.

    lines = BottomLines(sys.stderr.fileno(), 2)
    lines.show(["recording", "step 5"])
    lines.close()
    """

    def __init__(self, terminal: int, rows: int) -> None:
        self._terminal = terminal
        self._rows = rows
        self._size: os.terminal_size | None = None  # of the terminal whose bottom is taken

    @property
    def columns(self) -> int:
        """The length of a line; 0 where nothing can be shown now."""
        try:
            size = os.get_terminal_size(self._terminal)
            free = os.tcgetpgrp(self._terminal) == os.getpgrp()
            mode = termios.tcgetattr(self._terminal)[3]
        except (OSError, termios.error):
            return 0
        if not free or size.lines < self._rows + _LEAST_ROWS_LEFT or size.columns < _LEAST_COLUMNS:
            self.close()
            return 0
        # The last column is left alone: some terminals begin a new row behind it.
        return size.columns - 1 if mode & _LINE_MODE == _LINE_MODE else 0

    def show(self, lines: Sequence[str]) -> None:
        """Draws the lines, no longer than `columns`, over those that are there."""
        size = os.get_terminal_size(self._terminal)
        if size != self._size:
            self.close()
        first = size.lines - self._rows + 1
        begin = ""
        if self._size is None:  # what stands at the bottom moves up
            begin = "\n" * self._rows + f"\x1b[{self._rows}A"
        rows = [*lines, *[""] * self._rows][: self._rows]
        drawn = "".join(f"\x1b[{first + at};1H\x1b[2K{line}" for at, line in enumerate(rows))
        self._size = size
        # To set the rows that scroll moves the cursor: it is saved before.
        self._write(f"{begin}{_SAVE}\x1b[1;{first - 1}r{drawn}\x1b[0m{_RESTORE}")

    def close(self) -> None:
        """Gives the rows back, empty; the cursor stays where it is."""
        if self._size is None:
            return
        first = self._size.lines - self._rows + 1
        self._size = None
        cleared = "".join(f"\x1b[{first + at};1H\x1b[2K" for at in range(self._rows))
        with suppress(OSError):  # the terminal may be gone
            self._write(f"{_SAVE}\x1b[r{cleared}{_RESTORE}")

    def _write(self, text: str) -> None:
        os.write(self._terminal, text.encode("utf-8", "replace"))
