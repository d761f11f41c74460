"""Follows a recording from outside: reads what the recorded processes say about themselves."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import struct
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from math import prod
from pathlib import Path
from typing import Any, Protocol

from spark_prof.errors import CommandError
from spark_prof.profiler.alive import ask_to_end
from spark_prof.profiler.control import STOP_FILE
from spark_prof.profiler.window import RecordingState
from spark_prof.traces.chunk_files import is_at_work, json_files, json_object, log_lines
from spark_prof.traces.chunks import REFUSED_FILE, pid_namespace, progress_name, read_counts

_REPEAT_SECONDS, _PATIENT_SECONDS = 10.0, 60.0
_ASKED_SECONDS = 2.0
_POLL_SECONDS = 0.1
_ENGINE_SECONDS = 5.0
_STARTING = "waiting for the command to start vLLM"

LEAST_DISK = 32 << 20  # free bytes with which a recording ends: its last pieces need some

_PIDFD_GET_INFO, _PIDFD_INFO_EXIT = 0xC040FF0B, 1 << 3
"""Of linux/pidfd.h, since Linux 6.15."""


class Screen(Protocol):
    """Where a recording is shown while it goes on, beside the lines that are said."""

    def show(self, state: str) -> bool:
        """Shows the state and what is known of the run; False where that cannot be seen now."""

    def clear(self) -> None:
        """Clears what is shown; `show` may show it again."""

    def close(self) -> None:
        """Clears what is shown for good."""


@dataclass
class Watcher:
    """What is known about a recording that others make."""

    pieces: Path
    steps: int  # that were asked for, 0 for all
    say: Callable[[str], None]
    port: int = 0  # of this machine, at which a server answers once it is up; 0 where none will
    attached: bool = False  # to a server that was up before
    screen: Screen | None = None
    _up: bool = False
    _asked_at: float = 0.0
    _watched: dict[str, int] = field(default_factory=dict)
    _pids: dict[str, int] = field(default_factory=dict)
    _code: int = 0
    _ends: dict[str, str] = field(default_factory=dict)
    _line: str = ""
    _said_kind: str = ""
    _said_at: float = field(default_factory=time.monotonic)

    def refused(self) -> str:
        """Why nothing will come; empty as long as it may."""
        return str(json_object(self.pieces / REFUSED_FILE).get("reason", ""))

    def ranks(self) -> list[dict[str, Any]]:
        """The progress of every rank that has reported; on a full disk by its counts alone."""
        counted = read_counts(self.pieces)
        progress_of = {
            path.name.split(".")[0]: json_object(path)
            for path in self.pieces.glob(progress_name("rank*"))
        }
        for name, counts in counted.items():
            if name.startswith("rank") and counts.ended:
                ended = {
                    "state": RecordingState.CLOSED.name,
                    "recorded": counts.recorded,
                    "finished": True,
                }
                progress_of[name] = progress_of.get(name, {}) | ended
        return [value for _, value in sorted(progress_of.items()) if value]

    def cut_short(self) -> str:
        """What ended the recording of a process that nobody had asked to end."""
        progress_files = (*self.pieces.glob(progress_name("*")),)
        return next(
            filter(None, (str(json_object(p).get("ended") or "") for p in progress_files)), ""
        )

    def trouble(self) -> str:
        """Why the recording cannot go on: no room is left, or a process cannot record any more."""
        with suppress(OSError):
            free = shutil.disk_usage(self.pieces).free
            if free < LEAST_DISK:
                return f"only {free >> 20} MiB are free for {self.pieces.parent}"
        failed = [name for name, counts in read_counts(self.pieces).items() if counts.failed]
        if not failed:
            return ""
        lines = [line for line in log_lines(self.pieces) if line["process"] == failed[0]]
        why = str(lines[-1]["message"]) if lines else "see the server's log"
        return f"the recording of {failed[0]} failed ({why})"

    def recorded(self) -> int:
        """Steps that the slowest rank has recorded."""
        return min((int(rank.get("recorded", 0)) for rank in self.ranks()), default=0)

    def full(self) -> bool:
        """Whether every rank has recorded all the steps that were asked for."""
        return 0 < self.steps <= self.recorded()

    def all_finished(self) -> bool:
        """Whether every rank that writes here has written its last piece."""
        ranks = self.ranks()
        facts = json_files(self.pieces, "rank*.facts.json")
        sizes = [value.get("parallel", {}) for value in facts]
        expected = max((prod(size.values()) for size in sizes), default=1)
        if any(map(_on_hosts, facts)):
            # The others may write on other hosts: those that will write here have by now.
            expected = 1
        # Replicas of a dense model are engines of their own: each knows of itself alone.
        expected = max(expected, len(facts))
        return len(ranks) >= expected and all(rank.get("finished") for rank in ranks)

    def show(self) -> None:
        """Says where the recording stands, when that changed or some time has passed."""
        ranks = self.ranks()
        state, trouble = None, ""
        if not ranks:
            line = "waiting for the server to begin" if self.attached else _STARTING
        else:
            order = list(RecordingState)
            state = min((RecordingState[rank["state"]] for rank in ranks), key=order.index)
            line = state.value
            if state is RecordingState.WAITING and self.attached:
                line = "waiting for the first step: send the server requests"
            elif state is RecordingState.WAITING and self._is_up():
                line = f"the server is up: send it requests (port {self.port})"
            elif state is RecordingState.WAITING and self.port:
                line = "the server is not up yet"
            if state is RecordingState.RECORDING:
                line += f" step {self.recorded()}" + (f" of {self.steps}" if self.steps else "")
        if ranks and (trouble := self.trouble()):
            line = trouble
        now = time.monotonic()
        # Of lines that tell the number of steps not each is new.
        recording = state is RecordingState.RECORDING and line != trouble
        kind = RecordingState.RECORDING.value if recording else line
        if recording and self.screen and self.screen.show(line) and kind == self._said_kind:
            return
        if (
            kind != self._said_kind
            or (line != self._line and now - self._said_at > _REPEAT_SECONDS / 5)
            or (now - self._said_at > (_REPEAT_SECONDS if recording else _PATIENT_SECONDS))
        ):
            self.say(line)
            self._line, self._said_kind, self._said_at = line, kind, now

    def _is_up(self) -> bool:
        """Whether the server answers; asked every other second, and no more once it has."""
        now = time.monotonic()
        if self.port and not self._up and now - self._asked_at > _ASKED_SECONDS:
            self._asked_at = now
            connection = HTTPConnection("127.0.0.1", self.port, timeout=0.5)
            with suppress(OSError, HTTPException), closing(connection):
                connection.request("GET", "/health")
                self._up = connection.getresponse().status == 200
        return self._up

    def settled(self) -> bool:
        """Whether no recorded process is left that could still write something.

        vLLM's main process may end before its workers have flushed their last piece.
        """
        return not any(is_at_work(path) for path in self.pieces.glob("*.progress.json"))

    def broken(self) -> bool:
        """Whether a rank ended without having written its last piece."""
        self._look_after_processes()
        return any(name.startswith("rank") and how for name, how in self._ends.items())

    def ends(self) -> dict[str, str]:
        """How processes ended that did not say so themselves, by name, as far as that was seen."""
        self._look_after_processes()
        late = {
            name: f"process {pid} had not written them when the bundle was made"
            for name, pid in self._pids.items()
            if name in self._watched and not self._finished(name)
        }
        ends = late | {name: how for name, how in self._ends.items() if how}
        if self._code:
            unseen = {path.name.split(".")[0] for path in self.pieces.glob("*.facts.json")}
            how = f"its command {how_it_ended(self._code)}"  # in a container, say
            ends |= {n: how for n in unseen - set(ends) if not self._finished(n)}
        return ends

    def ended(self, pid: int, code: int) -> None:
        """Takes in the exit code of the command, which the caller has waited for."""
        self._look_after_processes()
        self._code = code
        for name, process_id in self._pids.items():
            if process_id == pid:
                self._ends[name] = self._how(name, pid, code)

    def clear(self) -> None:
        """Takes the screen away, for as long as it is not shown again."""
        if self.screen:
            self.screen.clear()

    def stop(self) -> None:
        """Asks every recorded process to write what it has."""
        if self.screen:
            self.screen.close()
        ask_to_end(self.pieces)
        with suppress(OSError):
            (self.pieces / STOP_FILE).touch()

    def wait(self, finished: Callable[[], bool], seconds: float) -> bool:
        """Waits for a condition; False when it did not come true in that time."""
        end = time.monotonic() + seconds
        while not finished():
            if time.monotonic() > end:
                return False
            self._look_after_processes(_POLL_SECONDS)
        return True

    def wait_for_engine(self, seconds: float = _ENGINE_SECONDS) -> None:
        """Waits for the scheduler's last rows, which come up to a second after the ranks'."""
        engines = [path.name.split(".")[0] for path in self.pieces.glob("engine*.facts.json")]
        self.wait(lambda: all(map(self._finished, engines)), seconds)

    def check(self) -> None:
        """Raises CommandError when a recorded process has said that it cannot be recorded."""
        if reason := self.refused():
            raise CommandError(f"cannot record: {reason}")

    def _look_after_processes(self, seconds: float = 0.0) -> None:
        """Sees how recorded processes of this host end, for so long: soon nobody can tell."""
        for path in self.pieces.glob("*.facts.json"):
            name = path.name.split(".")[0]
            if name not in self._watched and name not in self._ends:
                facts = json_object(path)
                pid = facts.get("pid")
                self._ends[name] = ""  # of another host or container, unless
                if facts.get("pid_namespace") == pid_namespace() and isinstance(pid, int):
                    self._pids[name] = pid
                    try:
                        self._watched[name] = os.pidfd_open(pid)
                        del self._ends[name]
                    except ProcessLookupError:
                        self._ends[name] = self._how(name, pid, None)
                    except (OSError, OverflowError):
                        pass  # its end will not be seen
        names = {descriptor: name for name, descriptor in self._watched.items()}
        if not names:
            time.sleep(seconds)
            return
        poll = select.poll()
        for descriptor in names:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(1000 * seconds):
            name = names[descriptor]
            code = _exit_code(descriptor, self._pids[name])
            os.close(self._watched.pop(name))
            self._ends[name] = self._how(name, self._pids[name], code)

    def _how(self, name: str, pid: int, code: int | None) -> str:
        # One that has written everything may end as it likes.
        return "" if self._finished(name) else f"process {pid} {how_it_ended(code)}"

    def __del__(self) -> None:
        for descriptor in self._watched.values():
            os.close(descriptor)

    def _finished(self, name: str) -> bool:
        counts = read_counts(self.pieces).get(name)
        finished = bool(json_object(self.pieces / progress_name(name)).get("finished"))
        return finished or (counts is not None and counts.ended)


def how_it_ended(code: int | None) -> str:
    """What is said of a process with that exit code, negative for a signal."""
    if code is None:
        return "ended without a word"
    if code >= 0:
        return f"ended with exit code {code}"
    named = {number.value: f" ({number.name})" for number in signal.Signals}
    return f"was killed by signal {-code}{named.get(-code, '')}"


def _exit_code(descriptor: int, pid: int) -> int | None:
    """The exit code of a process that has ended, negative for a signal; None where unknown."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        if fields[0] == "Z":
            return os.waitstatus_to_exitcode(int(fields[49]))  # exit_code in proc(5)
    with suppress(OSError, ValueError):  # its parent has asked already
        info = bytearray(struct.pack("Q56x", _PIDFD_INFO_EXIT))
        fcntl.ioctl(descriptor, _PIDFD_GET_INFO, info)
        if struct.unpack_from("Q", info)[0] & _PIDFD_INFO_EXIT:
            return os.waitstatus_to_exitcode(struct.unpack_from("i", info, 60)[0])
    return None


def _on_hosts(facts: dict[str, Any]) -> bool:
    """Whether other hosts may have ranks: with Ray, or with vLLM's own --nnodes."""
    parallel = facts.get("engine_config", {}).get("parallel_config", {})
    nodes = str(parallel.get("nnodes", 1))
    return (
        nodes not in ("1", "None")
        or "ray" in str(parallel.get("distributed_executor_backend")).lower()
    )
