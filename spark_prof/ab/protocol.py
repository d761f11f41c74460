"""A run of `spark-prof ab`, from what was asked to the result."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from spark_prof.ab.command import EngineCommand
from spark_prof.ab.memory_check import free_bytes, room_for
from spark_prof.ab.one_engine import run_one_engine
from spark_prof.ab.result import Result, SideFacts
from spark_prof.ab.setting import Keeper, Options, Setting
from spark_prof.ab.sides import Mode, Side, choose_mode
from spark_prof.ab.two_engines import run_two_engines
from spark_prof.errors import CommandError
from spark_prof.profiler.record import terminated_as_interrupt
from spark_prof.redact import redacted, redacted_value
from spark_prof.swaps.spec import format_swaps
from spark_prof.traces.claim import Claim


def run_ab(
    command: EngineCommand,
    a: Side,
    b: Side,
    asked: str,
    options: Options,
    words: Sequence[str],
    say: Callable[[str], None],
    draw: Callable[[Result], str],
) -> Result:
    """Measures both sides. What was found before a failure is kept, with the failure's line.

    Raises:
        CommandError: the sides or the folder cannot be; nothing was started.
        KeyboardInterrupt: after what was found has been kept.
    """
    mode, lines = _with_room(choose_mode(asked, a, b), asked, command, a, b)
    with Claim(options.folder):
        keeper = Keeper(options.folder, _empty(command, a, b, mode, words), draw)
        for line in lines:
            keeper.miss(line)
        say(f"{'one engine' if mode.one else 'two engines'}: {mode.why}")
        setting = Setting(command, a, b, options, keeper, say)
        try:
            with terminated_as_interrupt():
                (run_one_engine if mode.one else run_two_engines)(setting)
            keeper.set(finished=True)
        except CommandError as error:
            keeper.set(failure=str(error))
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt)
            keeper.set(failure="it was stopped" if stopped else f"{type(error).__name__}: {error}")
            raise
        finally:
            keeper.write_page()
    return keeper.result


def _with_room(
    mode: Mode, asked: str, command: EngineCommand, a: Side, b: Side
) -> tuple[Mode, tuple[str, ...]]:
    """The mode that memory allows, and what could not be checked."""
    if not mode.one:
        return mode, ()
    room = room_for(command, a, b, free_bytes())
    if room.fits is None:
        return mode, (room.line,)
    if room.fits:
        return mode, ()
    if asked == "one":
        raise CommandError(f"--mode one: {room.line}; leave --mode out, or swap fewer slots")
    return Mode(False, room.line), ()


def _empty(command: EngineCommand, a: Side, b: Side, mode: Mode, words: Sequence[str]) -> Result:
    versions = {"python": platform.python_version()}
    try:
        versions["spark_prof"] = version("spark-prof")
    except PackageNotFoundError:
        versions["spark_prof"] = "of a checkout"
    return Result(
        model=command.model,
        mode="one engine" if mode.one else "two engines",
        mode_why=mode.why,
        command=tuple(redacted(["spark-prof", *words])),
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        sides=(_facts("a", a, command), _facts("b", b, command)),
        versions=versions,
    )


def _facts(name: Literal["a", "b"], side: Side, command: EngineCommand) -> SideFacts:
    return SideFacts(
        side=name,
        name=side.name,
        swaps=format_swaps(side.swaps),
        arguments=tuple(redacted([*command.arguments, *side.options])),
        environment=redacted_value(dict(side.environment)),
        notes=side.notes,
    )
