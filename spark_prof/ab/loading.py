"""Loads the engines of a run that gives each side engines of its own: in turn, or all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from spark_prof.ab.command import EngineCommand
from spark_prof.ab.engine_options import with_options
from spark_prof.ab.engine_process import Engine, failed_allocations
from spark_prof.ab.messages import Check, Facts, RankAnswers
from spark_prof.ab.setting import AbRun
from spark_prof.ab.sides import Side
from spark_prof.errors import CommandError
from spark_prof.profiler.commands import option_value
from spark_prof.swaps.swap_settings import SwapSettings

ALONE = "a"
"""The name that the swaps of an engine with one side have in it."""

FIXED_CACHE = "--kv-cache-memory-bytes"
"""With it vLLM does not measure free memory, so that engines may start at the same time."""


def refuse_at_once(command: EngineCommand, sides: Sequence[Side]) -> None:
    """Raises CommandError where engines would measure free memory while others load.

    With a fixed size of the KV cache vLLM does not measure it.
    """
    for side in sides:
        arguments = with_options(command.arguments, side.options)
        if option_value(arguments, FIXED_CACHE) is None:
            raise CommandError(
                f"--at-once: give vLLM {FIXED_CACHE} (such as {FIXED_CACHE} 4294967296), because "
                "each engine would measure free memory while the others load"
            )


@contextmanager
def loading(
    loads: Sequence[Callable[[], Facts]], *, at_once: bool
) -> Iterator[list[Callable[[], Facts]]]:
    """Functions that return the facts of each engine, once it has loaded.

    At once all load now, a thread each; else each loads when it is asked for. Threads end with
    their engines, whose questions then fail.
    """
    if not at_once:
        yield list(loads)
        return
    pool = ThreadPoolExecutor(max(len(loads), 1))
    try:
        yield [pool.submit(load).result for load in loads]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@dataclass
class Loading:
    """The engines of a run, one a start."""

    setting: AbRun
    sides: Sequence[str]  # "a" or "b", one a start
    _loaded: dict[int, tuple[Engine, Callable[[], Facts]]] = field(default_factory=dict)
    _tried: set[int] = field(default_factory=set)

    @contextmanager
    def all(self) -> Iterator[None]:
        """Loads every engine now where that was asked for; ends those that were never used.

        The block begins when the last has loaded or failed: one that still loads takes time from
        what is measured beside it.
        """
        if not self.setting.options.at_once:
            yield
            return
        with ExitStack() as stack:
            numbers = range(len(self.sides))
            engines = [stack.enter_context(self._engine(number)) for number in numbers]
            loads = [partial(self._load, engine, at) for at, engine in enumerate(engines)]
            facts = stack.enter_context(loading(loads, at_once=True))
            self._loaded |= dict(enumerate(zip(engines, facts, strict=True)))
            for engine_facts in facts:
                with suppress(CommandError):  # which is raised again when its turn comes
                    engine_facts()
            yield

    @contextmanager
    def one(self, number: int) -> Iterator[tuple[Engine, Facts]]:
        """The engine of a start when it has loaded; it ends with the block."""
        if number in self._loaded:
            engine, facts = self._loaded.pop(number)
            try:
                if loaded := self._beside_others(number, facts):
                    self._tell_full_memory(number, engine)
                    yield engine, loaded
                    return
            finally:
                engine.__exit__(None, None, None)
        with self._engine(number) as engine:
            yield engine, self._load(engine, number)

    def _beside_others(self, number: int, facts: Callable[[], Facts]) -> Facts | None:
        """The facts of an engine that loaded at the same time; None where that failed.

        Engines that compile the same kernels at the same time may fail where one alone does not.
        """
        try:
            return facts()
        except CommandError as error:
            self.setting.say(f"engine {number + 1} did not load beside the others: {error}")
            return None

    def _tell_full_memory(self, number: int, engine: Engine) -> None:
        """Says where a side may be slower than alone.

        vLLM tries kernels while it loads; one that finds no memory loses to a slower one.
        """
        if count := failed_allocations(engine.log):
            times = "once" if count == 1 else f"{count:,} times"
            self.setting.keeper.miss(
                f"engine {number + 1} ({self.sides[number]}) found the GPU's memory full {times} "
                "while it loaded beside the others, and may have chosen slower kernels than alone: "
                "its side's times may be too long; run it without --at-once"
            )

    def _engine(self, number: int) -> Engine:
        name = self.sides[number]
        side = self.setting.a if name == "a" else self.setting.b
        swaps = SwapSettings({ALONE: side.swaps})
        again = "-again" if number in self._tried else ""
        self._tried.add(number)
        return self.setting.engine(side, swaps, f"engine-{number + 1}-{name}{again}.log")

    def _load(self, engine: Engine, number: int) -> Facts:
        """Loads the model; before the first start also reads the arguments of side b."""
        if number == 0:
            command, b = self.setting.command, self.setting.b
            check = Check(command.form, with_options(command.arguments, b.options))
            engine.ask(check, RankAnswers, "reading the arguments of side b")
        return engine.start()
