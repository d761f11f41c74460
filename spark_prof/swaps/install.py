"""Installs the swaps that the environment asks for in a vLLM worker, and describes them."""

from __future__ import annotations

import hashlib
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from spark_prof.profiler.facts import RUNNING_SWAPS
from spark_prof.profiler.ranges import wrap_method
from spark_prof.swaps import layer_dispatch
from spark_prof.swaps.build import BuiltReplacement, SwapPoint, build_all
from spark_prof.swaps.decoder_layer import PARTS, LayerModules, Part, matrix_paths
from spark_prof.swaps.guard import GuardedReplacement, deadline, logger
from spark_prof.swaps.layer_parts import (
    SPLITTING,
    SwappablePart,
    output_rows,
    part_body,
    swap_layer,
)
from spark_prof.swaps.part_weights import built_of_failed, packed_parts
from spark_prof.swaps.progress import ALL_LIVE
from spark_prof.swaps.sided_graphs import capture_every_side, captured_graphs, keep_graphs_by_side
from spark_prof.swaps.swap_settings import (
    INSIDE_LAYER,
    SIDES,
    SWAPS_ENVIRONMENT,
    SwapSettings,
    layer_bound,
    plain_side,
)
from spark_prof.swaps.tensor_parallel import PlaceKey, agree
from spark_prof.traces.swapped import SWAPS, SwappedPlace, fact_of


@dataclass
class Installed:
    """The swaps of one worker."""

    settings: SwapSettings
    places: list[BuiltReplacement] = field(default_factory=list)
    model_built: bool = False  # what is loaded after that drafts
    build_seconds: float = 0.0
    trial_seconds: float = 0.0
    capture_seconds: dict[str, float] = field(default_factory=dict)
    fault: str = ""  # what of this package failed, empty if nothing did

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
            "bits": built.bits if built else "",
            "bytes": built.bytes if built else 0,
            "line": _said_of(place.point, built.line) if built else "",
            "rounded": guarded.rounded,
            "layer_error": asdict(guarded.error) if guarded.error else None,
            "calls": dict(guarded.calls),
        }
        for place in state.places
        for side, guarded in place.choices.items()
        for built in (guarded.replacement,)
    ]


def _said_of(point: SwapPoint, line: str) -> str:
    """What a replacement says of itself, behind the part of a decoder layer that it is."""
    if point.kind not in PARTS:
        return line
    return f"{point.kind}: {line}" if line else point.kind


def running_swaps(state: Installed) -> list[dict[str, Any]]:
    """What is swapped on the side that is computed now, as a recording keeps it."""
    side = plain_side(SIDES.active)
    places = [
        SwappedPlace(
            place.point.slot,
            name,
            place.swaps[side].kernel,
            place.swaps[side].kernel if built.bits == "changed" else "",
            size,
        )
        for place in state.places
        if (guarded := place.choices.get(side)) is not None
        and guarded.live
        and (built := guarded.replacement) is not None
        for name, size in _shares(place.point, built.bytes)
    ]
    return fact_of(places).get(SWAPS, [])


def _shares(point: SwapPoint, size: int) -> Iterator[tuple[str, int]]:
    """The modules whose weights a place has, each with what it has of its bytes.

    Several where it has made one of several matrices; else one.
    """
    modules = LayerModules.of(point.module) if point.kind == "normed matrix" else None
    if modules is None or len(modules.matrices) < 2:
        yield point.name, size
        return
    paths = matrix_paths(point.module)
    around, rows = point.name.removesuffix(paths[0]), [*map(output_rows, modules.matrices)]
    for path, count in zip(paths, rows, strict=True):
        yield around + path, size * count // sum(rows)


def second_copy(state: Installed) -> int:
    """Bytes of all replacements; sides that share one hold it once."""
    unique = {id(g): g for place in state.places for g in place.choices.values()}
    replacements = (g.replacement or g.retired for g in unique.values())
    return sum(replacement.bytes for replacement in replacements if replacement is not None)


def summarize(state: Installed) -> None:
    """One line in vLLM's log for each side and slot, and one for each reason against a kernel."""
    pairs = [(side, swap) for side, swaps in state.settings.sides.items() for swap in swaps]
    logger.info("%s", ALL_LIVE)
    for side, swap in pairs:
        places = [place for place in state.places if place.swaps.get(side) == swap]
        failed: dict[str, list[str]] = {}
        for place in places:
            if not place.choices[side].live:
                failed.setdefault(place.choices[side].why, []).append(place.point.name)
        live = len(places) - sum(map(len, failed.values()))
        text = f"{swap.slot}={swap.kernel}"
        off: dict[str, float] = {}
        for place in places:
            error, kind = place.choices[side].error, place.point.kind
            if error is not None and kind in PARTS:
                off[kind] = max(off.get(kind, 0.0), error.relative_l2)
        errors = ", ".join(f"{part} {error:.2%}" for part, error in off.items())
        logger.info(
            "%s runs in %d of %d layers (side %s)%s",
            text, live, len(places), side, f"; at most off on trial: {errors}" if errors else "",
        )  # fmt: skip
        for why, names in failed.items():
            logger.warning(
                "%s: vLLM's own kernel runs in %d layers, from %s on: %s",
                text, len(names), names[0], why,
            )  # fmt: skip
        if not places and swap.slot in (*INSIDE_LAYER, "mlp") and _has_parts(state, side):
            logger.info("%s: slot layer leaves it none of the model's layers", text)
        elif not places:
            logger.warning("%s: the model has no such layer", text)


