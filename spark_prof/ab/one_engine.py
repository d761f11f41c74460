"""Both sides in one engine: gate, A/A, then every shape, switched between steps."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.ab.accuracy_gate import LayerError
from spark_prof.ab.agreement import compare_logits, describe, gate_batch, keep_logits, keep_verdict
from spark_prof.ab.engine import Engine
from spark_prof.ab.machine import Sampler, keep_steady
from spark_prof.ab.measuring import Shape, impossible, time_quads
from spark_prof.ab.messages import Facts
from spark_prof.ab.outcome import host_ahead, with_detectable
from spark_prof.ab.recording import attribute, record
from spark_prof.ab.result import AARun, Run
from spark_prof.ab.setting import Setting, costs_of, keep_facts, keep_machine
from spark_prof.ab.statistics import Estimate, aa_test, compare
from spark_prof.ab.steps import AGAIN, Step, make_quads, share_ahead
from spark_prof.errors import CommandError
from spark_prof.swaps.settings import TWIN, SwapSettings


def run_one_engine(setting: Setting) -> None:
    """Measures both sides in one engine, and keeps each part as it comes.

    Raises:
        CommandError: the engine failed, or nothing of side b is live.
    """
    swaps = SwapSettings({"a": setting.a.swaps, "b": setting.b.swaps}, twin=True, fill=True)
    setting.say("starting the engine with both sides")
    with setting.engine(setting.a, swaps, "engine.log") as engine:
        facts = engine.start()
        ranks, layers = describe(engine)
        keep_facts(setting, facts, ranks, {side: costs_of(side, facts, ranks) for side in "ab"})
        check_live(setting)
        shapes = possible(setting, facts)
        with Sampler(facts.uuids) as sampler:
            try:
                if _gate(setting, engine, facts, shapes, layers) or setting.options.time_anyway:
                    _measure(setting, engine, facts, shapes, sampler)
                else:
                    setting.keeper.miss("nothing was timed, because the sides do not agree")
            finally:
                keep_machine(setting, sampler.samples())


def possible(setting: Setting, facts: Facts) -> tuple[Shape, ...]:
    """The shapes that the engine can run; the result says why the others are missing.

    Raises:
        CommandError: there is none.
    """
    why = {shape: impossible(shape, facts) for shape in setting.shapes}
    for line in filter(None, why.values()):
        setting.keeper.miss(line)
    found = tuple(shape for shape, line in why.items() if not line)
    if not found:
        raise CommandError(f"nothing can be measured: {next(iter(why.values()), 'no shape')}")
    return found


def check_live(setting: Setting) -> None:
    """Raises CommandError where side b is made of swaps and none of them is live."""
    ranks = setting.keeper.result.swaps
    asked = [swap for rank in ranks for swap in rank.swaps if swap.side == "b"]
    if not setting.b.swaps or any(swap.live for swap in asked):
        return
    why = next((swap.why for swap in asked if swap.why), "the model has no such layer")
    raise CommandError(f"nothing of side b ({setting.b.name}) is live: {why}")


def _gate(
    setting: Setting,
    engine: Engine,
    facts: Facts,
    shapes: tuple[Shape, ...],
    layers: tuple[LayerError, ...],
) -> bool:
    """Whether the sides agree at each batch size."""
    passed = True
    for shape in shapes:
        if shape.phase != "decode":
            continue
        setting.say(f"comparing what the sides say at batch size {shape.requests}")
        batch, path = gate_batch(setting, shape, facts), setting.logits(shape.requests)
        try:
            keep_logits(engine, "a", batch, path)
            floor = compare_logits(engine, TWIN, batch, path, disturbed=True)
            found = compare_logits(engine, "b", batch, path)
        finally:
            path.unlink(missing_ok=True)
        passed &= keep_verdict(setting, shape, facts, found, floor, layers)
    return passed


def _measure(
    setting: Setting, engine: Engine, facts: Facts, shapes: tuple[Shape, ...], sampler: Sampler
) -> None:
    def timed(shape: Shape, sides: tuple[str, str]) -> tuple[Estimate, tuple[Step, ...]]:
        steps = time_quads(engine, shape, facts, setting.options.seconds, sides)
        quads, dropped = make_quads(steps, sides)
        steady = keep_steady(quads, sampler.samples())
        for line in steady.lines:
            setting.keeper.miss(line)
        return compare(steady.quads, (*dropped, *steady.dropped)), steps

    first = shapes[0]
    setting.say(f"timing side a against itself: {first.words}")
    for other in (AGAIN, *((TWIN,) if facts.gpu else ())):
        test = aa_test(timed(first, ("a", other))[0], captured_again=other == TWIN)
        setting.keeper.add(aa=(AARun(first.requests, test, captured_again=other == TWIN),))
        setting.say(test.line)
    for shape in shapes:
        setting.say(f"timing {shape.words}")
        found, steps = timed(shape, ("a", "b"))
        ahead = share_ahead(steps, "a"), share_ahead(steps, "b")
        run = Run(shape.phase, shape.requests, shape.prompt_tokens, found, *ahead)
        setting.keeper.add(runs=(with_detectable(run, setting.keeper.result.aa),))
        setting.say(told(shape, found))
    if setting.options.record:
        for shape in recorded(shapes, setting.keeper.result.runs):
            bundles = {side: record(setting, engine, side, side, shape) for side in ("a", "b")}
            attribute(setting, bundles, shape)


def recorded(shapes: Sequence[Shape], runs: Sequence[Run]) -> tuple[Shape, ...]:
    """The shapes of which kernels are recorded.

    The first that decodes. Where the host was behind there, what the kernels save cannot be checked
    against the step: then also the first one at which it was ahead on both sides.
    """
    decode = [shape for shape in shapes if shape.phase == "decode"]
    ahead = {run.requests for run in runs if run.phase == "decode" and host_ahead(run)}
    if not decode or decode[0].requests in ahead:
        return tuple(decode[:1])
    return (decode[0], *[shape for shape in decode if shape.requests in ahead][:1])


def told(shape: Shape, found: Estimate) -> str:
    """One line of progress about a measurement."""
    gain = found.gain
    if gain is None or found.a_us is None or found.b_us is None:
        return f"{shape.words}: {found.missing}"
    return (
        f"{shape.words}: {found.a_us:.1f} to {found.b_us:.1f} us, gain {gain.value:.4f} "
        f"(95 % {gain.low:.4f} to {gain.high:.4f})"
    )
