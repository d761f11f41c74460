"""What `spark-prof ab` found in one line, and the figures beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from spark_prof.ab.accuracy_gate import GateVerdict
from spark_prof.ab.result import (
    USUAL_CONTEXT,
    AbOutcome,
    Gate,
    SideComparison,
    chosen_run,
    decided,
    detectable_in,
    effect_of,
    has_random_weights,
    outcome_of,
)
from spark_prof.ab.statistics import Effect, Interval
from spark_prof.dashboards.units import (
    MISSING,
    WrittenFigure,
    between,
    clean,
    count,
    counted,
    microseconds,
    share,
)

_LONGEST_REASON = 240
_CLOSE = 0.02
_BUSY = 0.5
"""Processors that others keep busy, from which on that is worth a sentence."""
_LONGEST_SIDE = 40
"""Characters of what a side swaps, up to which it stands for the side in a sentence."""


def answer(result: AbOutcome) -> str:
    """The first line of a report: whether side b is faster, by how much, and what agrees."""
    line = _answer(result)
    if result.failure and outcome_of(result) != "not live":
        return f"{line} (ended early: {_short(result.failure)})"
    return line if result.finished else f"{line} (not finished)"


def headline(result: AbOutcome) -> tuple[tuple[str, str], ...]:
    """Figures of the run that answers, each with its name."""
    run = chosen_run(result)
    figures: list[tuple[str, str]] = []
    if run and outcome_of(result) not in ("gate failed", "not live"):
        estimate = run.estimate
        if estimate.gain:
            figures.append((f"per {_unit(run)}, {what_ran(run)}", _factor(estimate.gain)))
        if estimate.saved_us:
            figures.append(("saved", microseconds(estimate.saved_us.value)))
        if (smallest := detectable_in(run, result.aa)) is not None:
            figures.append(("minimum detectable effect (80 % power)", share(smallest)))
    verdict = _verdict_of(result, run)
    if verdict and verdict.figures and decided(verdict.figures) and not has_random_weights(result):
        figures.append(("of the tokens agree", agreement(verdict.figures.agreement)))
    return tuple(figures)


def doubts(result: AbOutcome) -> Iterator[str]:
    """What takes from the answer, a sentence each: what else changed, and an unsteady machine."""
    run = chosen_run(result)
    if run is None or outcome_of(result) in ("gate failed", "not live"):
        return
    moved = [
        f"{clean(row.component)} {microseconds(row.a_us)} to {microseconds(row.b_us)}"
        for attribution in result.attributions
        if (run.phase, run.requests) == ("decode", attribution.batch_size)
        for row in attribution.moved
    ]
    if moved:
        yield f"Changed too, though not swapped: {', '.join(moved)}."
    for control in result.aa:
        gain, least = control.test.estimate.gain, control.test.floor
        steady = control.test.passed or control.captured_again or control.requests != run.requests
        if not steady and gain and least is not None:
            yield (
                f"The machine was not steady: side a is {_factor(gain)} as fast as itself, so that "
                f"nothing below {100 * least:.2f} % counts."
            )
    busy_processors = result.machine.others
    if busy := kept_busy(busy_processors.highest if busy_processors else None):
        yield f"Meanwhile {busy}."


def _of_one_start(result: AbOutcome, run: SideComparison) -> str:
    """What one start of each side says, of which nobody knows how far starts are apart."""
    a_us, b_us = run.estimate.a_us, run.estimate.b_us
    if result.mode != "two engines" or not a_us or not b_us:
        return ""
    return f" ({times(run)}, {a_us / b_us:.2f} x without an interval)"


def shown_effect(effect: Effect) -> str:
    """What a side is, in a word of a table: faster, slower, no effect, unclear."""
    return "unclear" if effect == "not told" else effect


def kept_busy(processors: float | None) -> str:
    """What other programs did beside the engine, where that may decide its time; else empty."""
    if processors is None or processors < _BUSY:
        return ""
    return f"other programs kept up to {processors:.1f} processors busy"


def interval(gain: Interval | None) -> str:
    """A confidence interval of a gain: 1.268 to 1.272."""
    if gain is None:
        return MISSING
    digits = _digits(gain)
    return f"{gain.low:.{digits}f} to {gain.high:.{digits}f}"


def times(run: SideComparison) -> str:
    """The times of both sides: 3.27 -> 2.58 ms, with more digits where they are close."""
    gain = run.estimate.gain
    close = gain is not None and abs(gain.value - 1) < _CLOSE
    write = step_time if close else microseconds
    return between(write(run.estimate.a_us), write(run.estimate.b_us), "->")


def step_time(us: float | None) -> WrittenFigure:
    """Writes the time of a step with the digits that a gain of a tenth of a per cent needs."""
    if us is None:
        return WrittenFigure(MISSING)
    if abs(us) >= 999.95:
        return WrittenFigure(f"{us / 1000:,.3f} ms", us, "ms")
    return WrittenFigure(f"{us:.1f} us", us, "us")


def what_ran(run: SideComparison) -> str:
    """Which steps a run timed: batch 8, or prefill 1,024, the prompt's tokens."""
    if run.phase == "decode":
        return decoded_at(run.requests, run.prompt_tokens)
    prompts = f"{run.requests} x " if run.requests > 1 else ""
    return f"prefill {prompts}{count(run.prompt_tokens)}"


