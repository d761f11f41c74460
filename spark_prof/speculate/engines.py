"""The engines of a run: started, alive together as far as that was asked for, and ended."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from spark_prof.ab.command import EngineCommand
from spark_prof.ab.engine_options import set_options, with_options
from spark_prof.ab.engine_process import Engine
from spark_prof.ab.loading import FIXED_CACHE, loading
from spark_prof.ab.machine import free_bytes
from spark_prof.ab.messages import Facts, Start
from spark_prof.ab.setting import Keeper
from spark_prof.profiler.draft_steps import ENVIRONMENT
from spark_prof.speculate.measuring import LiveDrafts
from spark_prof.speculate.plan import SpeculateOptions, Variant
from spark_prof.speculate.speculate_result import SpeculateResult

_SHARE = "--gpu-memory-utilization"
_ALL_SHARE = 0.9
_LEAST_SHARE = "0.05"
_GRAPHS = re.compile(r"cudagraph|enforce-eager|compilation-config|performance-mode")


class DraftEngines:
    """Starts engines and ends them all; a context manager."""

    def __init__(
        self,
        command: EngineCommand,
        options: SpeculateOptions,
        deadline: float,
        say: Callable[[str], None],
    ) -> None:
        self._command, self._options, self._deadline, self._say = command, options, deadline, say
        self._stack = ExitStack()
        self._count = 0
        self.start_seconds = 0.0  # the longest start
        self.started = 0
        self.alone = False  # the start that failed had another engine beside it, which did not

    def __enter__(self) -> DraftEngines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def one_at_a_time(self) -> None:
        """Gives each further engine all of the memory."""
        self._options = replace(self._options, at_once=1)

    def close(self) -> None:
        """Ends every engine."""
        self._stack.close()

    def start(
        self, variants: Sequence[Variant], arguments: Sequence[str], *, as_served: bool = False
    ) -> list[LiveDrafts]:
        """Engines that are alive together, beside those that are.

        Where vLLM is told how much memory the KV cache takes, they are started at the same time:
        else it measures what is free, and another engine's start would be in it.
        """
        few = () if as_served else self._few_graphs(variants)
        words = with_options(self._with_share(arguments), few)
        at_once = FIXED_CACHE in set_options(self._command.arguments) and len(variants) > 1
        engines = [self._launched(variant) for variant in variants]

        def load(engine: Engine, variant: Variant) -> Facts:
            if not at_once:
                self._say(f"starting {variant.words}")
            begin = time.monotonic()
            request = Start(self._command.form, words, drafts=variant.drafts, as_served=as_served)
            facts = engine.ask(request, Facts, f"starting {variant.words}")
            self.start_seconds = max(self.start_seconds, time.monotonic() - begin)
            return facts

        if at_once:
            self._say(f"starting {len(variants)} engines at the same time")
        loads = [partial(load, *pair) for pair in zip(engines, variants, strict=True)]
        lives: list[LiveDrafts] = []
        with loading(loads, at_once=at_once) as all_facts:
            for variant, engine, facts in zip(variants, engines, all_facts, strict=True):
                self.alone = bool(lives)
                lives.append(LiveDrafts(variant, engine, facts()))
        self.started += len(lives)
        return lives

    def end(self, lives: Sequence[LiveDrafts]) -> None:
        """Ends some of the engines."""
        for live in lives:
            live.engine.__exit__()

    def _launched(self, variant: Variant) -> Engine:
        self._count += 1
        log = self._options.folder.absolute() / f"engine-{self._count}-{variant.name}.log"
        engine = Engine(
            self._command, {ENVIRONMENT: "1"}, log, self._options.timeout, until=self._deadline
        )
        return self._stack.enter_context(engine)

    def _with_share(self, arguments: Sequence[str]) -> tuple[str, ...]:
        """Each of several engines gets its share of the GPU's memory, if nobody said how much."""
        engine_count, names = self._options.at_once, set_options(arguments)
        if engine_count < 2:
            return tuple(arguments)
        if FIXED_CACHE in names:
            # Then the share only says what has to be free when an engine starts.
            return with_options(arguments, [] if _SHARE in names else [_SHARE, _LEAST_SHARE])
        try:
            share = float(names.get(_SHARE, _ALL_SHARE))
        except ValueError:
            return tuple(arguments)  # vLLM says what is wrong with it
        return with_options(arguments, [_SHARE, f"{share / engine_count:.3f}"])

    def _few_graphs(self, variants: Sequence[Variant]) -> tuple[str, ...]:
        """CUDA graphs of what is measured alone, where nobody said which.

        An engine of one number of drafts has them for as many requests as vLLM's own list has; one
        of several has that list for the first of them only, and would round up the others.
        """
        names = set_options(self._command.arguments)
        if free_bytes() is None or any(_GRAPHS.search(name) for name in names):
            return ()
        counts = {0}.union(*(variant.drafts for variant in variants))
        sizes = {
            padded(batch_size) * (1 + k) for batch_size in self._options.batch_sizes for k in counts
        }
        return ("--cudagraph-capture-sizes", *map(str, sorted(sizes)))


def padded(requests: int) -> int:
    """The requests of the CUDA graph that vLLM runs for so many, by its own list."""
    few = next((size for size in (1, 2, 4) if size >= requests), 0)
    step = 8 if requests <= 248 else 16
    return few or -(-requests // step) * step


@dataclass(frozen=True)
class SpeculateRun:
    """A run: what its parts share."""

    command: EngineCommand
    config: dict[str, Any]  # of its drafter
    options: SpeculateOptions
    keeper: Keeper[SpeculateResult]
    engines: DraftEngines
    deadline: float  # of `time.monotonic`
    say: Callable[[str], None]
