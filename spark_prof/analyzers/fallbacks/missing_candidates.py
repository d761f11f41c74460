"""What a log's list of backends lacks, beside the full list of that vLLM, and what took it off."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from spark_prof.analyzers.ceilings.schemes import SIXTEEN_BIT
from spark_prof.analyzers.fallbacks.audit_rows import EngineSetup
from spark_prof.analyzers.fallbacks.layer_groups import LayerGroup
from spark_prof.rules.backend_order import OLDEST, Order, order_of
from spark_prof.rules.backends import choice_of
from spark_prof.rules.environment import UNKNOWN, Version, version_of
from spark_prof.traces.readers.engine_log import Statement

_OFFERED = re.compile(r"out of potential backends: \[([^\]]{0,2000})\]")
_NAME = re.compile(r"'(\w{1,80})'")

_UNTIL_022 = ("VLLM_USE_FLASHINFER_MOE_FP4", "VLLM_USE_FLASHINFER_MOE_FP8",
              "VLLM_USE_FLASHINFER_MOE_FP16")  # fmt: skip
"""Variables that vLLM up to 0.22 reads: 0 takes all FLASHINFER_* of their format off the list
(oracle/nvfp4.py, fp8.py and unquantized.py of 0.22). 0.24 reads none of them."""
_KINDS = {"fp8": ("fp8", "fp8_block", "fp8_channel")}
"""What one format of a log can be in the table."""
_THEIRS = dict(zip(("nvfp4", "fp8", "bf16"), _UNTIL_022, strict=True))

_OF_MODEL = {
    "swiglu_limit": "the model clamps its SwiGLU (swiglu_limit), which these do not",
    "no_vllm_cutlass": "its checkpoint's FP8 method does not let vLLM's CUTLASS experts run",
    "should_auto_disable_deep_gemm":
        "vLLM keeps DeepGEMM from this model, whose answers or speed it harms on this GPU",
}  # fmt: skip


class Missing(NamedTuple):
    """Backends that a vLLM has and that the log's list lacks."""

    names: tuple[str, ...]
    why: str  # what took them off, in a sentence
    variable: str = ""  # the variable of the environment that did
    of_model: bool = False  # whether it was something about the model, which nobody can change


def taken_off(
    group: LayerGroup,
    engine: EngineSetup,
    capability: float | None,
    statements: Sequence[Statement],
) -> Missing | None:
    """What the list of candidates lacks that would keep the scheme on this GPU.

    The log's list, and where there is none that which the recorded variables leave. None where
    nothing that matters is missing.
    """
    offered = next(_lists(group, statements), None)
    weights = group.weights or group.checkpoint_formats[0]
    version = version_of(engine.vllm)[:2]
    nearest = OLDEST if version == UNKNOWN or version < OLDEST else version
    if offered is None:
        return _by_variables(group, engine, capability, version)
    for stored in _KINDS.get(weights, (weights,)):
        full = order_of(f"--{group.kind}-backend", stored, capability, nearest)
        names = tuple(name for name, _ in full.tries if name not in offered) if full else ()
        if full is not None and any(_matters(name, full) for name in names):
            return _explained(names, offered, full, version, engine, statements)
    return None


def _by_variables(
    group: LayerGroup, engine: EngineSetup, capability: float | None, version: Version
) -> Missing | None:
    """A variable of the recorded engine that takes off what would keep the scheme."""
    environment = dict(engine.environment)
    running = " ".join(source.kernel for source in group.sources).upper()
    weights = group.weights or group.checkpoint_formats[0]
    for stored in _KINDS.get(weights, (weights,)):
        full = order_of(f"--{group.kind}-backend", stored, capability, version)
        for variable, value, backends in full.takes_off if full else ():
            if not value or environment.get(variable) != value:
                continue
            lost = [name for name in backends if full and _matters(name, full)]
            if lost and not any(re.search(rf"\b{name.upper()}\b", running) for name in backends):
                why = f"{variable}={value} takes {', '.join(lost)} off the list of candidates"
                return Missing(tuple(lost), why, variable)
    return None


def _explained(
    names: tuple[str, ...], offered: tuple[str, ...], full: Order, version: Version,
    engine: EngineSetup, statements: Sequence[Statement],
) -> Missing | None:  # fmt: skip
    """The setting that took these backends off the log's list of candidates; None if unknown."""
    lacks = f"the log's list of candidates has none of {', '.join(names)}"
    if not full.since <= version <= full.until:  # what that vLLM's full list is was not read
        return _older(names, offered, full.stored, engine, statements)
    environment = dict(engine.environment)
    for variable, value, backends in full.takes_off:
        if set(backends) != set(names):
            continue
        if not value:
            return Missing(names, f"{lacks}: {_OF_MODEL[variable]}", of_model=True)
        if environment.get(variable, value) == value:
            is_set = variable in environment
            does = "takes" if is_set else "would take"
            return Missing(names, f"{lacks}: {variable}={value} {does} exactly these off", variable)
    return Missing(names, f"{lacks}, and nothing that is known takes exactly these off")


def _older(
    names: tuple[str, ...], offered: tuple[str, ...], weights: str, engine: EngineSetup,
    statements: Sequence[Statement],
) -> Missing | None:  # fmt: skip
    """As `_explained`, for a vLLM older than those that were read, or an unknown one."""
    variable = _THEIRS.get(weights.partition("_")[0], "")
    names = tuple(name for name in names if name.startswith("FLASHINFER_"))
    is_set = {line.value for line in statements if line.rule.id == "deprecated-variable"}
    value = dict(engine.environment).get(variable)
    if not variable or not names or any(name.startswith("FLASHINFER") for name in offered):
        return None
    if value != "0" and (value is not None or variable not in is_set):
        return None
    warning = "" if value == "0" else "; the log warns that it is set"
    why = (
        f"{variable}=0 takes FLASHINFER_* off vLLM's list, and the log's has none of them{warning}"
    )
    return Missing(names, why, variable)


def _matters(name: str, full: Order) -> bool:
    """Whether a candidate runs on this GPU with activations narrower than 16 bits."""
    choice = choice_of(f"{full.stored}.{name}")
    runs = dict(full.tries).get(name) in ("yes", "needs")
    return runs and choice is not None and choice.activations not in (SIXTEEN_BIT, "")


def _lists(group: LayerGroup, statements: Sequence[Statement]) -> Iterator[tuple[str, ...]]:
    """The lists of candidates that lines about the kernels of these layers have."""
    kernels = {source.kernel for source in group.sources if source.who == "log"}
    for line in statements:
        if line.rule.topic == "kernel" and line.layer == group.kind and line.value in kernels:
            for match in _OFFERED.finditer(line.text):
                yield tuple(_NAME.findall(match[1]))
