"""Reads the Chrome trace that `py-spy record --subprocesses` writes, with the recorder's ticks.

The file has no samples but changes: where a thread's stack is another than at the sample before,
the frames that ended and began, at a time since an unknown start. Each sample shows by the ticker
(see `profiler.ticker`): it is in another function then, which tells when the sample was taken, and
every other thread shows what it showed last. Two processes of one fork may have a thread of the
same number: py-spy then writes both stacks anew each time, which the same reading takes in.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from spark_prof.arrays import Int64s
from spark_prof.errors import CommandError

TICK_FUNCTION, TICKS = "spark_prof_tick_{:03}", 1000
"""The functions that the ticker is in, one after the other, and how many."""

LARGEST_FILE = 1 << 30

_TICK = re.compile(r"spark_prof_tick_(\d{3})")
_SAME_SAMPLE_US = 1000  # stacks of one sample are written within this, mostly within 0.1 ms
_PACKAGES = re.compile(r".*/(?:(?:site|dist)-packages|lib/python3[.\d]*t?)/(?=.)")
_VLLM = re.compile(r".*/(?=(?:vllm|spark_prof)/)")
_LONGEST_NAME, _DEEPEST = 120, 200


class _FramePlace(msgspec.Struct):
    filename: str = ""
    name: str | None = None


class _StackEvent(msgspec.Struct):
    name: str
    ph: str
    pid: int
    tid: int
    ts: int
    args: _FramePlace


@dataclass(frozen=True)
class StackSamples:
    """What threads did when they were looked at; each of `stacks` once, the root's frame first."""

    time_ns: Int64s
    process: Int64s  # process id
    thread: Int64s  # as Python numbers its threads
    stack: Int64s  # row of `stacks`
    stacks: tuple[str, ...]  # a frame a line: file:function
    error_ns: int  # of 20 samples 19 were taken at most so far from their time
    rounds: int  # how often py-spy looked


def read_py_spy(
    path: Path, recorder: int, ticker: int, entered_ns: Int64s, began_ns: int
) -> StackSamples:
    """The samples of every thread but those of the recorder, by its clock.

    Args:
        recorder: the process id of the recorder.
        ticker: the number of its thread that ticked, at `entered_ns`.
        began_ns: when py-spy was started.

    Raises:
        CommandError: the file is damaged, too large, or does not show the ticker.
    """
    changes = list(_changes(_events(path)))
    seen_us, number = [], []
    for change in changes:
        ours = change.pid == recorder and change.thread == ticker and change.stack
        if ours and (tick := _TICK.search(change.stack[-1])):
            seen_us.append(change.ts)
            number.append(int(tick[1]))
    if not seen_us or len(entered_ns) < 2:
        raise CommandError(f"{path.name} does not show the thread that tells the time")
    rounds = np.array(seen_us, np.int64)
    time_ns, error_ns = _times(rounds, np.array(number), entered_ns, began_ns)
    return _filled(
        [change for change in changes if change.pid != recorder], rounds, time_ns, error_ns
    )


def _events(path: Path) -> list[_StackEvent]:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise CommandError(f"{path.name} is larger than {LARGEST_FILE >> 20} MiB")
        return msgspec.json.decode(path.read_bytes(), type=list[_StackEvent])
    except (OSError, msgspec.DecodeError, UnicodeError) as error:
        raise CommandError(f"{path.name} is no trace of py-spy ({error})") from error


@dataclass(frozen=True)
class _StackChange:
    """The whole stack of a thread, from a time on."""

    ts: int
    pid: int
    thread: int
    stack: tuple[str, ...]


def _changes(events: list[_StackEvent]) -> Iterator[_StackChange]:
    """Replays what began and ended; an empty stack where a thread's rows end."""
    stacks: dict[int, list[str]] = {}
    threads: dict[int, int] = {}
    names: dict[tuple[str, str], str] = {}
    at: tuple[int, int, int] | None = None

    def change(ts: int, pid: int, tid: int) -> _StackChange:
        frames = stacks.get(tid, ())
        # The processes that py-spy puts above the root's frame have no file.
        return _StackChange(ts, pid, threads.get(tid, tid), tuple(f for f in frames if f))

    for event in events:
        if event.ph == "M":  # a py-spy that numbers threads anew says which they are
            number_of_thread = (event.args.name or "").partition(":")[0]
            if number_of_thread.isdecimal():
                threads[event.tid] = int(number_of_thread)
            continue
        where = event.ts, event.pid, event.tid
        if at is not None and where != at:
            yield change(*at)
        at = where
        stack = stacks.setdefault(event.tid, [])
        if event.ph == "B":
            key = event.args.filename, event.name
            stack.append(names.get(key) or names.setdefault(key, _frame(*key)))
        elif stack:
            stack.pop()
    if at is not None:
        yield change(*at)


