"""Installs the swaps that the environment asks for in a vLLM worker."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from spark_prof.profiler.ranges import replace_attribute
from spark_prof.swaps import dispatch, ops
from spark_prof.swaps.build import Swapped, build_all
from spark_prof.swaps.graphs import capture_every_side, keep_graphs_by_side
from spark_prof.swaps.guard import deadline, logger
from spark_prof.swaps.settings import SwapSettings
from spark_prof.swaps.sides import SIDES

__all__ = ["Installed", "describe", "install"]

_LOADERS = "vllm.model_executor.model_loader"
_PROCESS = "process_weights_after_loading"
_SEED = 20260


@dataclass
class Installed:
    """The swaps of one worker.

    Attributes:
        settings: what was asked for.
        places: what was found and built.
        seconds: what building and each side's capture took.
        errors: the error of each replacement on trial, by its id.
        filled: whether dummy weights were given random values.
        fault: what of this package failed, empty if nothing did.
    """

    settings: SwapSettings
    places: list[Swapped] = field(default_factory=list)
    build_seconds: float = 0.0
    trial_seconds: float = 0.0
    capture_seconds: dict[str, float] = field(default_factory=dict)
    errors: dict[int, dict[str, float]] = field(default_factory=dict)
    filled: bool = False
    fault: str = ""

    def fence(self, step: Callable[[], None]) -> None:
        """Runs a step; where it fails vLLM goes on with its own kernels, and a line says so."""
        try:
            step()
        except Exception as error:
            self.fault = f"{type(error).__name__}: {error}"
            logger.exception("no kernel is swapped: %s", self.fault)


_INSTALLED: dict[int, Installed] = {}


def install(worker: Any, settings: SwapSettings) -> None:
    """Prepares a worker that was just constructed; everything else waits until it loads its model.

    Args:
        worker: vLLM's, on a CPU or a GPU.
        settings: what to swap.
    """
    SIDES.names, SIDES.active = settings.names, settings.names[0]
    state = _INSTALLED[id(worker)] = Installed(settings)
    keep_graphs_by_side()
    ops.register_ops()
    extra = worker.vllm_config.additional_config
    if isinstance(extra, dict):
        # vLLM keeps compiled models by a hash of its configuration: ours is another model.
        extra["spark_prof_swaps"] = settings.text
    _wrap(worker, "load_model", lambda load: _loading(worker, state, load))


def describe(worker: Any) -> dict[str, Any]:
    """What became of a worker's swaps: see docs/ab.md for the fields."""
    state = _INSTALLED.get(id(worker))
    if state is None:
        return {"rank": int(worker.rank), "swaps": [], "sides": ["a"], "captured": {}}
    rows = [
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
            "layer_error": state.errors.get(id(guarded)),
            "calls": dict(guarded.calls),
        }
        for place in state.places
        for side, guarded in place.choices.items()
    ]
    return {
        "rank": int(worker.rank),
        "swaps": rows,
        "sides": list(SIDES.names),
        "seconds": {
            "build": state.build_seconds,
            "trial": state.trial_seconds,
            "capture": state.capture_seconds,
        },
        "memory_bytes": {"second_copy": _second_copy(state)},
        "dummy_weights_filled": state.filled,
        "fault": state.fault,
    }


def _second_copy(state: Installed) -> int:
    """Bytes of all replacements; sides that share one hold it once."""
    unique = {id(g): g for place in state.places for g in place.choices.values()}
    return sum(g.replacement.bytes for g in unique.values() if g.replacement is not None)


def _wrap(owner: Any, name: str, around: Callable[[Any], Any]) -> None:
    replace_attribute(owner, name, around(getattr(owner, name)))


def _loading(worker: Any, state: Installed, load: Any) -> Any:
    def load_model(*arguments: Any, **named: Any) -> Any:
        with _before_layout(lambda model: state.fence(lambda: _build(worker, state, model))):
            result = load(*arguments, **named)
        state.fence(lambda: _put_in(worker, state))
        if len(SIDES.names) > 1:
            _wrap(
                worker.model_runner,
                "capture_model",
                lambda capture: capture_every_side(capture, state.capture_seconds, logger.error),
            )
        return result

    return load_model


@contextmanager
def _before_layout(build: Callable[[Any], None]) -> Iterator[None]:
    """Calls `build` with the model when its weights are loaded, before vLLM lays them out anew."""
    import vllm.model_executor.model_loader.utils as utils

    original = getattr(utils, _PROCESS)

    def process(model: Any, *arguments: Any, **named: Any) -> Any:
        build(model)
        return original(model, *arguments, **named)

    holders = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(_LOADERS) and getattr(module, _PROCESS, None) is original
    ]
    for module in holders:
        setattr(module, _PROCESS, process)
    try:
        yield
    finally:
        for module in holders:
            setattr(module, _PROCESS, original)


def _build(worker: Any, state: Installed, model: Any) -> None:
    from spark_prof.swaps.own import find_builder
    from spark_prof.swaps.weights import read_layer

    if state.settings.fill and str(worker.vllm_config.load_config.load_format) == "dummy":
        from spark_prof.swaps.dummy import fill_dummy

        fill_dummy(model, _SEED)
        state.filled = True
    begin = time.perf_counter()
    with deadline(10 * state.settings.hang_seconds, "building the replacement kernels has run"):
        state.places = build_all(model, state.settings.sides, find_builder, read_layer)
    state.build_seconds = time.perf_counter() - begin


def _put_in(worker: Any, state: Installed) -> None:
    """Tries what was built, and lets the layers choose."""
    from spark_prof.swaps.trial import try_all

    compiled = _is_compiled(worker.vllm_config)
    begin = time.perf_counter()
    state.errors = try_all(state.places, worker.vllm_config, state.settings.hang_seconds)
    state.trial_seconds = time.perf_counter() - begin
    for place in state.places:
        if not any(guarded.live for guarded in place.choices.values()):
            continue
        if place.point.kind == "experts":
            dispatch.swap_experts(place.point, place.choices)
        elif place.point.kind == "choice":
            dispatch.swap_choice(place.point, place.choices)
        elif place.point.kind == "norm":
            dispatch.swap_norm(place.point, place.choices, compiled)
        else:
            dispatch.swap_linear(place.point, place.choices, compiled)
    _summarize(state)


def _is_compiled(vllm_config: Any) -> bool:
    mode = getattr(vllm_config.compilation_config, "mode", None)
    return getattr(mode, "name", str(mode)) not in ("NONE", "None")


def _summarize(state: Installed) -> None:
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
