"""Times steps of a live engine: warm-up, a first estimate, as many quads as the time allows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import msgspec

from spark_prof.ab.engine_process import Engine
from spark_prof.ab.messages import Facts, Generate, PromptBatch, RankAnswers, Switch, Times
from spark_prof.ab.result import USUAL_CONTEXT
from spark_prof.ab.statistics import FEWEST_QUADS
from spark_prof.ab.timed_steps import (
    SETTLE,
    Block,
    TimedStep,
    block_order,
    middle_mean,
    quads_within,
    running,
)
from spark_prof.errors import CommandError
from spark_prof.profiler.commands import option_value

_STEPS = {"decode": 12, "prefill": SETTLE + 4}
"""Of a block. Short ones keep the sides close in time; each prefill step takes a request."""
_WARM_TOKENS = 8
_LONGEST_GENERATION = 512
_CACHE_SHARE = 0.9


@dataclass(frozen=True)
class MeasuredShape:
    """The kind of steps that are timed: batch size, context and prompt's length."""

    phase: Literal["decode", "prefill"]  # of the steps
    requests: int
    prompt_tokens: int  # of each request

    @property
    def words(self) -> str:
        """The shape in words, as messages and tables have it."""
        if self.phase == "prefill":
            return f"prefill of {self.prompt_tokens} tokens"
        where = "" if self.prompt_tokens == USUAL_CONTEXT else f", context {self.prompt_tokens}"
        return f"decoding at batch size {self.requests}{where}"


def impossible(shape: MeasuredShape, facts: Facts) -> str:
    """Why the engine cannot run such steps, one line; empty where it can."""
    if why := _beyond(shape, facts.longest, facts.most_requests, facts.most_tokens):
        return why
    needed = shape.requests * _longest_request(shape)
    if facts.cache_tokens and needed > facts.cache_tokens * _CACHE_SHARE:
        return f"{shape.words}: the KV cache holds {facts.cache_tokens} tokens only"
    return ""


def impossible_by_options(shape: MeasuredShape, arguments: Sequence[str]) -> str:
    """As `impossible`, by what the engine's own options say, before it is started.

    impossible_by_options(Shape("decode", 8, 128), ["m", "--max-num-seqs", "4"])
    """
    names = ("--max-model-len", "--max-num-seqs", "--max-num-batched-tokens")
    values = (option_value(arguments, name) or "" for name in names)
    limits = [int(value) if value.isdecimal() and len(value) < 10 else math.inf for value in values]
    return _beyond(shape, *limits)


def _beyond(shape: MeasuredShape, longest: float, most_requests: float, most_tokens: float) -> str:
    """Which limit of an engine is too low for steps of that shape; empty if none is."""
    if (needed := _longest_request(shape)) > longest:
        return (
            f"{shape.words} needs requests of {needed} tokens; this engine takes "
            f"{longest}: give a shorter --context or --prefill, or a longer --max-model-len"
        )
    if shape.requests > most_requests:
        return f"{shape.words}: the engine runs {most_requests} requests at most"
    if shape.phase == "prefill" and shape.prompt_tokens > most_tokens:
        return f"{shape.words}: the engine computes {most_tokens} tokens in a step at most"
    return ""


def _longest_request(shape: MeasuredShape) -> int:
    fewest = 2 if shape.phase == "prefill" else 4 * _STEPS[shape.phase] + slack(shape)
    return shape.prompt_tokens + fewest


def warm_up(engine: Engine, shape: MeasuredShape, sides: Sequence[str]) -> None:
    """Runs each side at that batch size, so that nothing is compiled while it is timed."""
    for side in dict.fromkeys(map(running, sides)):
        engine.ask(Switch(side), RankAnswers, f"switching to side {side}")
        tokens = 2 if shape.phase == "prefill" else _WARM_TOKENS
        batch = PromptBatch(shape.requests, shape.prompt_tokens, tokens)
        engine.ask(Generate(batch), Times, f"warming up {shape.words}")


