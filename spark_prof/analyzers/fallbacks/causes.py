"""Why layers do not run in the scheme that their checkpoint asks for, and what changes that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from spark_prof.analyzers.ceilings.schemes import SIXTEEN_BIT, bits_of
from spark_prof.analyzers.fallbacks.audit_rows import EngineSetup
from spark_prof.analyzers.fallbacks.layer_groups import LayerGroup
from spark_prof.analyzers.fallbacks.missing_candidates import taken_off
from spark_prof.rules.backend_order import NEWEST, OLDEST, KernelBackend, backends_for
from spark_prof.rules.backends import choice_of
from spark_prof.rules.environment import (
    FLAGS_FROM,
    UNKNOWN,
    Version,
    backend_flag,
    since,
    version_of,
)
from spark_prof.traces.readers.engine_log import Statement

FIRST_WITH = {"nvfp4": 10.0, "mxfp4": 10.0, "mxfp8": 10.0, "fp8": 8.9}
"""Compute capability from which tensor cores multiply that format (CUDA C++ programming guide)."""

_FORCED: tuple[tuple[str, Version], ...] = (
    ("VLLM_TEST_FORCE_FP8_MARLIN", (0, 29)),
    ("VLLM_MXFP4_USE_MARLIN", (0, 23)),
    ("VLLM_NVFP4_GEMM_BACKEND", (0, 23)),
)
"""Variables that ask for Marlin, and the first vLLM whose sources do not read them."""
_A16_FIRST = "FlashInferCuteDslNvFp4W4A16LinearKernel"


class Cause(NamedTuple):
    """A cause."""

    # scheme, model, architecture, forced, disabled, order, install, refused, emulation, rounds or
    # unknown
    id: str
    why: str  # it in a sentence
    fix: str = ""  # what changes it; empty where nothing should be changed
    tries: tuple[str, ...] = ()  # options of vLLM's in it, as they are typed


def capability_of(engine: EngineSetup) -> float | None:
    """The compute capability as a number; None where it is unknown or not NVIDIA's."""
    try:
        number = float(engine.capability)
    except ValueError:
        return None
    return number if 1 <= number < 100 else None


def cause_of(
    group: LayerGroup, engine: EngineSetup, statements: Sequence[Statement]
) -> Cause | None:
    """What made the engine leave the checkpoint's scheme; None where it did not."""
    engine = _with_flags(engine, statements)
    weights = group.weights or group.checkpoint_formats[0]
    families = {source.family for source in group.sources}
    if "emulation" in families:
        return _of_emulation(group, engine, statements)
    if "unquantized" in families:
        stored = group.checkpoint_formats[0]
        if (bits_of(stored) or 16) < 16:
            return Cause(
                "unquantized",
                f"the checkpoint stores these layers as {stored} and they run unquantized",
                "check with VLLM_LOGGING_LEVEL=DEBUG why vLLM has no method for them",
            )
        return None
    activations = next((w.activations for w in group.sources if w.activations), "")
    of_weights_alone = group.checkpoint_formats[1] == SIXTEEN_BIT != group.checkpoint_formats[0]
    if of_weights_alone and bits_of(activations) in (4, 8):
        return _of_rounding(group, engine, activations)
    if activations != SIXTEEN_BIT or (bits_of(weights) or 16) >= 16:
        return None
    if group.checkpoint_formats[1] == SIXTEEN_BIT:
        return Cause("scheme", "the checkpoint itself asks for 16-bit activations")
    if not group.checkpoint_formats[0] and weights in ("int4", "nf4"):
        return Cause("scheme", f"{weights} weights are made for 16-bit activations")
    if group.checkpoint_formats[0] and not group.checkpoint_formats[1]:
        return Cause(
            "scheme", "the checkpoint asks for nothing but 16-bit activations",
            *_quantize_activations(group, engine),
        )  # fmt: skip
    first, capability = FIRST_WITH.get(weights), capability_of(engine)
    if first is not None and capability is not None and capability < first:
        return Cause(
            "architecture",
            f"tensor cores multiply {weights} from compute capability {first} on; this GPU has "
            f"{engine.capability}",
        )
    return next(_avoidable(group, engine, statements))


