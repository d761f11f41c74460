"""Sections of a result of `spark-prof ab`: sides, gain, accuracy gate, swaps, costs."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

from spark_prof.ab.accuracy_gate import GateVerdict, LayerError, LogitFigures
from spark_prof.ab.result import (
    AARun,
    AbOutcome,
    Gate,
    Range,
    SideComparison,
    SideCosts,
    SwappedModule,
    chosen_run,
    detectable_in,
    effect_of,
    host_behind,
    outcome_of,
)
from spark_prof.ab.statistics import CAPTURES_APART, Estimate, Interval, why_unknown
from spark_prof.analyzers.finding import NONE, command
from spark_prof.dashboards import cells
from spark_prof.dashboards.ab_answer import (
    agreement,
    decoded_at,
    interval,
    shown_effect,
    step_time,
    what_ran,
)
from spark_prof.dashboards.compare_gate import numbers
from spark_prof.dashboards.section import Column, Section, commands, listed, pairs, table
from spark_prof.dashboards.units import MISSING, between, count, counted, figure, share, size

_MOST_LINES = 3
_LONGEST = 100_000  # characters of a command or a failure: all of it

_StepTime = cells.Quantity("number", step_time)
_Factor = cells.Quantity("number", lambda gain: figure(gain, ".4f", " x"))
_Seconds = cells.Quantity("number", lambda seconds: f"{seconds:.1f} s")


def compared(result: AbOutcome) -> Section:
    """What a and b are."""
    machine = result.machine
    several = f"{count(machine.gpus)} x " if machine.gpus > 1 else ""
    device = several + machine.gpu if machine.gpu else machine.processor
    rows: list[tuple[str, str]] = [(side.side, side.name) for side in result.sides]
    rows += [("model", result.model), ("on", device), (result.mode, result.mode_why)]
    return pairs("ab_compared", "What was compared", rows, _LONGEST)


def gains(result: AbOutcome) -> Section:
    """One row a batch size or prompt's length."""
    failed = outcome_of(result) == "gate failed"
    columns = (
        cells.Text("Steps", what_ran),
        _StepTime("a", "estimate.a_us"),
        _StepTime("b", "estimate.b_us"),
        _Factor("Gain", "estimate.gain.value"),
        cells.Text("95 %", lambda run: interval(run.estimate.gain)),
        cells.Formatted("Detectable", lambda run: _smallest(result, run)),
        cells.Text("b is", lambda run: "not counted" if failed else _effect(result, run)),
        _StepTime("Saved", "estimate.saved_us.value", optional=True),
        cells.Text("95 %", lambda run: _span(run.estimate.saved_us), optional=True),
        cells.Count(
            "Starts" if result.mode == "two engines" else "Quads", "estimate.quads", optional=True
        ),
    )
    chosen = chosen_run(result)
    intro = (
        "The gate failed: none of these times counts." if failed else "",
        "Time of a step, which gives each request of the batch one token, or computes the prompts. "
        "Gain: a's time over b's.",
        *(_detectable(result, run) for run in result.runs),
        *_behind(result),
        f"Intervals: {chosen.estimate.method}." if chosen and chosen.estimate.method else "",
    )
    return table("ab_gains", "Gain", result.runs, columns, filter(None, intro))


def itself(result: AbOutcome) -> Section:
    """Side a compared with itself."""
    columns = (
        cells.Text("Steps", lambda run: f"{_of_batch(run)}{_again(run)}"),
        _Factor("Gain", "test.estimate.gain.value"),
        cells.Text("95 %", lambda run: interval(run.test.estimate.gain)),
        cells.Count("Quads", "test.estimate.quads", optional=True),
        cells.Prose("Verdict", lambda run: run.test.line or run.test.estimate.missing),
    )
    intro = ["The same measurement with nothing to find: 1 has to lie in the interval."]
    if any(run.captured_again for run in result.aa):
        intro.append(
            "Captured again: CUDA graphs of the same kernels elsewhere in memory. A steady "
            "difference there is no fault; no gain below it, or below "
            f"{share(CAPTURES_APART)}, is claimed."
        )
    return table("ab_itself", "Side a against itself", result.aa, columns, intro)