def time_quads(
    engine: Engine, shape: MeasuredShape, facts: Facts, seconds: float, sides: tuple[str, str]
) -> tuple[TimedStep, ...]:
    """Steps of both sides in the order of `plan.block_order`."""
    warm_up(engine, shape, sides)
    steps = _STEPS[shape.phase]
    pilot = _run(engine, shape, block_order(1, steps, sides), 0)
    step_s = pilot.seconds / (4 * steps)
    if shape.phase == "decode":  # without the prompts, which are many steps' time
        step_s = fmean(step.duration_ns for step in pilot.rows) / 1e9
    quads = max(FEWEST_QUADS + 1, quads_within(seconds, step_s, steps))
    return _in_turns(engine, shape, facts, block_order(quads, steps, sides))


_HOLD_FACTOR = 1.2
_LONGEST_HELD_US = 50_000
_DEVICE_BLOCKS = 8


def device_us(
    engine: Engine, shape: MeasuredShape, facts: Facts, side: str, step_us: float
) -> tuple[float, ...]:
    """What the device alone needs for a step, a figure a block; none where the host stays behind.

    Before each step the device is held back for longer than the host takes for one.

    Args:
        step_us: what a step takes: where the host makes it, that is the host's time.
    """
    held_us = round(_HOLD_FACTOR * step_us)
    if held_us > _LONGEST_HELD_US:
        return ()
    blocks = [Block(side, _STEPS["decode"])] * _DEVICE_BLOCKS
    counted = [s for s in _in_turns(engine, shape, facts, blocks, held_us) if s.counts]
    ahead: dict[int, list[int]] = defaultdict(list)
    for step in counted:
        if step.ahead:
            ahead[step.block].append(step.duration_ns)
    if 2 * sum(map(len, ahead.values())) <= len(counted):
        return ()
    return tuple(middle_mean(durations) / 1e3 for durations in ahead.values())


def _in_turns(
    engine: Engine, shape: MeasuredShape, facts: Facts, blocks: Sequence[Block], held_us: int = 0
) -> tuple[TimedStep, ...]:
    """Runs the plan over several generations of whole quads, so that no context grows long."""
    # The requests of a prefill come one after the other: their contexts do not add up.
    room = _LONGEST_GENERATION if shape.phase == "prefill" else longest_generation(shape, facts)
    turn = max(1, room // (4 * blocks[0].steps)) * 4
    timed_steps: list[TimedStep] = []
    for first in range(0, len(blocks), turn):
        times = _run(engine, shape, blocks[first : first + turn], first, held_us)
        timed_steps += [
            msgspec.structs.replace(step, block=place, side=blocks[place].side)
            for step in times.rows
            if (place := step.block + first) < len(blocks)
        ]
    return tuple(timed_steps)


def _run(
    engine: Engine, shape: MeasuredShape, blocks: Sequence[Block], first: int, held_us: int = 0
) -> Times:
    planned = sum(block.steps for block in blocks)
    if shape.phase == "prefill":
        repeat = blocks[0].steps
        batch = PromptBatch(planned, shape.prompt_tokens, 2, alone=True, repeat=repeat)
    else:
        batch = PromptBatch(shape.requests, shape.prompt_tokens, planned + slack(shape))
    plan = tuple((running(block.side), block.steps) for block in blocks)
    request = Generate(batch, plan, shape.phase == "prefill", held_us)
    times = engine.ask(request, Times, f"timing {shape.words} (block {first})")
    if not times.rows:
        raise CommandError(
            f"the engine timed no step of {shape.words}; does it run {shape.requests} requests "
            "in one step?"
        )
    return times


def longest_generation(shape: MeasuredShape, facts: Facts) -> int:
    """Steps in which all requests decode that one generation may have at most."""
    longest = min(_LONGEST_GENERATION, facts.longest - shape.prompt_tokens - slack(shape))
    if facts.cache_tokens:
        cached = int(facts.cache_tokens * _CACHE_SHARE) // shape.requests
        longest = min(longest, cached - shape.prompt_tokens - slack(shape))
    return longest


def slack(shape: MeasuredShape) -> int:
    """Tokens beyond the plan: the first requests may decode before the last has been prefilled."""
    return shape.requests + 4