def _frame(file: str, function: str) -> str:
    """How a frame is kept: what is no part of a package by its file's name alone."""
    if not file and function.startswith("process "):
        return ""
    short = _PACKAGES.sub("", file) if _PACKAGES.match(file) else _VLLM.sub("", file)
    if short.startswith("/") or short == file:
        short = short.rpartition("/")[2]
    parts = (part.replace("\n", " ").replace(":", ".") for part in (short, function))
    return ":".join(part[-_LONGEST_NAME:] for part in parts)


def _times(
    seen_us: Int64s, number: Int64s, entered_ns: Int64s, began_ns: int
) -> tuple[Int64s, int]:
    """When each sample was taken, and how far off 19 of 20 of these times are at most."""
    begins, ends = entered_ns[:-1], entered_ns[1:]
    usual = float(np.median(ends - begins))
    # Its clock begins soon after it was started: with half a turn that may be a turn later.
    offset = began_ns + int(usual * TICKS) // 2
    for _ in range(3):
        place = np.searchsorted(begins, offset + 1000 * seen_us) - 1
        turn = (number - place + TICKS // 2) % TICKS - TICKS // 2
        place = np.clip(place + turn, 0, len(begins) - 1)
        fits = (place % TICKS == number) & (ends[place] - begins[place] <= 2 * usual)
        fits = fits if fits.any() else np.ones(len(place), bool)
        middle = (begins[place] + ends[place]) // 2
        offset = int(np.median((middle - 1000 * seen_us)[fits]))
    estimate = offset + 1000 * seen_us
    time_ns = np.clip(estimate, begins[place], ends[place])
    spread = float(np.quantile(np.abs(estimate - middle)[fits], 0.95))
    return time_ns, int(max(spread, usual / 2))


def _filled(
    changes: list[_StackChange], rounds_us: Int64s, time_ns: Int64s, error_ns: int
) -> StackSamples:
    """A row for every thread of every round, from its first change to its end."""
    looks = rounds_us.tolist()
    stacks: dict[tuple[str, ...], int] = {}
    of_thread: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for change in changes:
        right = bisect_left(looks, change.ts)
        near = min((right - 1, right), key=lambda n: _far(looks, n, change.ts))
        if _far(looks, near, change.ts) > _SAME_SAMPLE_US:
            near = right  # of a sample that shows no new tick: what it shows holds from then on
        stack = stacks.setdefault(change.stack[:_DEEPEST], len(stacks)) if change.stack else -1
        of_thread.setdefault((change.pid, change.thread), []).append((near, stack))
    columns: list[tuple[Int64s, Int64s, int, int]] = []
    for (pid, thread), rows in of_thread.items():
        first, stack_of = (np.array(values, np.int64) for values in zip(*rows, strict=True))
        rounds = np.arange(len(looks))
        latest = np.searchsorted(np.maximum.accumulate(first), rounds, side="right") - 1
        stack_rows = np.where(latest >= 0, stack_of[latest], -1)
        columns.append((time_ns[stack_rows >= 0], stack_rows[stack_rows >= 0], pid, thread))
    none = np.zeros(0, np.int64)

    def joined(number: int) -> Int64s:
        parts = [
            part if isinstance(part := column[number], np.ndarray)
            else np.full(len(column[0]), part, np.int64)
            for column in columns
        ]  # fmt: skip
        return np.concatenate([none, *parts])

    texts = tuple("\n".join(stack) for stack in stacks)
    return StackSamples(joined(0), joined(2), joined(3), joined(1), texts, error_ns, len(looks))


def _far(looks: list[int], place: int, ts: int) -> float:
    return abs(looks[place] - ts) if 0 <= place < len(looks) else float("inf")


def frames_of(stack: str) -> list[tuple[str, str]]:
    """File and function of each frame of a stack, the root's first."""
    parts = (frame.partition(":") for frame in stack.split("\n"))
    return [(file, function) for file, _, function in parts]
