"""Measures combinations on real engines: what `spark_prof.tune.search` asks for."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from spark_prof.ab.accuracy_gate import Bits, Depth, Position, judge
from spark_prof.ab.agreement import compare_logits, describe, gate_batch, keep_logits
from spark_prof.ab.command import EngineCommand
from spark_prof.ab.engine_options import set_options, with_options
from spark_prof.ab.engine_process import Engine, EngineError
from spark_prof.ab.machine import Sampler, free_bytes, keep_steady
from spark_prof.ab.measuring import MeasuredShape, impossible, time_quads
from spark_prof.ab.messages import Facts
from spark_prof.ab.recording import record_side
from spark_prof.ab.result import decided
from spark_prof.ab.statistics import CAPTURES_APART, compare
from spark_prof.ab.timed_steps import AGAIN, SETTLE, Quad, make_quads, middle_mean
from spark_prof.errors import CommandError, one_line
from spark_prof.profiler.commands import option_value
from spark_prof.profiler.draft_steps import ENVIRONMENT as LOGS_STEPS
from spark_prof.speculate.plan import OPTION
from spark_prof.swaps.progress import last_progress
from spark_prof.swaps.swap_settings import SWAPS_ENVIRONMENT, SwapSettings, format_swaps
from spark_prof.traces.bundle import Bundle
from spark_prof.tune.drafts import CommandDrafts, is_drafts
from spark_prof.tune.journal import Journal
from spark_prof.tune.tune_trial import (
    BASE,
    Answers,
    Combination,
    EngineEndedError,
    Outcome,
    Pair,
    Stage,
    Timed,
    TimeUpError,
    TuneTrial,
    side_of,
)

_MARGIN_S = 10.0
"""Kept of the minutes for ending engines and drawing the answer."""
_WARM = 0.75
"""Of what a first start takes: the next finds compiled graphs, and vLLM imported."""
_SILENT_STARTS = 3.0
_LEAST_SILENCE_S = 60.0
_START_SECONDS = 2.5  # of steps at each batch size in an engine of one side
_LONGEST_HANG_S, _SHORTEST_HANG_S = 120.0, 20.0
_LOG_TAIL = 1 << 20
_GRAPHS = re.compile("cudagraph|enforce-eager|optimization-level")
"""Options of vLLM's with which a person decides on CUDA graphs."""


@dataclass(frozen=True)
class TuneSettings:
    """What is measured, and how long that may take."""

    folder: Path
    minutes: float
    batch_sizes: tuple[int, ...]
    context: int  # tokens of each prompt
    gate_tokens: int | None = None  # as of `spark_prof.ab.setting.Options`
    text: Path | None = None
    timeout: float = 600.0  # seconds of silence
    files: tuple[Path, ...] = ()  # of this host that engines read, such as a kernel's
    drafting: CommandDrafts | None = None  # where the command has a drafter


@dataclass
class _Live:
    """An engine that runs."""

    engine: Engine
    facts: Facts
    stage: Stage
    sides: dict[Combination, str]
    shapes: tuple[MeasuredShape, ...]
    sampler: Sampler
    stack: ExitStack
    judged: dict[Combination, tuple[Outcome, str, Answers | None]] = field(default_factory=dict)
    has_floor: bool = False  # the logits of `Engines._floors["own"]` are this engine's
    quads: dict[tuple[Combination, Combination, MeasuredShape], list[Quad]] = field(
        default_factory=dict
    )
    firsts: dict[MeasuredShape, tuple[str, float]] = field(
        default_factory=dict
    )  # a side's step, us


