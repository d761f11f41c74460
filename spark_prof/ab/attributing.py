"""Records both sides and says where the gain came from."""

from __future__ import annotations

from collections.abc import Mapping

from spark_prof.ab.engine import Engine
from spark_prof.ab.measuring import Shape
from spark_prof.ab.outcome import host_ahead
from spark_prof.ab.recording import record_side
from spark_prof.ab.result import Recording, Result
from spark_prof.ab.setting import Setting
from spark_prof.analyzers.swap_gain.model import Swapped, Untraced
from spark_prof.analyzers.swap_gain.summary import summarize
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle


def record(setting: Setting, engine: Engine, side: str, name: str, shape: Shape) -> Bundle | None:
    """A recording of one side, None where none could be made; the result says why.

    Args:
        setting: of the run.
        engine: in which the side is live.
        side: a or b.
        name: of the side in this engine.
        shape: of the steps.
    """
    folder = setting.options.folder / f"recording-{side}-{shape.requests}"
    setting.say(f"recording side {side} at batch size {shape.requests}")
    try:
        bundle = record_side(
            engine,
            name,
            shape.requests,
            shape.prompt_tokens,
            folder,
            setting.command.text,
            setting.say,
        )
    except CommandError as error:
        engine.check_alive()
        setting.keeper.miss(f"side {side} was not recorded: {error}")
        return None
    kept = Recording("a" if side == "a" else "b", shape.requests, folder.name)
    setting.keeper.add(recordings=(kept,))
    return bundle


def attribute(setting: Setting, bundles: Mapping[str, Bundle | None], shape: Shape) -> None:
    """Adds where the gain came from to the result, if both sides were recorded."""
    a, b = bundles.get("a"), bundles.get("b")
    if a is None or b is None:
        return
    result = setting.keeper.result
    try:
        found = summarize(a, b, _swapped(result), _untraced(result, shape), shape.requests)
    except CommandError as error:
        setting.keeper.miss(f"where the gain came from is not known: {error}")
        return
    setting.keeper.add(attributions=(found,))


def _swapped(result: Result) -> tuple[Swapped, ...]:
    return tuple(
        Swapped(swap.side, swap.slot, swap.name, swap.kernel)
        for rank in result.swaps
        if rank.rank == 0
        for swap in rank.swaps
        if swap.live
    )


def _untraced(result: Result, shape: Shape) -> Untraced | None:
    for run in result.runs:
        if (run.phase, run.requests, run.prompt_tokens) == (
            shape.phase,
            shape.requests,
            shape.prompt_tokens,
        ):
            a_us, b_us = run.estimate.a_us, run.estimate.b_us
            if a_us is None or b_us is None:
                return None
            return Untraced(a_us, b_us, host_ahead=host_ahead(run))
    return None