def decoded_at(requests: int, context: int) -> str:
    """A batch size, with the context where it is not the usual one: batch 8, context 8,192."""
    where = "" if context == USUAL_CONTEXT else f", context {count(context)}"
    return f"batch {requests}{where}"


def _unit(run: SideComparison) -> str:
    return "token" if run.phase == "decode" else "prompt"


def agreement(fraction: float | None) -> str:
    """A share of positions that agree; only all of them are 100 %."""
    if fraction is None or not math.isfinite(fraction):
        return MISSING
    return "100 %" if fraction == 1 else f"{math.floor(1000 * fraction) / 10:.1f} %"


def _side(result: AbOutcome, place: int) -> str:
    """What a side is called: its own words, without those of both sides."""
    words = [clean(side.name).split() for side in result.sides]
    distinct = [
        word for word in words[place] if words[0] == words[1] or word not in words[1 - place]
    ]
    name = " ".join(distinct) or "stock"
    return name if len(name) <= _LONGEST_SIDE else "ab"[place]


def _answer(result: AbOutcome) -> str:
    outcome, b, than = outcome_of(result), _side(result, 1), f"than {_side(result, 0)}"
    if outcome == "gate failed":
        failed = [gate for gate in result.gates if not gate.verdict.passed]
        reasons = [reason for gate in failed for reason in gate.verdict.reasons]
        rest = f" (and {counted(len(reasons) - 1, 'more reason')})" if len(reasons) > 1 else ""
        return f"{b} fails the gate: {_short(reasons[0]) if reasons else 'no reason given'}{rest}"
    if outcome == "not live":
        return f"{b} is not faster: vLLM's own kernels run in all of it{_why(result)}"
    run = chosen_run(result)
    if run is None:
        return "nothing was timed"
    if run.estimate.gain is None:
        why = _short(run.estimate.missing)
        return f"no gain can be told at {what_ran(run)}{_of_one_start(result, run)}: {why}"
    tail = f"{_other_runs(result, run)}; {_same_answers(result, run)}"
    where = f"at {what_ran(run)}: {times(run)}"
    sure = f"(95 % {interval(run.estimate.gain)})"
    unit = f"per {_unit(run)}"
    if outcome == "faster":
        gain = _factor(run.estimate.gain)
        return f"{b} is {gain} faster {unit} {than} {sure} {where}{_by(result)}{tail}"
    if outcome == "slower":
        return f"{b} is not faster {than}: it needs {_inverse(run)} the time {unit} {where}{tail}"
    gain = f"(gain {_factor(run.estimate.gain)}, 95 % {interval(run.estimate.gain)})"
    if outcome == "not told":
        option = "--seconds" if run.estimate.apart is None else "--starts"
        return (
            f"it is unclear whether {b} is faster {than} {gain} {where}; give more {option}{tail}"
        )
    return f"{b} is not faster {than}: no effect {unit} was seen {gain} {where}{tail}"


