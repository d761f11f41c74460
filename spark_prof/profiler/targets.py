"""Chooses what to mark in a live vLLM model.

Eager models: every module that has a component, and the decoder layers. Compiled models: only
what still runs as Python, which is the model's outside, the bodies of vLLM's opaque attention and
mixture-of-experts ops, and the modules that those bodies call.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spark_prof.profiler.ranges import Target
from spark_prof.profiler.vllm_names import (
    CALLS,
    COMPILED_CLASS,
    DRAFTERS,
    MOE_RUNNER_ENTRY,
    PROPOSE,
    RUN_MODEL,
)
from spark_prof.rules.components import (
    DRAFTING,
    LM_HEAD,
    component_of,
    is_outer_part,
    layer_of,
    outer_part,
    role_of,
    stack_of,
)
from spark_prof.traces.host_timeline import PHASE_MODULES

DRAFTER = "drafter."  # what the paths of a drafter's modules begin with


@dataclass(frozen=True)
class MarkedModule(Target):
    """A target and what its calls count to, one row of the `modules` table."""

    type: str = ""
    layer: int = -1
    component: str = ""


def phase_modules() -> list[MarkedModule]:
    """The rows of what runs outside the model."""
    return [MarkedModule(None, "", name, component=component) for name, component in PHASE_MODULES]


def models_of(runner: Any) -> Iterator[tuple[str, Any]]:
    """The model and its drafter, with what their paths begin with."""
    model = runner.get_model() if hasattr(runner, "get_model") else runner.model
    yield "", model
    for name in DRAFTERS:
        drafter: Any = getattr(getattr(runner, name, None), "model", None)
        drafter = getattr(drafter, "unwrap", lambda drafter_itself=drafter: drafter_itself)()
        if drafter is not model and hasattr(drafter, "named_modules"):
            yield DRAFTER, drafter
            return


def all_targets(runner: Any) -> list[MarkedModule]:
    """The targets of a runner's model, of its sampler and of its drafter.

    What the drafter shares with the model, such as lm_head, is the model's.
    """
    (_, model), *drafters = models_of(runner)
    marked = choose_targets(model, getattr(runner, "sampler", None))
    shared = {id(module) for _, module in model.named_modules()}
    for prefix, drafter in drafters:
        for row in choose_targets(drafter):
            if id(row.owner) not in shared:
                path = prefix.rstrip(".") if row.owner is drafter else prefix + row.path
                # Its layers are none of the decoder's.
                marked.append(replace(row, path=path, layer=-1))
    for holder in (getattr(runner, name, None) for name in DRAFTERS):
        # All of a step's drafting: of n-grams, which have no model, it is the search on the host.
        if callable(getattr(type(holder), PROPOSE, None)):
            marked += _drafting(holder, [drafter for _, drafter in drafters], marked)
            break
    return marked


def _drafting(
    holder: Any, drafters: Sequence[Any], marked: Sequence[MarkedModule]
) -> list[MarkedModule]:
    """The call that drafts and, where the draft model's own is compiled, the call around that.

    Where no call of the draft model can be marked, its kernels are of the call that drafts, which
    tells no component of them then.
    """
    whole = DRAFTER.rstrip(".")
    has_call = callable(getattr(holder, RUN_MODEL, None))
    root_marked = any(row.path == whole for row in marked)
    calls = [
        MarkedModule(holder, RUN_MODEL, whole, type=type(drafter).__name__)
        for drafter in drafters
        if has_call and not root_marked
    ]
    component = "sampler" if root_marked or calls or not drafters else ""
    named = (DRAFTING, False, type(holder).__name__, -1, component)
    return [MarkedModule(holder, PROPOSE, *named), *calls]


def choose_targets(model: Any, sampler: Any = None) -> list[MarkedModule]:
    """The targets of a model, a torch.nn.Module, and of the runner's sampler."""
    paths = defaultdict[int, list[str]](list)
    types: dict[str, str] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths[id(module)].append(path)
        types[path] = type(module).__name__
    compiled = [path for path, module in model.named_modules() if _is_compiled(module)]
    in_runner = _held_by_runners(model)
    every = {stack_of(path) for paths_of_module in paths.values() for path in paths_of_module}
    stacks = Counter(stack for stack, _ in every)  # so many layers each
    marked: list[MarkedModule] = []
    entered: set[tuple[int, str]] = set()
    for path, module in model.named_modules():
        inside = any(not root or path == root or path.startswith(root + ".") for root in compiled)
        type_name = type(module).__name__
        in_opaque_op = ".experts." in path or id(module) in in_runner
        module_paths = paths[id(module)]
        marks_module = _is_marked(path, type_name, module) and not _told_by_caller(
            module_paths, types
        )
        # Logits are computed behind the forward, also where all of that is compiled.
        outside = not inside or component_of(path, type_name) == LM_HEAD
        if (outside or in_opaque_op) and marks_module:
            layer = layer_of(path) if in_opaque_op else _common_layer(module_paths, stacks)
            named = (path or "model", inside, type_name, layer, component_of(path, type_name))
            marked.append(MarkedModule(module, "forward", *named))
        for call in CALLS:
            holder = getattr(module, call.holder, None) if call.holder else module
            method = getattr(holder, call.method, None)
            if holder is None or not callable(method) or (id(holder), call.method) in entered:
                continue
            if call.needs and not hasattr(module, call.needs):
                continue
            entered.add((id(holder), call.method))
            name = ".".join(part for part in (path, call.holder, call.method) if part)
            holder_type = type(holder).__name__
            owner = (path, type_name) if call.whole else (name, holder_type)
            counts_to = (holder_type, layer_of(path), component_of(*owner))
            marked.append(MarkedModule(holder, call.method, name, False, *counts_to))
    if sampler is not None and callable(getattr(type(sampler), "forward", None)):
        named = ("sampler", False, type(sampler).__name__, -1, "sampler")
        marked.append(MarkedModule(sampler, "forward", *named))
    return marked


