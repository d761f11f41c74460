"""Each side in engines of its own, started in the order A B B A."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from spark_prof.ab.accuracy_gate import LayerError, Position
from spark_prof.ab.agreement import compare_logits, describe, gate_batch, keep_logits, keep_verdict
from spark_prof.ab.engine import Engine
from spark_prof.ab.machine import Sampler
from spark_prof.ab.measuring import Shape, time_side
from spark_prof.ab.messages import Check, Done, Facts
from spark_prof.ab.one_engine import check_live, possible, told
from spark_prof.ab.outcome import with_detectable
from spark_prof.ab.recording import attribute, record
from spark_prof.ab.result import AARun, RankSwaps, Run, SideCosts
from spark_prof.ab.setting import Setting, costs_of, keep_facts, keep_machine
from spark_prof.ab.statistics import aa_test, compare_starts
from spark_prof.ab.steps import SETTLE, Step, block_order, middle_mean
from spark_prof.swaps.settings import SwapSettings
from spark_prof.traces.bundle import Bundle

_ALONE = "a"
"""The name that the swaps of an engine with one side have in it."""

Name = Literal["a", "b"]


class _Found:
    """What the starts have brought until now."""

    def __init__(self) -> None:
        self.floors: dict[Shape, tuple[Position, ...]] = {}
        self.times: dict[Shape, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.steps: dict[Shape, int] = defaultdict(int)
        self.bundles: dict[str, Bundle | None] = {}
        self.layers: tuple[LayerError, ...] = ()
        self.shapes: tuple[Shape, ...] = ()
        self.agreed = True


def run_two_engines(setting: Setting) -> None:
    """Starts the engines one after the other and measures every shape in each.

    Raises:
        CommandError: an engine failed, or nothing of side b is live.
    """
    found = _Found()
    starts = setting.options.starts
    order: list[Name] = [
        "a" if block.side == "a" else "b" for block in block_order(starts // 4, SETTLE + 1)
    ]
    try:
        for number, side in enumerate(order):
            setting.say(f"starting engine {number + 1} of {starts}, side {side}")
            _one_start(setting, found, side, number)
            if not (found.agreed or setting.options.time_anyway):
                setting.keeper.miss("nothing was timed further, because the sides do not agree")
                return
    finally:
        # Where a start failed, what the earlier ones found is kept.
        _tell(setting, found)
        for size in setting.options.batch_sizes:
            with suppress(OSError):
                setting.logits(size).unlink(missing_ok=True)


def _one_start(setting: Setting, found: _Found, name: Name, number: int) -> None:
    side = setting.a if name == "a" else setting.b
    swaps = SwapSettings({_ALONE: side.swaps}, fill=True)
    first_of_side = name not in found.bundles
    with setting.engine(side, swaps, f"engine-{number + 1}-{name}.log") as engine:
        if number == 0:
            arguments = setting.command.arguments + setting.b.options
            doing = "reading the arguments of side b"
            engine.ask(Check(setting.command.form, arguments), Done, doing)
        facts = engine.start()
        if first_of_side:
            ranks, layers = describe(engine)
            found.layers += layers
            costs: dict[str, SideCosts] = {name: costs_of(_ALONE, facts, ranks)}
            keep_facts(setting, facts, tuple(_renamed(rank, name) for rank in ranks), costs)
            if name == "b":
                check_live(setting)
        shapes = found.shapes = possible(setting, facts)
        if first_of_side:
            _gate(setting, engine, facts, found, name, shapes)
            found.bundles[name] = None
            if not (found.agreed or setting.options.time_anyway):
                return
        with Sampler(facts.uuids) as sampler:
            try:
                _time(setting, engine, facts, found, name, shapes)
            finally:
                keep_machine(setting, sampler.samples())
        if first_of_side and setting.options.record and shapes[0].phase == "decode":
            found.bundles[name] = record(setting, engine, name, _ALONE, shapes[0])


def _renamed(rank: RankSwaps, name: Name) -> RankSwaps:
    """What a rank tells, with the side called as it is in the run."""
    return replace(rank, swaps=tuple(replace(swap, side=name) for swap in rank.swaps))


def _gate(
    setting: Setting,
    engine: Engine,
    facts: Facts,
    found: _Found,
    name: Name,
    shapes: tuple[Shape, ...],
) -> None:
    """Keeps what side a says and how far it is from itself, or compares side b with that."""
    for shape in shapes:
        if shape.phase != "decode":
            continue
        setting.say(f"comparing what the sides say at batch size {shape.requests}")
        batch, path = gate_batch(setting, shape, facts), setting.logits(shape.requests)
        if name == "a":
            keep_logits(engine, _ALONE, batch, path)
            floor = compare_logits(engine, _ALONE, batch, path, disturbed=True)
            found.floors[shape] = floor
        elif shape in found.floors:
            positions = compare_logits(engine, _ALONE, batch, path)
            path.unlink(missing_ok=True)
            floor = found.floors[shape]
            found.agreed &= keep_verdict(setting, shape, facts, positions, floor, found.layers)


def _time(
    setting: Setting,
    engine: Engine,
    facts: Facts,
    found: _Found,
    name: Name,
    shapes: tuple[Shape, ...],
) -> None:
    for shape in shapes:
        setting.say(f"timing {shape.words} on side {name}")
        steps = time_side(engine, shape, facts, setting.options.seconds, _ALONE)
        counted = [step.duration_ns for step in steps if _counts(step)]
        if counted:
            each_us = middle_mean(counted) / 1e3
            setting.say(f"{shape.words} on side {name}: {each_us:.1f} us in this start")
            found.times[shape][name].append(each_us)
            found.steps[shape] += len(counted)


def _counts(step: Step) -> bool:
    return step.index >= SETTLE and step.duration_ns > 0


def _tell(setting: Setting, found: _Found) -> None:
    """Puts what all starts together say into the result."""
    if not (found.agreed or setting.options.time_anyway):
        return
    for shape in found.shapes:
        a_us, b_us = found.times[shape]["a"], found.times[shape]["b"]
        if not a_us and not b_us:
            continue
        if shape == found.shapes[0]:
            _tell_itself(setting, shape, a_us, found.steps[shape])
        estimate = compare_starts(a_us, b_us, found.steps[shape])
        run = Run(shape.phase, shape.requests, shape.prompt_tokens, estimate)
        setting.keeper.add(runs=(with_detectable(run, setting.keeper.result.aa),))
        setting.say(told(shape, estimate))
    if found.shapes:
        attribute(setting, found.bundles, found.shapes[0])


def _tell_itself(setting: Setting, shape: Shape, a_us: list[float], steps: int) -> None:
    """Side a against itself, between its starts."""
    if len(a_us) < 4:
        setting.keeper.miss(
            f"side a was not compared with itself: it was started {len(a_us)} times and that takes "
            "4; give --starts 8"
        )
        return
    test = aa_test(compare_starts(a_us[::2], a_us[1::2], steps // 2))
    setting.keeper.add(aa=(AARun(shape.requests, test),))
    setting.say(test.line)
