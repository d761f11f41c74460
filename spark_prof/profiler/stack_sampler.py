"""Samples the Python stacks of a recorded command with py-spy, from outside.

py-spy runs in slices of some seconds: it keeps what it saw in its memory, and whatever happens to
this process, it ends by itself. A slice in which no step was recorded is thrown away.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil

from spark_prof.errors import CommandError
from spark_prof.profiler.host_account import HostAccount
from spark_prof.profiler.py_spy_program import first_line, sampling_command
from spark_prof.profiler.ticker import Ticker
from spark_prof.profiler.window import RecordingState
from spark_prof.traces.chunk_files import json_files
from spark_prof.traces.chunks import (
    ACCOUNT_FILE,
    HOST,
    STACK_DTYPE,
    append_log,
    array_name,
    facts_name,
    pid_namespace,
    progress_name,
    stacks_name,
    write_array,
    write_json,
)
from spark_prof.traces.readers.py_spy import StackSamples, read_py_spy

RATE = 200  # samples a second
_SLICE_SECONDS = 20  # of one process and the recorder; shorter for more, as its memory grows
_LEAST_SECONDS = 3
MOST_ROWS = 4_000_000  # of all slices: a row is a sample of a thread
_POLL_SECONDS = 0.05
_ACCOUNT_SECONDS = 1.0  # between two looks at what threads used
_END_SECONDS = 20.0  # to write its file, once it was asked to end
_KILL_SECONDS = 2.0


class StackSampler:
    """py-spy beside one recorded command, in a thread of the recorder.

    StackSampler(pieces, find_py_spy()).start()

    Args:
        pieces: where the recording is written; what is sampled goes there as well.
        program: py-spy.
    """

    def __init__(self, pieces: Path, program: str) -> None:
        self._pieces, self._program = pieces, program
        self._account = HostAccount(program)
        self._stopping, self._given_up = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark-prof stacks", daemon=True)
        self._recorded: set[int] = set()  # process ids
        self._parents: set[int] = set()  # of recorded processes
        self._rows = 0
        self._slices = 0

    def start(self) -> None:
        """Begins to wait for processes that are ready for their first step."""
        self._thread.start()

    def ask_to_end(self) -> None:
        """Ends sampling, without waiting for it."""
        self._stopping.set()

    def finish(self, seconds: float) -> None:
        """Ends sampling and waits so long for what was seen; then goes on without it."""
        self._stopping.set()
        if self._thread.ident is None:
            return
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._given_up.set()
            self._thread.join(_KILL_SECONDS)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self._states():
                    self._slice()
                else:
                    self._stopping.wait(_POLL_SECONDS)
                if self._rows >= MOST_ROWS:
                    self._log(f"stacks: {MOST_ROWS:,} rows are enough; later ones are not sampled")
                    return
            if not self._slices:
                self._log("stacks: none was sampled while steps were recorded; record for longer")
        except (CommandError, OSError, ValueError, subprocess.SubprocessError) as error:
            self._log(f"stacks: {error}")

    def _states(self) -> list[str]:
        """Where each rank is; none as long as no rank is ready."""
        ranks = json_files(self._pieces, progress_name("rank*"))
        return [str(rank.get("state", "")) for rank in ranks]

    def _account_for_processes(self) -> None:
        """Looks which processes of this host are recorded by now, and at what they used.

        One that says so after a slice began was sampled from the slice's beginning.
        """
        facts = json_files(self._pieces, facts_name("*"))
        pids = (f.get("pid") for f in facts if f.get("pid_namespace") == pid_namespace())
        self._recorded |= {pid for pid in pids if isinstance(pid, int)}
        self._parents |= {parent for pid in self._recorded if (parent := _parent(pid)) > 1}
        self._account.read(sorted(self._recorded))

    def _slice(self) -> None:
        """One run of py-spy; what it saw is kept where steps were recorded meanwhile."""
        out, output = self._pieces / f"{HOST}.py-spy.json", self._pieces / f"{HOST}.py-spy.txt"
        count = len(psutil.Process().children(recursive=True)) + 1
        seconds = max(_SLICE_SECONDS // count, _LEAST_SECONDS)
        began = self._states()
        if all(state == RecordingState.CLOSED.name for state in began):
            self._stopping.wait(_POLL_SECONDS)
            return
        ticker = Ticker()
        began_ns = time.time_ns()
        argv = sampling_command(self._program, os.getpid(), RATE, seconds, out)
        with open(output, "wb") as file:
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                     process_group=0)  # fmt: skip
        try:
            ticker.start()
            code = self._wait(child, seconds)
            self._account_for_processes()
        finally:
            end(child)
            log = ticker.stop()
        states = {*began, *self._states()} - {
            RecordingState.WAITING.name,
            RecordingState.WARMING.name,
        }
        try:
            if code == -signal.SIGINT and self._stopping.is_set():
                return  # it had not begun to look
            if code:
                why = first_line(output.read_text(encoding="utf-8", errors="replace"))
                raise CommandError(f"py-spy ended with exit code {code}: {why}")
            if states and out.exists():
                try:
                    self._write(read_py_spy(out, os.getpid(), *log, began_ns))
                except CommandError as error:
                    self._log(f"stacks of {seconds} s are missing: {error}")
        finally:
            for path in (out, output):
                with suppress(OSError):
                    path.unlink()

    def _wait(self, child: subprocess.Popen[bytes], seconds: float) -> int:
        """Waits for py-spy's end, and asks for it where the recording ends; its exit code."""
        until = time.monotonic() + seconds + _END_SECONDS
        interrupted, account = False, 0.0
        while child.poll() is None:
            if time.monotonic() >= account:
                self._account_for_processes()
                account = time.monotonic() + _ACCOUNT_SECONDS
            if self._given_up.is_set() or time.monotonic() > until:
                raise CommandError("py-spy did not end in time: what it saw last is missing")
            if self._stopping.is_set() and not interrupted:
                interrupted = True
                child.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                child.wait(_POLL_SECONDS)
        return child.returncode

    def _write(self, samples: StackSamples) -> None:
        """Keeps the samples of recorded processes, and of those that started them."""
        parents = self._parents - {os.getpid(), *self._recorded}
        rows = np.zeros(len(samples.time_ns), STACK_DTYPE)
        rows["time_ns"], rows["pid"] = samples.time_ns, samples.process
        rows["thread"], rows["stack"] = samples.thread, samples.stack
        rows = rows[np.isin(rows["pid"], [*self._recorded, *parents])]
        texts = {"stacks": samples.stacks, "error_ns": samples.error_ns, "rounds": samples.rounds}
        write_json(self._pieces, stacks_name(self._slices), texts, symbols=True)
        write_array(self._pieces, array_name(HOST, "stacks", self._slices), rows)
        account = self._account.value() | {"frontends": sorted(parents)}
        write_json(self._pieces, ACCOUNT_FILE, account)
        self._rows += len(rows)
        self._slices += 1

    def _log(self, message: str) -> None:
        with suppress(OSError):  # the folder may be gone, or its disk full
            append_log(self._pieces, HOST, time.time_ns(), message)


def end(child: subprocess.Popen[bytes]) -> None:
    """Ends a child that is this process's own, if it still runs."""
    if child.poll() is None:
        child.kill()
        child.wait()


def _parent(pid: int) -> int:
    with suppress(psutil.Error):
        return int(psutil.Process(pid).ppid())
    return 0