def _has_parts(state: Installed, side: str) -> bool:
    """Whether a part of a decoder layer was asked for on a side."""
    return any(place.point.kind in PARTS and side in place.swaps for place in state.places)


_LOADERS = "vllm.model_executor.model_loader"
_PROCESS = "process_weights_after_loading"
_SEED = 20260

_NEW_WEIGHTS = ("reload_weights", "reset_weights", "start_weight_update", "update_weights")
"""A worker's methods that change the weights of a model that is loaded."""


_INSTALLED: dict[int, Installed] = {}


def install(worker: Any, settings: SwapSettings) -> None:
    """Prepares a worker just constructed; everything else waits until it loads its model."""
    SIDES.names, SIDES.active = settings.names, settings.names[0]
    state = _INSTALLED[id(worker)] = Installed(settings)
    setattr(worker, RUNNING_SWAPS, partial(running_swaps, state))
    keep_graphs_by_side()
    layer_dispatch.register_ops()
    wrap_method(worker, "load_model", partial(_load, worker, state))
    for name in _NEW_WEIGHTS:
        wrap_method(worker, name, partial(_change_weights, state))


def describe(worker: Any) -> dict[str, Any]:
    """What became of a worker's swaps, as JSON values: see docs/ab.md."""
    state = _INSTALLED.get(id(worker))
    if state is None:
        return {"rank": int(worker.rank), "swaps": [], "sides": ["a"], "captured": {}}
    return {
        "rank": int(worker.rank),
        "swaps": rows_of(state),
        "sides": list(SIDES.names),
        "captured": captured_graphs(),
        "seconds": {
            "build": state.build_seconds,
            "trial": state.trial_seconds,
            "capture": state.capture_seconds,
        },
        "memory_bytes": {"second_copy": second_copy(state), **_device_memory(worker)},
        "fault": state.fault,
    }


def _device_memory(worker: Any) -> dict[str, int]:
    """What of the worker's GPU is in use, by whatever process; nothing without one."""
    import torch

    if getattr(getattr(worker, "device", None), "type", "cpu") != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(worker.device)
    return {"device": total - free}


def _load(worker: Any, state: Installed, original: Any, *arguments: Any, **named: Any) -> Any:
    with _before_layout(lambda model: state.fence(lambda: _build(worker, state, model))):
        result = original(*arguments, **named)
    begin = time.perf_counter()
    state.fence(lambda: _try(worker, state))
    state.fence(lambda: agree(_guarded(state), state.fault))
    state.fence(lambda: _put_in(worker, state))
    state.fence(lambda: agree(_guarded(state), state.fault))
    state.trial_seconds = time.perf_counter() - begin
    state.fence(lambda: _tell(worker, state))
    if len(SIDES.names) > 1:
        capture = partial(capture_every_side, state.capture_seconds, logger.error)
        wrap_method(worker.model_runner, "capture_model", capture)
    return result


def _change_weights(state: Installed, original: Any, *arguments: Any, **named: Any) -> Any:
    """Refuses new weights where kernels hold copies of the old ones: captured graphs use them."""
    if second_copy(state):
        raise RuntimeError(
            "kernels that spark-prof swapped in hold copies of this model's weights; start the "
            f"engine without {SWAPS_ENVIRONMENT} to change them"
        )
    return original(*arguments, **named)


@contextmanager
def _before_layout(build: Callable[[Any], None]) -> Iterator[None]:
    """Calls `build` with the model when its weights are loaded, before vLLM lays them out anew."""
    import vllm.model_executor.model_loader.utils as utils

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def process(model: Any, *arguments: Any, **named: Any) -> Any:
            build(model)
            return original(model, *arguments, **named)

        return process

    # A recorder has wrapped that of some modules.
    function = inspect.unwrap(getattr(utils, _PROCESS))
    originals = {
        module: original
        for name, module in list(sys.modules.items())
        if name.startswith(_LOADERS)
        and callable(original := getattr(module, _PROCESS, None))
        and inspect.unwrap(original) is function
    }
    for module, original in originals.items():
        setattr(module, _PROCESS, around(original))
    try:
        yield
    finally:
        for module, original in originals.items():
            setattr(module, _PROCESS, original)


