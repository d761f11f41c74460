"""The swaps of one vLLM worker: what was asked for, what became of it, and how that is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from spark_prof.swaps.build import Swapped
from spark_prof.swaps.guard import logger
from spark_prof.swaps.settings import SwapSettings


@dataclass
class Installed:
    """The swaps of one worker.

    Attributes:
        seconds: what building and each side's capture took.
        filled: whether dummy weights were given random values.
        fault: what of this package failed, empty if nothing did.
    """

    settings: SwapSettings
    places: list[Swapped] = field(default_factory=list)
    build_seconds: float = 0.0
    trial_seconds: float = 0.0
    capture_seconds: dict[str, float] = field(default_factory=dict)
    filled: bool = False
    fault: str = ""

    def fence(self, step: Callable[[], None]) -> None:
        """Runs a step; where it fails vLLM goes on with its own kernels, and a line says so."""
        try:
            step()
        except Exception as error:
            self.fault = f"{type(error).__name__}: {error}"
            logger.exception("no kernel is swapped: %s", self.fault)


def rows_of(state: Installed) -> list[dict[str, Any]]:
    """One row each swapped place and side, of JSON values: see docs/ab.md."""
    return [
        {
            "slot": place.point.slot,
            "name": place.point.name,
            "kernel": place.swaps[side].kernel,
            "side": side,
            "state": "live" if guarded.live else "fell back",
            "why": guarded.why,
            "bits": guarded.replacement.bits if guarded.replacement else None,
            "bytes": guarded.replacement.bytes if guarded.replacement else 0,
            "line": guarded.replacement.line if guarded.replacement else "",
            "layer_error": asdict(guarded.error) if guarded.error else None,
            "calls": dict(guarded.calls),
        }
        for place in state.places
        for side, guarded in place.choices.items()
    ]


def second_copy(state: Installed) -> int:
    """Bytes of all replacements; sides that share one hold it once."""
    unique = {id(g): g for place in state.places for g in place.choices.values()}
    return sum(g.replacement.bytes for g in unique.values() if g.replacement is not None)


def summarize(state: Installed) -> None:
    """One line in vLLM's log for each side and slot, and one for each reason against a kernel."""
    asked = [(side, swap) for side, swaps in state.settings.sides.items() for swap in swaps]
    for side, swap in asked:
        places = [place for place in state.places if place.swaps.get(side) == swap]
        failed: dict[str, list[str]] = {}
        for place in places:
            if not place.choices[side].live:
                why = place.choices[side].why.replace(place.point.name, "the layer")
                failed.setdefault(why, []).append(place.point.name)
        live = len(places) - sum(map(len, failed.values()))
        text = f"{swap.slot}={swap.kernel}"
        logger.info("%s runs in %d of %d layers (side %s)", text, live, len(places), side)
        for why, names in failed.items():
            logger.warning(
                "%s: vLLM's own kernel runs in %d layers, from %s on: %s",
                text, len(names), names[0], why,
            )  # fmt: skip
        if not places:
            logger.warning("%s: the model has no such layer", text)