def _of_rounding(group: LayerGroup, engine: EngineSetup, activations: str) -> Cause:
    """The cause of a kernel that rounds activations which the checkpoint leaves at 16 bits."""
    marlin = backend_flag(group.kind, "marlin", engine.vllm)
    family = next(source.family for source in group.sources if source.activations)
    return Cause(
        "rounds",
        f"{family} rounds activations to {activations} before it multiplies them",
        f"{marlin} keeps them at 16 bits",
        (marlin,),
    )


def _with_flags(engine: EngineSetup, statements: Sequence[Statement]) -> EngineSetup:
    """The engine as one that has --moe-backend, where its own log advises that option."""
    advised = any(
        "--moe-backend" in line.text for line in statements if line.rule.topic == "setting"
    )
    if advised and not since(engine.vllm, FLAGS_FROM):
        return replace(engine, vllm=".".join(map(str, FLAGS_FROM)))
    return engine


def _quantize_activations(group: LayerGroup, engine: EngineSetup) -> tuple[str, tuple[str, ...]]:
    """How experts in MXFP4, such as gpt-oss has, get activations in MXFP8."""
    capability = capability_of(engine)
    if group.weights != "mxfp4" or group.kind != "moe" or capability is None or capability < 10:
        return "", ()
    if not since(engine.vllm, FLAGS_FROM):
        return "for MXFP8 activations: VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS=1", ()
    flag = "--moe-backend flashinfer_cutlass"
    with_it = "--quantization_config.moe.activation mxfp8"
    return f"for MXFP8 activations: {flag} with {with_it}", (flag,)


def _better(group: LayerGroup, engine: EngineSetup) -> str:
    """What asks for a kernel that keeps the scheme; empty where none is known to run here."""
    if not since(engine.vllm, FLAGS_FROM):
        return backend_flag(group.kind, "flashinfer_cutlass", engine.vllm)
    weights, capability = group.weights or group.checkpoint_formats[0], capability_of(engine)
    for row in _backends_of(f"--{group.kind}-backend", weights, capability, engine.vllm):
        choice = choice_of(f"{row.stored}.{row.name}")
        narrow = choice is not None and choice.activations not in (SIXTEEN_BIT, "")
        if narrow and not row.packages:
            return f"{row.option} {row.value}"
    return ""


def _backends_of(
    option: str, weights: str, capability: float | None, vllm: str
) -> tuple[KernelBackend, ...]:
    """The backends of a vLLM, as far as its version is known.

    Of one older than those that were read those of the oldest, and of an unknown one what the
    oldest and the newest have alike.
    """
    version = version_of(vllm)[:2]
    if version != UNKNOWN:
        return backends_for(option, weights, capability, max(version, OLDEST))
    newest = {row.value for row in backends_for(option, weights, capability, NEWEST)}
    oldest = backends_for(option, weights, capability, OLDEST)
    return tuple(row for row in oldest if row.value in newest)


def _of_emulation(group: LayerGroup, engine: EngineSetup, statements: Sequence[Statement]) -> Cause:
    backend = engine.moe_backend if group.kind == "moe" else engine.linear_backend
    if backend == "emulation":
        return Cause("forced", f"--{group.kind}-backend emulation", "leave that flag out")
    marlin = backend_flag(group.kind, "marlin", engine.vllm)
    reason = next(_of_log(group, engine, statements), None)
    why = "no faster kernel was found" + (f": {reason.why}" if reason else "")
    return Cause("emulation", why, f"install FlashInfer, or use {marlin}", (marlin,))