def _inverse(run: SideComparison) -> str:
    gain = run.estimate.gain
    if gain is None or min(gain.value, gain.low, gain.high) <= 0:
        return MISSING
    turned = Interval(1 / gain.value, 1 / gain.high, 1 / gain.low)
    return f"{_factor(turned)} (95 % {interval(turned)})"


def _by(result: AbOutcome) -> str:
    """A side that quantizes computes something else: its gain is not the kernel's alone."""
    changed = any(gate.verdict.bits == "changed" for gate in result.gates)
    return ", by quantization + kernel" if changed else ""


def _other_runs(result: AbOutcome, chosen: SideComparison) -> str:
    """Runs that say something else than the one that answers."""
    effect = effect_of(chosen, result.aa)
    other = [
        f"{other_effect} at {what_ran(run)}"
        for run in result.runs
        if run is not chosen
        and (other_effect := effect_of(run, result.aa)) not in (effect, "not told")
    ]
    return f"; {', '.join(other)}" if other else ""


def _same_answers(result: AbOutcome, run: SideComparison) -> str:
    """Whether both sides say the same, as far as the positions that were compared decide it."""
    verdict = _verdict_of(result, run)
    if verdict is None or verdict.figures is None:
        return "what it says was not compared"
    if has_random_weights(result):
        return f"{_alone(verdict)} (random weights; only a real checkpoint can tell more)"
    figures = verdict.figures
    enough = decided(figures)
    if enough and figures.agreement == 1:
        return "same tokens"
    if enough and verdict.bits == "kept" and figures.clear_agreement == 1:
        return "same tokens but for near ties"
    kl = MISSING if figures.kl_mean is None else f"{figures.kl_mean:.2g} nats"
    agree = f"{agreement(figures.agreement)} of the tokens agree"
    if enough:
        return f"{agree}, KL {kl}"
    ties = "all" if figures.clear_agreement is None else f"{count(figures.near_ties)} of them"
    near = f", {ties} near ties" if figures.near_ties else ""
    positions = counted(figures.positions, "position")
    return f"{_alone(verdict)}; at {positions} {agree}{near}, KL {kl}"


def _alone(verdict: GateVerdict) -> str:
    """What the swapped layers say, each tried by itself."""
    layers = verdict.layers
    if not layers:
        return "no layer was tried alone"
    passed = sum(layer.passed for layer in layers)
    of = "all" if passed == len(layers) > 1 else f"{count(passed)} of"
    all_bits_kept = all(layer.bits == "kept" for layer in layers)
    does = "agree" if all_bits_kept else "are within their bounds"
    return f"{of} {count(len(layers))} swapped layers {does}, each tried alone"


def _verdict_of(result: AbOutcome, run: SideComparison | None) -> GateVerdict | None:
    """The gate's at the run's batch size and context, else the first."""
    gates = sorted(result.gates, key=lambda gate: run is None or not _is_of(gate, run))
    return gates[0].verdict if gates else None


def _is_of(gate: Gate, run: SideComparison) -> bool:
    return (gate.requests, gate.prompt_tokens) == (run.requests, run.prompt_tokens)


def _why(result: AbOutcome) -> str:
    reasons = [s.why for rank in result.swaps for s in rank.swaps if s.side == "b" and s.why]
    return f": {_short(reasons[0])}" if reasons else ""


def _short(text: str) -> str:
    """The text, of a long one its first sentence if that is short enough, else its beginning."""
    text = clean(text)
    if len(text) <= _LONGEST_REASON:
        return text
    first, end, _ = text[: _LONGEST_REASON + 1].rpartition(". ")
    return f"{first}." if end else f"{text[: _LONGEST_REASON - 3]}..."


def _factor(gain: Interval) -> str:
    return f"{gain.value:.{_digits(gain)}f} x"


def _digits(gain: Interval) -> int:
    """Decimals of a gain: enough for one or two figures of its interval's half-width."""
    half = gain.half_width
    return 3 if not 0 < half < math.inf else min(max(math.ceil(-math.log10(half)), 2), 4)