def gate(gates: Sequence[Gate]) -> Section:
    """The logits of both sides over the same tokens, and what they must keep to."""
    columns = (
        Column(""),
        *numbers("Positions", "Agree", "Ties", "Rest", "KL mean"),
        *numbers("KL worst", "Logit", optional=True),
        Column("Verdict"),
    )
    rows = tuple(
        row for batch_gate in gates for row in _gate_rows(_of_batch(batch_gate), batch_gate.verdict)
    )
    intro = (
        "Both sides compute the same positions, each after the tokens that a chose. Agree: the "
        "largest logit is the same token's. Ties are so near that rounding decides them; rest: how "
        "many of the others agree. KL divergence in nats. Logit: the worst difference of one, in "
        "standard deviations of the logits. a rounded: a against itself, its embeddings off by one "
        "rounding, which shows how far that goes in this model.",
    )
    whys = dict.fromkeys(
        f"Bounds: {batch_gate.verdict.bounds.why}."
        for batch_gate in gates
        if batch_gate.verdict.bounds
    )
    return Section("ab_gate", "The same answers", columns, rows, (*intro, *whys))


def text(result: AbOutcome, *, floor: bool = True) -> Section:
    """The perplexity of both sides on a text, with `floor` beside that of a against itself."""
    columns = (
        Column(""),
        *numbers("Tokens", "Perplexity of a", "of the other", "Nats more", "Standard error"),
    )
    rows = tuple(
        (
            f"{_of_batch(batch_gate)}, {name}",
            count(figures.positions),
            figure(figures.text.perplexity_a, ".4f"),
            figure(figures.text.perplexity_b, ".4f"),
            figure(figures.text.extra_nats, "+.5f"),
            figure(figures.text.error, ".5f"),
        )
        for batch_gate in result.gates
        for name, figures in (
            ("a and b", batch_gate.verdict.figures),
            ("a and a rounded", batch_gate.verdict.floor if floor else None),
        )
        if figures and figures.text
    )
    intro = ("Nats more: what a token of the text costs more than on side a, in the mean.",)
    return Section("ab_text", "Perplexity of the text", columns, rows, intro)


def reasons(result: AbOutcome) -> Section:
    """Why the gate failed, and what is stated where it did not."""
    columns = (*numbers("Batch"), Column("The gate says", "prose"))
    rows = dict.fromkeys(
        (count(batch_gate.requests), line)
        for batch_gate in result.gates
        for line in (*batch_gate.verdict.reasons, *batch_gate.verdict.notes)
    )
    return Section("ab_gate_says", "What the gate says", columns, tuple(rows))


def layers(result: AbOutcome) -> Section:
    """Swapped layers, each alone: one row a slot."""
    columns = (
        Column("Slot"),
        Column("Bits"),
        *numbers("Layers", "Median error", "Worst error", "Bound"),
        Column("Worst layer, or those beyond the bound", "prose"),
    )
    slots: dict[tuple[str, str], dict[str, LayerError]] = {}
    for batch_gate in result.gates:
        for layer in batch_gate.verdict.layers:
            slots.setdefault((layer.slot, layer.bits), {}).setdefault(layer.layer, layer)
    rows = tuple((*key, *_layer_row(tuple(errors.values()))) for key, errors in slots.items())
    intro = (
        "Relative L2 distance of the result of one layer from that of vLLM's own kernel on the "
        "same input.",
    )
    return Section("ab_layer_errors", "Each swapped layer alone", columns, rows, intro)


def swaps(result: AbOutcome) -> Section:
    """What became of the swaps: one row a side and slot."""
    columns = (
        Column("Side"),
        Column("Slot"),
        Column("Kernel", "prose"),
        *numbers("Live", "Fell back"),
        Column("Bits"),
        *numbers("Memory"),
        Column("It says, or why it fell back", "prose"),
    )
    modules_by_kernel: dict[tuple[str, str, str], list[SwappedModule]] = {}
    for rank in result.swaps:
        for swap in rank.swaps:
            modules_by_kernel.setdefault((swap.side, swap.slot, swap.kernel), []).append(swap)
    rows = tuple((*key, *_swap_row(modules)) for key, modules in sorted(modules_by_kernel.items()))
    ranks = len({rank.rank for rank in result.swaps})
    intro = (f"Modules of {ranks} ranks together.",) if ranks > 1 else ()
    return Section("ab_swaps", "Swaps", columns, rows, intro)


def costs(result: AbOutcome) -> Section:
    """What the sides cost beside the time of their steps."""
    has_costs = any(side.costs != SideCosts() for side in result.sides)
    columns = (
        cells.Text("Side", "side"),
        _Seconds("Start", "costs.load_s"),
        _Seconds("Packing", "costs.build_s"),
        cells.Count("Graphs", "costs.graphs"),
        _Seconds("Captured in", "costs.capture_s"),
        cells.Bytes("Swaps hold", "costs.swap_bytes"),
        cells.Bytes("GPU memory", "costs.device_bytes"),
    )
    shared = ("One engine: its start and its memory are those of both sides.",)
    return table(
        "ab_costs",
        "Costs",
        result.sides if has_costs else (),
        columns,
        shared if result.mode == "one engine" else (),
    )


