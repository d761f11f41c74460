"""Ends a command on Ctrl-C, SIGTERM or SIGHUP, whatever blocks it: nothing of it is left.

A signal becomes an exception, which unwinds the command. Python delivers it only between two of its
own instructions: what waits in a library for long is interrupted by a thread where the library can
be, and after `_GRACE_SECONDS` that thread ends the process itself. Temporary files are known by
name before they are made, so that they are removed even where a signal cuts their removal short.
This module runs inside vLLM's workers too and needs only the standard library there.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

_GRACE_SECONDS = 3.0  # how long a command may take to unwind

_CHILD_SECONDS = 1.0  # how long its child processes may take to end

_ATTEMPTS = 50


class TerminatedError(BaseException):
    """SIGTERM or SIGHUP came; no handler of Exception may take it."""


@dataclass
class _EndingState:
    """What the process has to undo, and how far it is with ending."""

    temporary: set[Path] = field(default_factory=set)
    interrupts: list[Callable[[], object]] = field(default_factory=list)
    unhurried: int = 0
    received: int = 0  # the signal that ends the command; 0 while none came


_state = _EndingState()


@contextmanager
def temporary_folder(prefix: str = "spark-prof-", parent: Path | None = None) -> Iterator[Path]:
    """A new folder for this user alone, by default among the temporary files; gone afterwards."""
    name = f"{prefix}{os.urandom(8).hex()}"
    with removed_afterwards((parent or Path(tempfile.gettempdir())) / name) as path:
        path.mkdir(0o700)
        yield path


@contextmanager
def removed_afterwards(path: Path) -> Iterator[Path]:
    """Removes the file or folder of that name afterwards, if there is one."""
    _state.temporary.add(path)
    try:
        yield path
    finally:
        _remove(path)
        _state.temporary.discard(path)


@contextmanager
def interrupted_by(interrupt: Callable[[], object]) -> Iterator[None]:
    """Calls the function, in a thread, where a signal ends the command meanwhile."""
    _state.interrupts.append(interrupt)
    try:
        yield
    finally:
        _state.interrupts.remove(interrupt)


@contextmanager
def unhurried() -> Iterator[None]:
    """Lets what needs its time to end, such as an engine, have it; every signal raises here."""
    _state.unhurried += 1
    try:
        yield
    finally:
        _state.unhurried -= 1


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raises KeyboardInterrupt or TerminatedError at the first SIGINT, SIGTERM or SIGHUP.

    After one of them, when the command has unwound, no temporary file and no child process is left.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _state.received = 0
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(reader, ended), daemon=True)
    before = {
        sent: signal.signal(sent, _on_signal)
        for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(sent) is not signal.SIG_IGN  # of a job in the background, of nohup
    }
    earlier = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watcher.start()
    try:
        yield
    finally:
        if _state.received:
            leave_nothing()
        ended.set()
        signal.set_wakeup_fd(earlier)
        os.close(writer)
        for sent, handler in before.items():
            signal.signal(sent, handler)


def stopped_with() -> int:
    """The exit code that tells which signal ended the command; 0 while none did."""
    return 128 + _state.received if _state.received else 0


def end_at_once() -> None:
    """Ends the process if a signal did the command, before a library complains of being cut short.

    Nothing is left of the command by then.
    """
    if code := stopped_with():
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _on_signal(sent: int, frame: FrameType | None) -> None:
    # One exception unwinds; a second one would cut short what the first one has cleaned up.
    if not _state.unhurried:
        if _state.received:
            return
        _state.received = sent
        if _imports(frame):
            with suppress(Exception):  # psutil itself may be half imported
                leave_nothing()
            _end_process(sent)
    raise KeyboardInterrupt if sent == signal.SIGINT else TerminatedError


def _imports(frame: FrameType | None) -> bool:
    """Whether it is part of an import: C code there prints an exception and raises another."""
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def _end_process(sent: int) -> None:
    with suppress(OSError):
        os.write(2, b"spark-prof: stopped\n")
    os._exit(128 + sent)


def _watch(reader: int, ended: threading.Event) -> None:
    """Gets the number of each signal at once, also while the main thread is in a library."""
    while received := os.read(reader, 1):
        sent = received[0]
        if signal.getsignal(sent) is not _on_signal or _state.unhurried:
            continue
        for interrupt in list(_state.interrupts):
            with suppress(Exception):
                interrupt()
        while not ended.wait(_GRACE_SECONDS):
            if not _state.unhurried:
                leave_nothing()
                if not ended.is_set():
                    _end_process(sent)
    os.close(reader)


def leave_nothing() -> None:
    """Ends all child processes and removes all temporary files."""
    _end_children()
    for _ in range(_ATTEMPTS):  # a library's thread may still be writing
        left = [path for path in list(_state.temporary) if os.path.lexists(path)]
        for path in left:
            _remove(path)
        if not left:
            return
        time.sleep(0.02)


def _end_children() -> None:
    import psutil

    with suppress(psutil.Error):
        until = time.monotonic() + _CHILD_SECONDS
        for _ in range(_ATTEMPTS):  # the main thread may still be starting some
            children = psutil.Process().children(recursive=True)
            if not children:
                return
            for child in children:
                with suppress(psutil.Error):
                    (child.terminate if time.monotonic() < until else child.kill)()
            psutil.wait_procs(children, max(0.1, until - time.monotonic()))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)