class Engines:
    """Engines of one command, one at a time; a context manager that has ended all afterwards."""

    def __init__(
        self,
        command: EngineCommand,
        settings: TuneSettings,
        journal: Journal,
        say: Callable[[str], None],
    ) -> None:
        self._command, self._settings, self._journal, self._say = command, settings, journal, say
        self._drafting = settings.drafting
        self._deadline = time.monotonic() + 60 * settings.minutes - _MARGIN_S
        self._live: _Live | None = None
        self._spare: Engine | None = None  # a process that has imported vLLM, for the next engine
        self._count = len(list(settings.folder.glob("engine-*.log")))
        self._started: list[float] = []  # seconds that engines took from their start to their end
        self._unfinished_s = 0.0  # that one was given and had not started after
        # How far the base is from itself: of the engines without another side, and of one with.
        self._floors: dict[str, dict[MeasuredShape, tuple[Position, ...]]] = {"base": {}, "own": {}}
        self._log = Path()  # of the engine that was started last
        self.facts: Facts | None = None  # of the last engine
        self.other_load: float | None = None  # as `Sampler.others`, the most of all engines
        self.floor = 0.0
        self.batches = len(settings.batch_sizes)

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.__exit__()

    @property
    def left(self) -> float:
        """Seconds until engines are ended."""
        return self._deadline - time.monotonic()

    @property
    def start_s(self) -> float:
        """What `expected_start` says of the starts until now; of none an eighth of the minutes."""
        expected = expected_start(self._started) or 60 * self._settings.minutes / 8
        return max(expected, self._unfinished_s)

    def close(self) -> None:
        """Ends the engine that runs."""
        live, self._live = self._live, None
        if live is not None:
            if (other_load := live.sampler.other_load()) is not None:
                self.other_load = max(self.other_load or 0.0, other_load)
            live.stack.close()

    def holds(self, combination: Combination) -> bool:
        """Whether the engine that runs has it as a side."""
        return self._live is not None and combination in self._live.sides

    def together(
        self,
        stage: Stage,
        number: int,
        pairs: Sequence[Pair],
        also: Sequence[Combination],
        seconds: float,
        within: float,
    ) -> Iterator[TuneTrial]:
        """See `tune_trial.Measure`."""
        earlier_trials = {
            p: self._journal.find(stage, number, p.combination, p.than) for p in pairs
        }
        yield from filter(None, earlier_trials.values())
        waiting = [pair for pair in pairs if not earlier_trials[pair]]
        if not waiting:
            return
        needed = dict.fromkeys([c for pair in waiting for c in (pair.than, pair.combination) if c])
        with self._blaming([*needed, *also]):
            live = self._live
            if live is None or live.stage != stage or not needed.keys() <= live.sides.keys():
                live = self._begin(stage, [BASE, *dict.fromkeys([*needed, *also])], within)
            live.engine.until = min(self._deadline, time.monotonic() + within)
            for pair in waiting:
                yield self._trial(live, stage, number, pair.combination, pair.than, seconds)

    def start(
        self, stage: Stage, number: int, combinations: Sequence[Combination], within: float
    ) -> Iterator[TuneTrial]:
        """See `tune_trial.Measure`."""
        earlier_trials = [
            self._journal.find(stage, number, combination, None) for combination in combinations
        ]
        # A base whose logits are gone is started again: others are compared with them.
        if all(earlier_trials) and (
            combinations[0] or self._logits("base", self._shapes()[0]).exists()
        ):
            yield from filter(None, earlier_trials)
            return
        begun = time.monotonic()
        share = max(60 * self._settings.minutes / 4, 2 * self.start_s)
        if not self._started:
            share = within  # what a start takes is not known, and without one nothing is
        with self._blaming(combinations):
            live = self._begin(stage, combinations, min(within, share))
            for combination in combinations:
                yield self._trial(live, stage, number, combination)
            self.close()
            self._started[-1] = time.monotonic() - begun

    def record(self, folder: Path) -> tuple[Bundle | None, tuple[TuneTrial, ...]]:
        """A recording of the base, None where it cannot be recorded, and its first start."""
        with self._blaming([BASE]):
            live = self._begin("search", [BASE], self.left)
            trial = self._trial(live, "search", 0, BASE)
            self._say(f"recording the engine as it is into {folder}")
            command = self._command.text
            shape = live.shapes[0]
            bundle = None
            try:
                bundle = record_side(
                    live.engine, live.facts, "a", shape, folder, command, self._say
                )
            except CommandError as error:
                live.engine.check_alive()
                self._say(f"it was not recorded: {error}")
            self.close()
        return bundle, (trial,)

    def forget(self) -> None:
        """Removes what only further trials need."""
        for path in self._settings.folder.glob(".logits-*"):
            with suppress(OSError):
                path.unlink()

    # Engines.

    def _begin(self, stage: Stage, combinations: Sequence[Combination], within: float) -> _Live:
        """Starts an engine whose sides differ in swaps only."""
        self.close()
        first = side_of(combinations[0])
        names = ["a", *(f"c{number}" for number in range(1, len(combinations)))]
        sides = dict(zip(combinations, names, strict=True))
        hang = min(2 * self.start_s, 5 * self._settings.minutes, _LONGEST_HANG_S)
        settings = SwapSettings(
            {name: side_of(combination).swaps for combination, name in sides.items()},
            hang_seconds=max(hang, _SHORTEST_HANG_S),
        )
        options = (*first.options, *(self._few_graphs() if len(sides) > 2 else ()))
        arguments = with_options(self._command.arguments, options)
        begun = time.monotonic()
        with ExitStack() as stack:
            engine = self._launched(dict(first.environment), stack)
            self._log = engine.log
            engine.until = min(self._deadline, begun + within)
            if self._started:
                longest = max(_SILENT_STARTS * self.start_s, _LEAST_SILENCE_S)
                engine.silence = min(engine.silence, longest)
            if self._spare is None and self.left > 2 * self.start_s:
                with suppress(CommandError):
                    self._spare = self._new_engine({}).__enter__()
            try:
                variables = {SWAPS_ENVIRONMENT: settings.to_json()}
                facts = engine.start(arguments, variables, self._drafts(arguments))
            except CommandError:
                if time.monotonic() >= engine.until:
                    self._unfinished_s = max(self._unfinished_s, time.monotonic() - begun)
                raise
            self.facts = facts
            self.floor = max(self.floor, CAPTURES_APART if facts.gpu else 0.0)
            why = {shape: impossible(shape, facts) for shape in self._shapes()}
            if lines := [line for line in why.values() if line]:
                raise CommandError(lines[0])
            sampler = stack.enter_context(Sampler(facts.uuids, engine=engine.process))
            took = time.monotonic() - begun
            self._started.append(took)
            live = _Live(engine, facts, stage, sides, tuple(why), sampler, stack.pop_all())
        self._live = live
        return live

    def _drafts(self, arguments: Sequence[str]) -> tuple[int, ...] | None:
        """What `Engine.start` is told of drafts."""
        if self._drafting is None:
            return None
        return (1,) if option_value(arguments, OPTION, "-sc") else ()

    def _launched(self, environment: dict[str, str], stack: ExitStack) -> Engine:
        """A process that can hold an engine: the spare, if that has the same variables."""
        spare = self._spare
        if spare is not None and not environment:
            self._spare = None
            stack.push(spare)
            if spare.alive:
                return spare
        return stack.enter_context(self._new_engine(environment))

    def _new_engine(self, environment: dict[str, str]) -> Engine:
        self._count += 1
        log = self._settings.folder.absolute() / f"engine-{self._count}.log"
        if self._drafting is not None:
            environment = {LOGS_STEPS: "1", **environment}
        return Engine(
            self._command, environment, log, self._settings.timeout, files=self._settings.files
        )

    def _few_graphs(self) -> tuple[str, ...]:
        """CUDA graphs of the measured batch sizes alone, for an engine of many sides.

        By default a side has a hundred, which take ten seconds and a gigabyte.
        """
        command_options = set_options(self._command.arguments)
        if free_bytes() is None or any(_GRAPHS.search(name) for name in command_options):
            return ()
        sizes = map(str, sorted(self._settings.batch_sizes))
        return ("--cudagraph-capture-sizes", *sizes)

    @contextmanager
    def _blaming(self, combinations: Sequence[Combination]) -> Iterator[None]:
        """Says for whom the engine ended, and of no one where the time is up."""
        if self.left <= 0:
            raise TimeUpError
        self._log = Path()
        try:
            yield
        except CommandError as error:
            self.close()
            if self.left <= 0:
                raise TimeUpError from error
            why = one_line(error.fault if isinstance(error, EngineError) else str(error))
            doing, blamed = _blamed(self._log, combinations)
            raise EngineEndedError(f"while {doing} it {why}" if blamed else why, blamed) from error
        except BaseException:
            self.close()
            raise

    def _shapes(self) -> tuple[MeasuredShape, ...]:
        sizes = self._settings.batch_sizes
        return tuple(MeasuredShape("decode", size, self._settings.context) for size in sizes)

    def _logits(self, of: str, shape: MeasuredShape) -> Path:
        return self._settings.folder.absolute() / f".logits-{of}-{shape.requests}"

    # Trials.

    def _trial(
        self, live: _Live, stage: Stage, number: int, combination: Combination,
        than: Combination | None = None, seconds: float = _START_SECONDS,
    ) -> TuneTrial:  # fmt: skip
        """A combination over another side of the engine, or, over none, by itself."""
        begun = time.monotonic()
        outcome, why, answers = self._judged(live, combination, alone=than is None)
        times = []
        side_name = live.sides[combination]
        other = side_name if than is None else live.sides[than]
        names = (other, AGAIN if combination == than else side_name)
        for shape in live.shapes if outcome == "measured" else ():
            if than is None:
                if self._drafting is None:
                    own_us = self._own_us(live, shape, side_name, seconds)
                else:
                    own_us = self._drafting.time(live.engine, live.facts, shape, seconds)
                times.append(Timed(shape.requests, own_us, counted=1))
                continue
            counted = live.quads.setdefault((combination, than, shape), [])
            counted += _steady(live, shape, names, seconds)
            times.append(Timed.of(shape.requests, compare(counted)))
        took = time.monotonic() - begun
        return TuneTrial(
            stage, number, combination, than, outcome, why, tuple(times), answers, took
        )

    @staticmethod
    def _own_us(live: _Live, shape: MeasuredShape, side: str, seconds: float) -> float | None:
        """A step of one side of an engine, whatever the host does meanwhile.

        The first that is timed stands for the engine; each other is timed in turns with it, since
        a host that is slower for a while would else decide between kernels.
        """
        if shape in live.firsts:
            first, first_us = live.firsts[shape]
            comparison = compare(_steady(live, shape, (first, side), seconds))
            return (
                first_us * comparison.b_us / comparison.a_us
                if comparison.a_us and comparison.b_us
                else None
            )
        steps = time_quads(live.engine, shape, live.facts, seconds, (side, side))
        settled = [s.duration_ns for s in steps if s.index >= SETTLE and s.duration_ns > 0]
        if not settled:
            return None
        own_us = middle_mean(settled) / 1e3
        live.firsts[shape] = side, own_us
        return own_us

    def _judged(
        self, live: _Live, combination: Combination, *, alone: bool
    ) -> tuple[Outcome, str, Answers | None]:
        """Whether it runs, and says what the base says: asked once an engine."""
        if combination not in live.judged:
            of = "base" if alone else "own"
            if not self._floors[of] and (not combination or not alone):
                self._keep(live, of)
            judgement = self._judge(live, combination, of)
            if judgement[0] == "changes answers" and not alone and not live.has_floor:
                # Another engine of the same kernels may have tuned them to round otherwise.
                self._keep(live, of)
                judgement = self._judge(live, combination, of)
            live.judged[combination] = judgement
        return live.judged[combination]

    def _judge(
        self, live: _Live, combination: Combination, of: str
    ) -> tuple[Outcome, str, Answers | None]:
        candidate, side = side_of(combination), live.sides[combination]
        if not combination:
            return "measured", "", None
        ranks, layers = describe(live.engine, side)
        rows = [swap for rank in ranks for swap in rank.swaps if swap.side == side]
        if candidate.swaps and not any(row.live for row in rows):
            why = next((row.why for row in rows if row.why), "the model has no such layer")
            return "not live", why, None
        changed = (
            not is_drafts(candidate.options)
            or candidate.environment
            or any(r.bits == "changed" for r in rows)
        )
        facts = live.facts
        depth = None if facts.layers is None else Depth(facts.layers, facts.routed)
        worst = None
        for shape in live.shapes:
            path = self._logits(of, shape)
            batch = gate_batch(self._settings.gate_tokens, shape, facts)
            positions = compare_logits(live.engine, side, batch, path, self._settings.text)
            floor, text = self._floors[of].get(shape, ()), self._settings.text is not None
            bits: Bits = "changed" if changed else "kept"
            verdict = judge(positions, bits, floor, layers, depth, text=text)
            figures = verdict.figures
            agree = figures.agreement if figures else None
            is_decided = figures is not None and decided(figures) and not facts.dummy
            note = next(iter(verdict.notes), "")
            answers = Answers(len(positions), agree, verdict.bits, is_decided, note)
            if not verdict.passed:
                return "changes answers", verdict.reasons[0], answers
            worse = worst is None or (answers.agreement or 0.0) < (worst.agreement or 0.0)
            worst = answers if worse else worst
        return "measured", "", worst

    def _keep(self, live: _Live, of: str) -> None:
        """Keeps what the base says, and how far it is from itself."""
        text = self._settings.text
        floors = {}
        for shape in live.shapes:
            path = self._logits(of, shape)
            batch = gate_batch(self._settings.gate_tokens, shape, live.facts)
            path.unlink(missing_ok=True)
            keep_logits(live.engine, "a", batch, path, text)
            floors[shape] = compare_logits(live.engine, "a", batch, path, text, disturbed=True)
        self._floors[of] = floors
        live.has_floor = of == "own"


def _steady(
    live: _Live, shape: MeasuredShape, names: tuple[str, str], seconds: float
) -> tuple[Quad, ...]:
    """Quads of two sides while the machine was steady."""
    steps = time_quads(live.engine, shape, live.facts, seconds, names)
    quads, _ = make_quads(steps, names)
    return keep_steady(quads, live.sampler.samples()).quads


def expected_start(started: Sequence[float]) -> float:
    """Seconds of the longest start but the first, which fills caches; 0 of none.

    Of the first alone it is a part.
    """
    return max(started[1:], default=_WARM * started[0]) if started else 0.0


def _blamed(log: Path, combinations: Sequence[Combination]) -> tuple[str, list[Combination]]:
    """What the engine was doing last by its log, and the candidates with whose kernel, if any."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return "", []
    last = last_progress(text)
    if not last.kernel:
        return "", []
    singles = dict.fromkeys((words,) for combination in combinations for words in combination)
    return last.doing, [
        c for c in singles if last.kernel in format_swaps(side_of(c).swaps).split(",")
    ]
