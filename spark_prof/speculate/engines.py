"""The engines of a run: started, alive together as far as that was asked for, and ended."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from spark_prof.ab.command import EngineCommand
from spark_prof.ab.engine_options import set_options, with_options
from spark_prof.ab.engine_process import Engine
from spark_prof.ab.loading import FIXED_CACHE
from spark_prof.ab.machine import free_bytes
from spark_prof.ab.messages import Facts, Start
from spark_prof.errors import CommandError
from spark_prof.profiler.draft_steps import ENVIRONMENT
from spark_prof.speculate.measuring import LiveDrafts
from spark_prof.speculate.plan import SpeculateOptions, Variant

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
        shared = self._with_share(arguments)
        few = () if as_served else self._few_graphs(variants)
        engines = [self._launched(variant) for variant in variants]
        facts: dict[int, Facts] = {}
        failures: dict[int, CommandError] = {}

        def build(at: int) -> None:
            begin = time.monotonic()
            request = Start(
                self._command.form,
                with_options(shared, few),
                drafts=variants[at].drafts,
                as_served=as_served,
            )
            try:
                facts[at] = engines[at].ask(request, Facts, f"starting {variants[at].words}")
            except CommandError as error:
                failures[at] = error
            self.start_seconds = max(self.start_seconds, time.monotonic() - begin)

        if FIXED_CACHE in set_options(self._command.arguments) and len(variants) > 1:
            self._say(f"starting {len(variants)} engines at the same time")
            threads = [
                threading.Thread(target=build, args=(at,), daemon=True)
                for at in range(len(variants))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        else:
            for at, variant in enumerate(variants):
                self._say(f"starting {variant.words}")
                build(at)
                if failures:
                    break
        if failures:
            self.alone = 0 not in failures
            raise next(iter(failures.values()))
        self.started += len(variants)
        return [
            LiveDrafts(variant, engine, facts[at])
            for at, (variant, engine) in enumerate(zip(variants, engines, strict=True))
        ]

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
        many, names = self._options.at_once, set_options(arguments)
        if many < 2:
            return tuple(arguments)
        if FIXED_CACHE in names:
            # Then the share only says what has to be free when an engine starts.
            return with_options(arguments, [] if _SHARE in names else [_SHARE, _LEAST_SHARE])
        try:
            share = float(names.get(_SHARE, _ALL_SHARE))
        except ValueError:
            return tuple(arguments)  # vLLM says what is wrong with it
        return with_options(arguments, [_SHARE, f"{share / many:.3f}"])

    def _few_graphs(self, variants: Sequence[Variant]) -> tuple[str, ...]:
        """CUDA graphs of what is measured alone, where nobody said which.

        An engine of one number of drafts has them for as many requests as vLLM's own list has; one
        of several has that list for the first of them only, and would round up the others.
        """
        names = set_options(self._command.arguments)
        if free_bytes() is None or any(_GRAPHS.search(name) for name in names):
            return ()
        counts = {0}.union(*(variant.drafts for variant in variants))
        sizes = {padded(many) * (1 + k) for many in self._options.batch_sizes for k in counts}
        return ("--cudagraph-capture-sizes", *map(str, sorted(sizes)))


def padded(requests: int) -> int:
    """The requests of the CUDA graph that vLLM runs for so many, by its own list."""
    few = next((many for many in (1, 2, 4) if many >= requests), 0)
    step = 8 if requests <= 248 else 16
    return few or -(-requests // step) * step