def _avoidable(
    group: LayerGroup, engine: EngineSetup, statements: Sequence[Statement]
) -> Iterator[Cause]:
    """Causes of 16-bit activations where others were to be had, the surest first."""
    backend = engine.moe_backend if group.kind == "moe" else engine.linear_backend
    weights, better = group.weights or group.checkpoint_formats[0], _better(group, engine)
    choice = choice_of(f"{weights}.{backend}") if backend else None
    better_only = (better,) if better else ()
    if choice is not None and choice.activations == SIXTEEN_BIT:
        flag = f"--{group.kind}-backend"
        instead = f", or use {better}" if better else ""
        yield Cause("forced", f"{flag} {backend}", f"leave {flag} out{instead}", better_only)
    environment = dict(engine.environment)
    for name, until in _FORCED:
        value = environment.get(name, "0") if not since(engine.vllm, until) else "0"
        if value not in ("", "0") and (name != "VLLM_NVFP4_GEMM_BACKEND" or value == "marlin"):
            yield Cause("forced", f"{name}={value}", f"unset {name}")
    disabled = environment.get("VLLM_DISABLED_KERNELS", "")
    choices = {name: choice_of(name) for name in disabled.split(",")}
    names = [
        name
        for name, kernel_choice in choices.items()
        if kernel_choice and kernel_choice.activations == "same"
    ]
    if names:
        fix = f"take {', '.join(names)} out of VLLM_DISABLED_KERNELS"
        yield Cause("disabled", f"VLLM_DISABLED_KERNELS={disabled}", fix)
    a16_first = any(_A16_FIRST in source.kernel for source in group.sources)
    if a16_first and version_of(engine.vllm) < (0, 30):
        yield Cause(
            "order",
            f"{_A16_FIRST} comes before the kernels with FP4 activations in nightlies of vLLM "
            "before 0.30, 31 August to 8 September 2026, and in no release (issue 55397; on a GB10 "
            "31 % slower prompts are reported there)",
            f"set VLLM_DISABLED_KERNELS={_A16_FIRST}, or update vLLM to 0.30",
        )
    missing = taken_off(group, engine, capability_of(engine), statements)
    if missing is not None and missing.of_model:
        yield Cause("model", missing.why)
    elif missing is not None and missing.variable:
        instead = f", or ask with {better}" if better else ""
        yield Cause("disabled", missing.why, f"unset {missing.variable}{instead}", better_only)
    yield from _of_log(group, engine, statements)
    lacks = f"; {missing.why}" if missing is not None else ""
    ask = f"ask with {better}; " if better else ""
    fix = f"{ask}VLLM_LOGGING_LEVEL=DEBUG makes vLLM name the reason"
    if group.checkpoint_formats[1]:
        why = f"neither the recording nor the log names the reason{lacks}"
        yield Cause("unknown", why, fix, better_only)
    yield Cause(
        "unknown",
        f"either the checkpoint asks for 16-bit activations, or no other kernel was found{lacks}",
        f"if the checkpoint quantizes activations too, {fix}",
        better_only,
    )


def _of_log(
    group: LayerGroup, engine: EngineSetup, statements: Sequence[Statement]
) -> Iterator[Cause]:
    for line in statements:
        if line.rule.id == "flashinfer-missing" and line.value == "nvcc":
            why = "FlashInfer is off: no nvcc and no flashinfer-cubin"
            fix = "install flashinfer-cubin, or a CUDA toolkit and set CUDA_HOME"
        elif line.rule.id in ("flashinfer-missing", "flashinfer-disabled"):
            why = f"FlashInfer is off: {line.detail or 'its package was not found'}"
            fix = "install flashinfer-python and flashinfer-cubin of the version that vLLM pins"
        elif line.rule.id == "flashinfer-unavailable-moe" and group.kind == "moe":
            why = f"FlashInfer has no kernels for {line.detail} on this GPU"
            fix = "update vLLM and FlashInfer to versions built for this GPU"
        else:
            continue
        yield Cause("install", why, fix)
    refused = [
        f"{line.value}: {line.detail}"
        for line in statements
        if line.rule.topic == "refused" and line.layer == group.kind and line.detail
    ]
    if refused:
        better = _better(group, engine)
        fix = f"when that is mended, {better} asks for it" if better else "mend that"
        why = "; ".join(refused[:3])[:600]
        yield Cause("refused", why, fix, (better,) if better else ())