def left_out(result: AbOutcome) -> Section:
    """Quads that do not count, and runs without a gain."""
    columns = (Column("Steps"), Column("Not counted"), Column("Why", "prose"))
    runs = [(f"a against a, {_of_batch(run)}{_again(run)}", run.test.estimate) for run in result.aa]
    runs += [(what_ran(run), run.estimate) for run in result.runs]
    rows = tuple(row for name, estimate in runs for row in _left_out(name, estimate))
    return Section("ab_left_out", "Not counted", columns, rows)


def serving(result: AbOutcome, source: str) -> Section:
    """How to serve side b, where it is faster and the gate has passed.

    Args:
        source: the result's file, as it was named; empty where nobody named one.
    """
    typed = command("spark-prof", "ab", "--apply", "--", source) if source else NONE
    lines = [typed] if outcome_of(result) == "faster" else []
    return commands("ab_apply", "To serve b", lines)


def missing(result: AbOutcome) -> Section:
    """What could not be measured."""
    return listed("ab_missing", "Not measured", (result.failure, *result.missing), _LONGEST)


def setup(result: AbOutcome) -> Section:
    """What to repeat it with."""
    machine = result.machine
    rows = [("command", shlex.join(result.command))]
    for side in result.sides:
        environment = [f"{name}={value}" for name, value in side.environment.items()]
        rows += [
            (f"arguments of {side.side}", shlex.join(side.arguments)),
            (f"environment of {side.side}", shlex.join(environment)),
            *((f"note on {side.side}", note) for note in side.notes),
        ]
    versions = (f"{name} {value}" for name, value in result.versions.items() if value)
    rows += [
        ("versions", ", ".join(versions)),
        ("driver", machine.driver),
        ("SM clock", _range(machine.sm_mhz, "MHz")),
        ("memory clock", _range(machine.memory_mhz, "MHz")),
        ("temperature", _range(machine.temperature_c, "degrees Celsius")),
        ("power", _range(machine.power_w, "W")),
        ("kept busy by others", _range(machine.others, "processors", ".1f")),
        ("clocks held down by", ", ".join(machine.throttled)),
        ("begun", result.taken),
    ]
    rows += [
        (f"recording of {recording.side}, batch {recording.requests}", recording.folder)
        for recording in result.recordings
    ]
    return pairs("ab_setup", "How it was measured", rows, _LONGEST)


def _of_batch(part: Gate | AARun) -> str:
    return decoded_at(part.requests, part.prompt_tokens)


def _smallest(result: AbOutcome, run: SideComparison) -> str:
    effect = detectable_in(run, result.aa)
    if effect is None:
        return MISSING if run.estimate.gain is None else "not known"
    return figure(100 * effect, ".2f", " %")


def _behind(result: AbOutcome) -> Iterator[str]:
    """A sentence for each run in which the device waited for the host."""
    for run in result.runs:
        of = {"a": (run.ahead_a, run.device_a_us), "b": (run.ahead_b, run.device_b_us)}
        sides = [f"side {side} ({_host(*of[side])})" for side in host_behind(run)]
        if sides:
            yield (
                f"At {what_ran(run)} the host was behind on {' and '.join(sides)}: the device "
                f"waited for it, and a faster host would show another gain.{_device_gain(run)}"
            )


def _device_gain(run: SideComparison) -> str:
    """What the gain is on the device alone, in a sentence of its own."""
    gain = run.device_gain
    if gain is None or run.device_a_us is None or run.device_b_us is None:
        return ""
    times = f"{step_time(run.device_a_us)} to {step_time(run.device_b_us)}"
    return f" On the device alone: {times}, {gain.value:.3g} x (95 % {interval(gain)})."


def _host(ahead: float | None, device_us: float | None) -> str:
    alone = f"; the device alone needs {step_time(device_us)}" if device_us else ""
    return f"ahead in {share(ahead)} of the steps{alone}"


def _detectable(result: AbOutcome, run: SideComparison) -> str:
    """A sentence for the run that answers, and for one of which it is not known."""
    if run.estimate.gain is None:
        return ""
    where = "" if run is chosen_run(result) else f" at {what_ran(run)}"
    effect = detectable_in(run, result.aa)
    if effect is None:
        return f"Minimum detectable effect{where}: not known ({why_unknown(run.estimate)})."
    if where:
        return ""
    return (
        f"Minimum detectable effect: {share(effect)} (80 % power): of runs like this one, four in "
        "five find a gain of that size."
    )