def _build(worker: Any, state: Installed, model: Any) -> None:
    if not state.settings.serve and worker.vllm_config.load_config.load_format == "dummy":
        from spark_prof.swaps.dummy import fill_dummy

        fill_dummy(model, _SEED)
    if state.model_built:
        logger.info("the model of the drafts keeps vLLM's own kernels")
        return
    state.model_built = True
    begin = time.perf_counter()
    with _building(state):
        state.places = build_all(model, state.settings.sides)
    state.build_seconds = time.perf_counter() - begin


@contextmanager
def _building(state: Installed) -> Iterator[None]:
    with (
        deadline(10 * state.settings.hang_seconds, "building the replacement kernels has run"),
        _float32_by_default(),
    ):
        yield


@contextmanager
def _float32_by_default() -> Iterator[None]:
    """Undoes for a while that vLLM loads models with their own dtype as torch's default."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _try(worker: Any, state: Installed) -> None:
    """Tries what was built."""
    from spark_prof.swaps.trial import try_all

    if any(place.point.kind in PARTS for place in state.places):
        _let_layers_be_swapped(worker.vllm_config.compilation_config)
    packed = packed_parts(state.places)
    places = state.places
    while places:  # then those of slots beside `layer`, where a part of it has failed
        try_all(places, worker.vllm_config, state.settings.hang_seconds)
        if state.settings.serve:
            _refuse_wrong(places)
        with _building(state):
            places = built_of_failed(places, packed)
        state.places += places


def _guarded(state: Installed) -> dict[PlaceKey, GuardedReplacement]:
    return {
        (place.point.slot, place.point.name, place.point.kind, side): guarded
        for place in state.places
        for side, guarded in place.choices.items()
    }


def _put_in(worker: Any, state: Installed) -> None:
    """Lets the layers choose, unless something has failed, and tries them once more."""
    from spark_prof.swaps.trial import try_dispatch

    if state.fault:
        return
    mode = getattr(worker.vllm_config.compilation_config, "mode", None)
    compiled = getattr(mode, "name", str(mode)) not in ("NONE", "None")
    parts: dict[int, dict[Part, SwappablePart]] = {}
    for place in state.places:
        point = place.point
        if not any(guarded.live for guarded in place.choices.values()):
            continue
        if point.kind in PARTS:
            body = part_body(point.module, point.kind, place.choices)
            parts.setdefault(id(point.module), {})[point.kind] = body
        elif place.point.kind == "experts":
            layer_dispatch.swap_experts(place.point, place.choices)
        elif place.point.kind == "choice":
            layer_dispatch.swap_choice(place.point, place.choices)
        elif place.point.kind == "norm":
            layer_dispatch.swap_norm(place.point, place.choices, compiled)
        else:
            layer_dispatch.swap_linear(place.point, place.choices, compiled)
    modules = {id(place.point.module): place.point.module for place in state.places}
    for key, bodies in parts.items():
        swap_layer(modules[key], bodies, compiled)
    try_dispatch(state.places, worker.vllm_config, state.settings.hang_seconds)


def _tell(worker: Any, state: Installed) -> None:
    """Tells the compiler and the log what runs."""
    if state.fault:
        return
    _tell_compiler(worker.vllm_config, state)
    summarize(state)


def _let_layers_be_swapped(compilation: Any) -> None:
    """Tells vLLM to run our attention where it runs its own, and to call experts by their names."""
    if compilation.splitting_ops and SPLITTING not in compilation.splitting_ops:
        compilation.splitting_ops.append(SPLITTING)
    # Else its n-th call is the n-th layer's, whichever layers call.
    compilation.fast_moe_cold_start = False


def _refuse_wrong(places: Sequence[BuiltReplacement]) -> None:
    """Turns kernels off that computed something else than vLLM's own on trial."""
    for place in places:
        for guarded in place.choices.values():
            if guarded.replacement is None or guarded.error is None:
                continue
            bits, error = guarded.replacement.bits, guarded.error
            bound = layer_bound(bits, place.point.slot, place.point.name, guarded.rounded)
            if error.beyond or not error.relative_l2 <= bound:
                guarded.fail(
                    f"on trial row {error.row} of {error.tokens} is {error.relative_l2:.2%} from"
                    f" vLLM's result; at most {bound:.2%} is allowed",
                    quiet=True,
                )


def _tell_compiler(vllm_config: Any, state: Installed) -> None:
    """Tells models apart that are compiled alike but for their swaps: vLLM keeps them by a hash.

    The lm_head is not compiled: with it or without the code that vLLM kept is the right one.
    """
    live = [
        f"{place.point.slot} {place.point.name}"
        for place in state.places
        if place.point.slot != "lm_head" and any(g.live for g in place.choices.values())
    ]
    if live and isinstance(vllm_config.additional_config, dict):
        text = "; ".join(sorted(live))
        digest = hashlib.sha256(text.encode()).hexdigest()
        vllm_config.additional_config["spark_prof_swaps"] = digest
