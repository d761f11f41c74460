"""A run of `spark-prof ab`, from what was asked to the result.

Sides that differ in swaps only live in one engine, switched between steps: gate, A/A, then every
shape. Others are each in engines of their own, started in the order A B B A.
"""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean
from typing import Literal

from spark_prof.ab.accuracy_gate import LayerError, Position
from spark_prof.ab.agreement import compare_logits, describe, gate_batch, keep_logits, keep_verdict
from spark_prof.ab.command import EngineCommand
from spark_prof.ab.device_alone import DeviceAlone, behind, compare_devices, measure
from spark_prof.ab.engine_process import Engine
from spark_prof.ab.loading import ALONE, Loading, refuse_at_once
from spark_prof.ab.machine import Sampler, check_memory, free_bytes, keep_steady
from spark_prof.ab.measuring import MeasuredShape, impossible, time_quads
from spark_prof.ab.messages import Facts, PromptBatch
from spark_prof.ab.recording import attribute, record
from spark_prof.ab.refusals import refuse, refuse_shapes
from spark_prof.ab.result import (
    AARun,
    AbOutcome,
    RankSwaps,
    SideComparison,
    SideCosts,
    SideFacts,
    host_ahead,
    to_json,
    with_detectable,
)
from spark_prof.ab.setting import AbRun, Keeper, Options, costs_of, keep_facts, keep_machine
from spark_prof.ab.sides import Mode, Side, choose_mode
from spark_prof.ab.statistics import Estimate, aa_test, compare, compare_starts
from spark_prof.ab.timed_steps import (
    AGAIN,
    SETTLE,
    TimedStep,
    block_order,
    make_quads,
    middle_mean,
    share_ahead,
)
from spark_prof.errors import CommandError
from spark_prof.profiler.interrupts import terminated_as_interrupt
from spark_prof.redact import redacted, redacted_value
from spark_prof.swaps.swap_settings import TWIN, SwapSettings, format_swaps
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.claim import Claim


def run_ab(
    command: EngineCommand,
    a: Side,
    b: Side,
    mode_name: str,
    options: Options,
    words: Sequence[str],
    say: Callable[[str], None],
    draw: Callable[[AbOutcome], str],
) -> AbOutcome:
    """Measures both sides. What was found before a failure is kept, with the failure's line.

    Raises:
        CommandError: the sides or the folder cannot be; nothing was started.
        KeyboardInterrupt: after what was found has been kept.
    """
    chosen = choose_mode(mode_name, a, b)
    refuse(command, (a, b))
    refuse_shapes(command, (a, b), options.shapes, refuse_any=False)
    mode, lines = _with_memory(chosen, mode_name, command, a, b)
    if options.at_once and not mode.one:
        refuse_at_once(command, (a, b))
    with Claim(options.folder):
        keeper = Keeper(options.folder, _empty(command, a, b, mode, words), to_json, draw)
        for line in lines:
            keeper.miss(line)
        say(f"{'one engine' if mode.one else 'two engines'}: {mode.why}")
        setting = AbRun(command, a, b, options, keeper, say)
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


def _with_memory(
    mode: Mode, mode_name: str, command: EngineCommand, a: Side, b: Side
) -> tuple[Mode, tuple[str, ...]]:
    """The mode that memory allows, and what could not be checked."""
    if not mode.one:
        return mode, ()
    fits, line = check_memory(command, a, b, free_bytes())
    if fits is None:
        return mode, (line,)
    if fits:
        return mode, ()
    if mode_name == "one":
        raise CommandError(f"--mode one: {line}; leave --mode out, or swap fewer slots")
    return Mode(False, line), ()