def _common_layer(paths: Sequence[str], stacks: Mapping[str, int]) -> int:
    """The layer of a module with these paths, -1 where its paths name none or several.

    A model may keep a slice of its layers under a second name, where they count from 0 again: of
    several stacks the longest one tells.
    """
    of_path = [stack_of(path) for path in paths]
    if any(layer < 0 for _, layer in of_path):
        return -1
    longest = max((stack for stack, _ in of_path), key=stacks.__getitem__)
    layers = {layer for stack, layer in of_path if stack == longest}
    return layers.pop() if len(layers) == 1 else -1


def _is_compiled(module: Any) -> bool:
    names = {base.__name__ for base in type(module).__mro__}
    return COMPILED_CLASS in names and not getattr(module, "do_not_compile", True)


def _is_marked(path: str, type_name: str, module: Any) -> bool:
    if "forward" not in dir(type(module)) or type_name in ("ModuleList", "ModuleDict"):
        return False
    # What a layer does between its modules, such as adding the residual, is its own.
    is_layer = path.rsplit(".", 1)[-1].isdigit() and (layer_of(path) >= 0 or outer_part(path))
    whole = is_layer or not path or is_outer_part(path)
    return bool(whole or component_of(path, type_name))


def _told_by_caller(paths: Sequence[str], types: Mapping[str, str]) -> bool:
    """Whether several modules of other roles share this one, and each tells its component.

    Such as an activation of encoder and decoder: called by the decoder, it is no encoder's.
    """
    places = {(layer_of(path), outer_part(path)) for path in paths}
    if len(places) < 2 or len({role_of(path) for path in paths}) < 2:
        return False  # of one layer they are names of the same, as with shared experts
    callers = (path.rpartition(".")[0] for path in paths)
    return all(
        component_of(caller, types.get(caller, "")) == component_of(path, types[path]) != ""
        for caller, path in zip(callers, paths, strict=True)
    )


def _held_by_runners(model: Any) -> set[int]:
    """What MoE runners hold and call inside their opaque op, whatever its first path is.

    The gate, shared experts on a stream of their own, projections into a smaller space.
    """
    runners = (
        module
        for _, module in model.named_modules()
        if hasattr(module, MOE_RUNNER_ENTRY) and hasattr(module, "routed_experts")
    )
    return {
        id(part) for runner in runners for _, part in runner.named_modules() if part is not runner
    }
