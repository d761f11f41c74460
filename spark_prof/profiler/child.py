"""A command as a child process in a process group of its own: its start and its end."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import psutil

from spark_prof.errors import os_errors
from spark_prof.profiler.interrupts import Patience

_SLICE_SECONDS = 0.1


def start(
    argv: Sequence[str], environment: Mapping[str, str], *, session: bool = False
) -> subprocess.Popen[bytes]:
    """Starts a command that a terminal's Ctrl-C does not reach; in a session of its own if asked.

    What it writes, and how it sets up the terminal, shall not stop it in the background (SIGTTOU);
    see `Terminal` for what it reads.
    """
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN) if main else None
    try:
        with os_errors(f"cannot start {argv[0]}"):
            return subprocess.Popen(
                argv,
                env=environment,
                process_group=None if session else 0,
                start_new_session=session,
            )
    finally:
        if main:
            signal.signal(signal.SIGTTOU, before)


def descendants(pid: int) -> list[psutil.Process]:
    """The processes below one that may end before them."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def end_child(
    child: subprocess.Popen[bytes],
    patience: Patience,
    family: Sequence[psutil.Process] = (),
    send: Callable[[int], object] | None = None,
    hurried: Callable[[], int] = lambda: 0,
) -> None:
    """Ends a process with its signals, one harder than the other, and then what it left behind.

    Args:
        send: sends the process, or its group, a signal.
        hurried: a number that grows when the next signal is wanted at once.
    """
    for sent, seconds in patience.signals:
        if child.poll() is not None:
            break
        (send or child.send_signal)(sent)
        before, end = hurried(), time.monotonic() + seconds
        try:
            while child.poll() is None and time.monotonic() < end and hurried() == before:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_SLICE_SECONDS)
        except KeyboardInterrupt:
            continue
    if child.poll() is None:
        (send or child.send_signal)(signal.SIGKILL)
        child.wait()
    _, left = psutil.wait_procs(family, timeout=patience.family_s)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
