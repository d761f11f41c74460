"""Runs a command of spark-prof as a process of its own, which ends with the call that wants it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import anyio
import anyio.abc
import psutil

from spark_prof.errors import CommandError, one_line

_GRACE_SECONDS = 15.0  # for what it records to be written and its engine to end
_MOST_BYTES = 64_000_000
_MOST_LINES_KEPT = 12
_AT_A_TIME = 3

Tell = Callable[[str], Awaitable[None]]


@dataclass
class Ended:
    """What a command printed."""

    code: int | None = None  # None where enough was read before it ended
    output: bytearray = field(default_factory=bytearray)
    stderr_lines: list[str] = field(default_factory=list)  # its last ones


class CommandRuns:
    """Runs commands, a few at a time; who holds `measuring` may run one that measures."""

    def __init__(self) -> None:
        self._limit = anyio.CapacityLimiter(_AT_A_TIME)
        self.measuring = anyio.Lock()

    async def run(
        self,
        words: Sequence[str],
        seconds: float,
        *,
        most_lines: int | None = None,
        tell: Tell | None = None,
        codes: tuple[int | None, ...] = (0,),
    ) -> Ended:
        """Runs `spark-prof WORDS...`; whatever cuts it short ends the process and its children.

        Args:
            most_lines: of its output, after which it is ended.
            tell: is given each line of its stderr.
            codes: exit codes that are no error; None where it may take longer than that.
        """
        ended = Ended()
        async with self._limit:
            # -P: the folder where this server was started may hold files of anybody.
            process = await anyio.open_process(
                [sys.executable, "-P", "-m", "spark_prof.cli.main", *words],
                stdin=subprocess.DEVNULL,
            )
            try:
                with anyio.fail_after(seconds):
                    async with anyio.create_task_group() as group:
                        group.start_soon(_read_errors, process, ended, tell)
                        whole = await _read_output(process, ended, most_lines)
                        if not whole:
                            group.cancel_scope.cancel()
                    if whole:
                        ended.code = await process.wait()
                    elif len(ended.output) > _MOST_BYTES:
                        raise CommandError("the answer is too large to read; ask for less")
            except TimeoutError:
                late = f"{words[0]} was ended after {seconds:,.0f} seconds"
                if None not in codes:
                    raise CommandError(late) from None
                ended.stderr_lines.append(late)
            finally:
                with anyio.CancelScope(shield=True):
                    await _end(process)
                    await process.aclose()
        if ended.code is not None and ended.code not in codes:
            raise CommandError(
                ended.stderr_lines[-1] if ended.stderr_lines else f"exit code {ended.code}"
            )
        return ended


async def _read_output(process: anyio.abc.Process, ended: Ended, most_lines: int | None) -> bool:
    """Reads to the end, or as much as is wanted; whether it was the end."""
    assert process.stdout is not None
    lines = 0
    async for chunk in process.stdout:
        ended.output += chunk
        lines += chunk.count(b"\n")
        if len(ended.output) > _MOST_BYTES or (most_lines is not None and lines >= most_lines):
            return False
    return True


async def _read_errors(process: anyio.abc.Process, ended: Ended, tell: Tell | None) -> None:
    assert process.stderr is not None
    rest = ""
    async for chunk in process.stderr:
        *lines, rest = (rest + chunk.decode("utf-8", "replace"))[-_MOST_BYTES:].split("\n")
        for line in filter(None, map(str.strip, lines)):
            line = one_line(line.removeprefix("spark-prof: "))
            ended.stderr_lines[:] = [*ended.stderr_lines, line][-_MOST_LINES_KEPT:]
            if tell is not None:
                await tell(ended.stderr_lines[-1])


async def _end(process: anyio.abc.Process) -> None:
    """Asks it to end, and kills what is left of it and of its children."""
    if process.returncode is not None:
        return
    family: list[psutil.Process] = []
    with suppress(psutil.Error):
        family = psutil.Process(process.pid).children(recursive=True)
    with suppress(ProcessLookupError):
        process.terminate()
    with anyio.move_on_after(_GRACE_SECONDS):
        async with anyio.create_task_group() as group:
            # What it still says must not fill a pipe that nobody reads.
            group.start_soon(_read_output, process, Ended(), None)
            group.start_soon(_read_errors, process, Ended(), None)
            await process.wait()
            group.cancel_scope.cancel()
    for child in family:
        with suppress(psutil.Error):
            child.kill()
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