def _empty(command: EngineCommand, a: Side, b: Side, mode: Mode, words: Sequence[str]) -> AbOutcome:
    versions = {"python": platform.python_version()}
    try:
        versions["spark_prof"] = version("spark-prof")
    except PackageNotFoundError:
        versions["spark_prof"] = "of a checkout"
    return AbOutcome(
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


def run_one_engine(setting: AbRun) -> None:
    """Measures both sides in one engine, and keeps each part as it comes."""
    swaps = SwapSettings({"a": setting.a.swaps, "b": setting.b.swaps}, twin=True)
    setting.say("starting the engine with both sides")
    with setting.engine(setting.a, swaps, "engine.log") as engine:
        facts = engine.start()
        ranks, layers = describe(engine)
        keep_facts(setting, facts, ranks, {side: costs_of(side, facts, ranks) for side in "ab"})
        check_live(setting)
        shapes = possible(setting, facts)
        with Sampler(facts.uuids, engine=engine.process) as sampler:
            try:
                if _gate(setting, engine, facts, shapes, layers) or setting.options.time_anyway:
                    _measure(setting, engine, facts, shapes, sampler)
                else:
                    setting.keeper.miss("nothing was timed, because the sides do not agree")
            finally:
                keep_machine(setting, sampler)


def possible(setting: AbRun, facts: Facts) -> tuple[MeasuredShape, ...]:
    """The shapes that the engine can run; the result says why the others are missing."""
    why = {shape: impossible(shape, facts) for shape in setting.shapes}
    for line in filter(None, why.values()):
        setting.keeper.miss(line)
    possible_shapes = tuple(shape for shape, line in why.items() if not line)
    if not possible_shapes:
        raise CommandError(f"nothing can be measured: {next(iter(why.values()), 'no shape')}")
    return possible_shapes


def check_live(setting: AbRun) -> None:
    """Raises CommandError where side b is made of swaps and none of them is live."""
    ranks = setting.keeper.result.swaps
    swaps = [swap for rank in ranks for swap in rank.swaps if swap.side == "b"]
    if not setting.b.swaps or any(swap.live for swap in swaps):
        return
    why = next((swap.why for swap in swaps if swap.why), "the model has no such layer")
    raise CommandError(f"nothing of side b ({setting.b.name}) is live: {why}")


def _gate(
    setting: AbRun,
    engine: Engine,
    facts: Facts,
    shapes: tuple[MeasuredShape, ...],
    layers: tuple[LayerError, ...],
) -> bool:
    """Whether the sides agree at each batch size."""
    passed = True
    for shape, batch, path in _generations(setting, facts, shapes):
        try:
            text = setting.options.text
            keep_logits(engine, "a", batch, path, text)
            floor = compare_logits(engine, TWIN, batch, path, text, disturbed=True)
            positions = compare_logits(engine, "b", batch, path, text)
        finally:
            path.unlink(missing_ok=True)
        passed &= keep_verdict(setting, shape, facts, positions, floor, layers)
    return passed


def _generations(
    setting: AbRun, facts: Facts, shapes: Sequence[MeasuredShape]
) -> Iterator[tuple[MeasuredShape, PromptBatch, Path]]:
    """What the gate generates at each batch size, and the file for side a's logits."""
    for shape in shapes:
        if shape.phase == "decode":
            setting.say(f"comparing what the sides say, {shape.words}")
            yield (
                shape,
                gate_batch(setting.options.gate_tokens, shape, facts),
                setting.logits(shape),
            )


def _measure(
    setting: AbRun,
    engine: Engine,
    facts: Facts,
    shapes: tuple[MeasuredShape, ...],
    sampler: Sampler,
) -> None:
    def timed(
        shape: MeasuredShape, sides: tuple[str, str]
    ) -> tuple[Estimate, tuple[TimedStep, ...]]:
        steps = time_quads(engine, shape, facts, setting.options.seconds, sides)
        quads, dropped = make_quads(steps, sides)
        steady = keep_steady(quads, sampler.samples())
        for line in steady.lines:
            setting.keeper.miss(line)
        return compare(steady.quads, (*dropped, *steady.dropped)), steps

    first = shapes[0]
    setting.say(f"timing side a against itself: {first.words}")
    for other in (AGAIN, *((TWIN,) if facts.gpu else ())):
        _keep_itself(setting, first, timed(first, ("a", other))[0], captured_again=other == TWIN)
    for shape in shapes:
        setting.say(f"timing {shape.words}")
        estimate, steps = timed(shape, ("a", "b"))
        ahead = share_ahead(steps, "a"), share_ahead(steps, "b")
        device = None
        if any(behind(shape, share) for share in ahead):
            step_us = max(filter(None, (estimate.a_us, estimate.b_us)), default=None)
            device = compare_devices(
                *(measure(setting, engine, facts, shape, side, step_us) for side in "ab")
            )
        _keep_run(setting, shape, estimate, *ahead, device)
    if setting.options.record:
        for shape in recorded(shapes, setting.keeper.result.runs):
            bundles = {
                side: record(setting, engine, facts, side, side, shape) for side in ("a", "b")
            }
            attribute(setting, bundles, shape)


def recorded(
    shapes: Sequence[MeasuredShape], runs: Sequence[SideComparison]
) -> tuple[MeasuredShape, ...]:
    """The shapes of which kernels are recorded.

    The first that decodes, at the shortest context. Where the host was behind there, what the
    kernels save cannot be checked against the step: then also the first one of that context at
    which it was ahead on both sides.
    """
    decode = [shape for shape in shapes if shape.phase == "decode"]
    decode = [shape for shape in decode if shape.prompt_tokens == decode[0].prompt_tokens]
    ahead = {
        run.requests
        for run in runs
        if run.phase == "decode" and host_ahead(run)
        if not decode or run.prompt_tokens == decode[0].prompt_tokens
    }
    if not decode or decode[0].requests in ahead:
        return tuple(decode[:1])
    return (decode[0], *[shape for shape in decode if shape.requests in ahead][:1])


def _keep_itself(
    setting: AbRun, shape: MeasuredShape, estimate: Estimate, *, captured_again: bool = False
) -> None:
    """Adds side a against itself to the result."""
    test = aa_test(estimate, captured_again=captured_again)
    tokens = shape.prompt_tokens
    row = AARun(shape.requests, test, captured_again=captured_again, prompt_tokens=tokens)
    setting.keeper.add(aa=(row,))
    setting.say(test.line)


def _keep_run(
    setting: AbRun,
    shape: MeasuredShape,
    estimate: Estimate,
    ahead_a: float | None,
    ahead_b: float | None,
    device: DeviceAlone | None,
) -> None:
    """Adds a measurement to the result, with one line of progress."""
    times = (device.a_us, device.b_us, device.gain) if device else ()
    measured = (shape.phase, shape.requests, shape.prompt_tokens)
    run = SideComparison(*measured, estimate, ahead_a, ahead_b, *times)
    setting.keeper.add(runs=(with_detectable(run, setting.keeper.result.aa),))
    gain, line = estimate.gain, estimate.missing
    if gain is not None:
        line = (
            f"{estimate.a_us:.1f} to {estimate.b_us:.1f} us, gain {gain.value:.4f} "
            f"(95 % {gain.low:.4f} to {gain.high:.4f})"
        )
    setting.say(f"{shape.words}: {line}")


class _Starts:
    """Engines of one side each, one after the other, and what they have brought until now."""

    def __init__(self, setting: AbRun) -> None:
        self._setting = setting
        self._floors: dict[MeasuredShape, tuple[Position, ...]] = {}
        self._times: dict[MeasuredShape, dict[str, list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._steps: dict[MeasuredShape, dict[str, list[TimedStep]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._device_us: dict[MeasuredShape, dict[str, list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._bundles: dict[str, Bundle | None] = {}
        self._layers: tuple[LayerError, ...] = ()
        self._shapes: tuple[MeasuredShape, ...] = ()
        self._agreed = True

    @property
    def counts(self) -> bool:
        """Whether times are wanted: the sides agree, or nobody minds."""
        return self._agreed or self._setting.options.time_anyway

    def start(self, name: Literal["a", "b"], engines: Loading, number: int) -> None:
        """Measures every shape in an engine of a side."""
        setting = self._setting
        first_of_side = name not in self._bundles
        with engines.one(number) as (engine, facts):
            if first_of_side:
                ranks, layers = describe(engine)
                self._layers += layers
                costs: dict[str, SideCosts] = {name: costs_of(ALONE, facts, ranks)}
                keep_facts(setting, facts, tuple(_renamed(rank, name) for rank in ranks), costs)
                if name == "b":
                    check_live(setting)
            self._shapes = possible(setting, facts)
            if first_of_side:
                self._gate(engine, facts, name)
                self._bundles[name] = None
                if not self.counts:
                    return
            with Sampler(facts.uuids, engine=engine.process) as sampler:
                try:
                    self._time(engine, facts, name)
                finally:
                    keep_machine(setting, sampler)
            first = self._shapes[0]
            if first_of_side and setting.options.record and first.phase == "decode":
                self._bundles[name] = record(setting, engine, facts, name, ALONE, first)

    def _gate(self, engine: Engine, facts: Facts, name: str) -> None:
        """Keeps what side a says and how far it is from itself, or compares side b with that."""
        setting = self._setting
        text = setting.options.text
        for shape, batch, path in _generations(setting, facts, self._shapes):
            if name == "a":
                keep_logits(engine, ALONE, batch, path, text)
                floor = compare_logits(engine, ALONE, batch, path, text, disturbed=True)
                self._floors[shape] = floor
            elif floor := self._floors.get(shape, ()):
                positions = compare_logits(engine, ALONE, batch, path, text)
                path.unlink(missing_ok=True)
                self._agreed &= keep_verdict(setting, shape, facts, positions, floor, self._layers)

    def _time(self, engine: Engine, facts: Facts, name: str) -> None:
        setting = self._setting
        for shape in self._shapes:
            setting.say(f"timing {shape.words} on side {name}")
            steps = time_quads(engine, shape, facts, setting.options.seconds, (ALONE, ALONE))
            counted = [step.duration_ns for step in steps if step.counts]
            if counted:
                each_us = middle_mean(counted) / 1e3
                setting.say(f"{shape.words} on side {name}: {each_us:.1f} us in this start")
                self._times[shape][name].append(each_us)
                self._steps[shape][name] += steps
                if not behind(shape, share_ahead(steps, ALONE)):
                    self._device_us[shape][name].append(each_us)
                elif us := measure(setting, engine, facts, shape, ALONE, each_us):
                    self._device_us[shape][name].append(fmean(us))

    def tell(self) -> None:
        """Puts what all starts together say into the result."""
        setting = self._setting
        for shape in self._shapes if self.counts else ():
            a_us, b_us = self._times[shape]["a"], self._times[shape]["b"]
            if not a_us and not b_us:
                continue
            of_a, of_b = (self._steps[shape][name] for name in ("a", "b"))
            counted = sum(step.counts for step in (*of_a, *of_b))
            if shape == self._shapes[0]:
                _tell_itself(setting, shape, a_us, counted)
            ahead_a, ahead_b = (share_ahead(steps, ALONE) for steps in (of_a, of_b))
            device = None
            if behind(shape, ahead_a) or behind(shape, ahead_b):
                of_device = self._device_us[shape]
                device = compare_devices(of_device["a"], of_device["b"])
            estimate = compare_starts(a_us, b_us, counted)
            _keep_run(setting, shape, estimate, ahead_a, ahead_b, device)
        if self._shapes and self.counts:
            attribute(setting, self._bundles, self._shapes[0])


def run_two_engines(setting: AbRun) -> None:
    """Measures every shape in each engine, one engine after the other."""
    starts = _Starts(setting)
    count = setting.options.starts
    order = [block.side for block in block_order(max(count // 4, 1), SETTLE + 1)]
    sides: list[Literal["a", "b"]] = ["a" if side == "a" else "b" for side in order[:count]]
    engines = Loading(setting, sides)
    if setting.options.at_once:
        setting.say(f"starting {count} engines at once; none is measured until all have loaded")
    try:
        with engines.all():
            for number, name in enumerate(sides):
                doing = "" if setting.options.at_once else "starting "
                setting.say(f"{doing}engine {number + 1} of {count}, side {name}")
                starts.start(name, engines, number)
                if not starts.counts:
                    setting.keeper.miss("nothing was timed further: the sides do not agree")
                    return
    finally:
        # Where a start failed, what the earlier ones measured is kept.
        starts.tell()
        for shape in setting.shapes:
            with suppress(OSError):
                setting.logits(shape).unlink(missing_ok=True)


def _renamed(rank: RankSwaps, name: str) -> RankSwaps:
    """What a rank tells, with the side called as it is in the run."""
    return replace(rank, swaps=tuple(replace(swap, side=name) for swap in rank.swaps))


def _tell_itself(setting: AbRun, shape: MeasuredShape, a_us: list[float], steps: int) -> None:
    """Side a against itself, between its starts."""
    if len(a_us) < 4:
        setting.keeper.miss(
            "side a was not compared with itself: that takes 4 starts of it, and it had "
            f"{len(a_us)}; give --starts 8"
        )
        return
    _keep_itself(setting, shape, compare_starts(a_us[::2], a_us[1::2], steps // 2))