def _again(run: AARun) -> str:
    return ", captured again" if run.captured_again else ""


def _span(interval: Interval | None) -> str:
    return (
        MISSING if interval is None else between(step_time(interval.low), step_time(interval.high))
    )


def _left_out(name: str, estimate: Estimate) -> list[tuple[str, str, str]]:
    reasons = Counter(dropped.why for dropped in estimate.dropped)
    rows = [(name, counted(number, "quad"), why) for why, number in reasons.most_common()]
    if estimate.missing:
        rows.append((name, "no gain", estimate.missing))
    total = len(estimate.dropped) + estimate.quads
    if len(reasons) > 1:
        rows.insert(0, (name, f"{share(len(estimate.dropped) / total)} of the quads", ""))
    return rows


def _effect(result: AbOutcome, run: SideComparison) -> str:
    return shown_effect(effect_of(run, result.aa))


def _gate_rows(name: str, verdict: GateVerdict) -> Iterator[tuple[str, ...]]:
    yield (f"{name}, a and b", *_figures(verdict.figures), _gate_word(verdict))
    if verdict.floor:
        yield (f"{name}, a rounded", *_figures(verdict.floor), "")
    if bounds := verdict.bounds:
        clear = share(bounds.clear_agreement) if bounds.clear_agreement else MISSING
        most = map(_small, (bounds.kl_mean, bounds.kl_worst, bounds.worst))
        yield (f"{name}, bounds", "", "", "", clear, *most, "")


def _gate_word(verdict: GateVerdict) -> str:
    """What becomes of a gate: a side that computes with other bits may answer otherwise."""
    if not verdict.passed:
        return "FAILED"
    agree = verdict.figures.agreement if verdict.figures else None
    return "differs" if verdict.bits == "changed" and agree is not None and agree < 1 else "passed"


def _figures(figures: LogitFigures | None) -> tuple[str, ...]:
    if figures is None:
        return (MISSING,) * 7
    broken = f" ({count(figures.not_finite)} not finite)" if figures.not_finite else ""
    return (
        f"{count(figures.positions)}{broken}",
        agreement(figures.agreement),
        count(figures.near_ties),
        agreement(figures.clear_agreement),
        *map(_small, (figures.kl_mean, figures.kl_worst, figures.worst)),
    )


def _layer_row(errors: tuple[LayerError, ...]) -> tuple[str, ...]:
    relative_by_layer = {
        layer.layer: layer.relative for layer in errors if layer.relative is not None
    }
    bounds = [layer.bound for layer in errors if layer.bound is not None]
    worst = max(relative_by_layer, key=lambda name: relative_by_layer[name], default="")
    failed = [layer.layer for layer in errors if not layer.passed]
    return (
        count(len(errors)),
        _small(median(relative_by_layer.values()) if relative_by_layer else None),
        _small(relative_by_layer.get(worst)),
        _small(max(bounds, default=None)),
        ", ".join(failed[:3]) + ", ..." * (len(failed) > 3) if failed else worst,
    )


def _small(value: float | None) -> str:
    return figure(value, ".2g")


def _swap_row(modules: list[SwappedModule]) -> tuple[str, ...]:
    live = [swap for swap in modules if swap.live]
    lines = Counter(swap.line if swap.live else swap.why for swap in modules)
    lines.pop("", None)
    texts = []
    for line, number in lines.most_common():
        errors = [swap.layer_error for swap in live if swap.line == line]
        off = max((error.relative_l2 or 0.0 for error in errors if error), default=None)
        text = line if off is None else f"{line}, on trial at most {_small(off)} off"
        texts.append(f"{text} ({number} x)" if number > 1 else text)
    rest = [f"and {len(texts) - _MOST_LINES} other lines"] if len(texts) > _MOST_LINES else []
    return (
        count(len(live)),
        count(len(modules) - len(live)),
        ", ".join(sorted({swap.bits for swap in live if swap.bits})),
        size(sum(swap.bytes for swap in live)) if live else MISSING,
        "; ".join([*texts[:_MOST_LINES], *rest]),
    )


def _range(bounds: Range | None, unit: str, digits: str = ",.0f") -> str:
    if bounds is None:
        return ""
    low, high = f"{bounds.lowest:{digits}}", f"{bounds.highest:{digits}}"
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"
