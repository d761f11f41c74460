"""Records the kernels of both sides into bundles, and says where the gain came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from spark_prof.ab.engine_process import Engine
from spark_prof.ab.measuring import MeasuredShape, longest_generation, slack
from spark_prof.ab.messages import Facts, Generate, PromptBatch, RankAnswers, Switch, Times
from spark_prof.ab.result import AHEAD, AbOutcome, Recording, host_ahead
from spark_prof.ab.setting import AbRun
from spark_prof.analyzers.comparing.attribute_gain import summarize
from spark_prof.analyzers.comparing.swap_attribution import SwapOnSide, Untraced
from spark_prof.errors import CommandError
from spark_prof.profiler.attach import requested
from spark_prof.profiler.launcher import make_bundle
from spark_prof.profiler.settings import Settings
from spark_prof.profiler.watch import Watcher
from spark_prof.traces.bundle import Bundle

_STEPS = 60
_WARM_STEPS = 20
_BEGIN_SECONDS = 60.0
_FLUSH_SECONDS = 120.0


def record(
    setting: AbRun, engine: Engine, facts: Facts, side: str, name: str, shape: MeasuredShape
) -> Bundle | None:
    """A recording of one side, None where none could be made; the result says why."""
    folder = setting.options.folder / f"recording-{side}-{shape.requests}"
    setting.say(f"recording side {side} at batch size {shape.requests}")
    try:
        bundle = record_side(engine, facts, name, shape, folder, setting.command.text, setting.say)
    except CommandError as error:
        engine.check_alive()
        setting.keeper.miss(f"side {side} was not recorded: {error}")
        return None
    recording = Recording("a" if side == "a" else "b", shape.requests, folder.name)
    setting.keeper.add(recordings=(recording,))
    return bundle


def record_side(
    engine: Engine,
    facts: Facts,
    side: str,
    shape: MeasuredShape,
    folder: Path,
    command: Sequence[str],
    say: Callable[[str], None],
) -> Bundle:
    """Records steps that decode, all of them watched; what was written before a failure stays."""
    settings = Settings(
        str(folder.absolute()), steps=_STEPS, warmup_steps=_WARM_STEPS, decode_only=True
    )
    processes = engine.recordable()
    if not processes.pids:
        raise CommandError("no process of the engine can be recorded; see the engine's log")
    engine.ask(Switch(side), RankAnswers, f"switching to side {side}")
    with requested(processes, settings, command, say) as (watcher, claim):
        engine.open(claim.folder, settings.pieces)
        # Everybody has taken the request when the ranks and the scheduler have said who they are.
        watcher.wait(lambda: _all_there(watcher), _BEGIN_SECONDS)
        watcher.check()
        left, longest = _WARM_STEPS + 2 * _STEPS, longest_generation(shape, facts)
        while left > 0 and not watcher.all_finished():
            tokens = min(left, longest)
            batch = PromptBatch(shape.requests, shape.prompt_tokens, tokens + slack(shape))
            engine.ask(Generate(batch), Times, f"recording side {side}")
            left -= tokens
        finished = watcher.wait(watcher.all_finished, 5.0)
        watcher.stop()
        if not finished:
            watcher.wait(watcher.all_finished, _FLUSH_SECONDS)
        watcher.wait_for_engine()
        return make_bundle(settings.folder, watcher, lambda _: None, "complete")


def _all_there(watcher: Watcher) -> bool:
    return bool(watcher.refused()) or (
        bool(watcher.ranks()) and any(watcher.pieces.glob("engine*.facts.json"))
    )


def attribute(setting: AbRun, bundles: Mapping[str, Bundle | None], shape: MeasuredShape) -> None:
    """Adds where the gain came from to the result, if both sides were recorded."""
    a, b = bundles.get("a"), bundles.get("b")
    if a is None or b is None:
        return
    result = setting.keeper.result
    try:
        attribution = summarize(a, b, _swapped(result), _untraced(result, shape), shape.requests)
    except CommandError as error:
        setting.keeper.miss(f"where the gain came from is not known: {error}")
        return
    setting.keeper.add(attributions=(attribution,))


def _swapped(result: AbOutcome) -> tuple[SwapOnSide, ...]:
    return tuple(
        SwapOnSide(swap.side, swap.slot, swap.name, swap.kernel)
        for rank in result.swaps
        if rank.rank == 0
        for swap in rank.swaps
        if swap.live
    )


def _untraced(result: AbOutcome, shape: MeasuredShape) -> Untraced | None:
    for run in result.runs:
        if MeasuredShape(run.phase, run.requests, run.prompt_tokens) == shape:
            a_us, b_us = run.estimate.a_us, run.estimate.b_us
            if a_us is not None and b_us is not None:
                # Where the host is ahead a step takes what the device alone needs.
                a = a_us if (run.ahead_a or 0.0) >= AHEAD else run.device_a_us
                b = b_us if (run.ahead_b or 0.0) >= AHEAD else run.device_b_us
                both = None if a is None or b is None else (a, b)
                return Untraced(a_us, b_us, host_ahead=host_ahead(run), device_us=both)
    return None
