"""What ended an engine: the cause of its last error, and which layers' kernels it was in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from spark_prof.analyzers.fallbacks.audit_rows import FailureCause
from spark_prof.analyzers.fallbacks.layer_groups import format_of
from spark_prof.rules.backends import choice_of
from spark_prof.rules.engine_failures import FAILURES, LAYERS, LIBRARIES, STAGES
from spark_prof.rules.environment import setting_rows
from spark_prof.traces.readers.engine_log import Statement
from spark_prof.traces.readers.log_errors import EngineFailure

_IN_LAYERS = (
    "no-kernel-image", "cutlass", "cublas", "ptxas", "jit", "illegal-access", "device-assert",
    "illegal-instruction", "capture",
)  # fmt: skip
"""Causes that are a kernel's, so that it matters in which layers it ran."""

_NAMED = re.compile(r"\b(VLLM_[A-Z0-9_]{1,60})=([\w.-]{1,40})\b|(--[a-z][\w.-]{1,60}[= ][\w.-]+)")
_FORMATS = (
    (r"nvfp4|fp4_gemm|FP4 gemm|mm_fp4|scaled_fp4", "FP4"), (r"mxfp8", "MXFP8"),
    (r"fp8|w8a8", "FP8"), (r"int8", "INT8"),
)  # fmt: skip
_LONGEST = 240


def failure_cause(
    failure: EngineFailure, statements: Sequence[Statement], vllm: str
) -> FailureCause:
    """The cause of a failure, by its error, its traceback and the kernels that the log names."""
    text = failure.text
    for rule in FAILURES:
        match = rule.pattern.search(text)
        if match is None:
            continue
        groups = [group for group in match.groups() if group] + ["", "", ""]
        layers = _layers(failure, statements) if rule.id in _IN_LAYERS else ""
        what = rule.failure.format(
            *groups[:3], library=_library(failure), kernel=_kernel(failure, statements),
            stage=_last_of(STAGES, failure.frames),
        )  # fmt: skip
        tells_reasons = rule.id == "no-linear-kernel" and bool(failure.reasons)
        if tells_reasons:
            what = f"{what}: {'; '.join(failure.reasons)}"[: 2 * _LONGEST]
        fix = _remedy(failure, vllm) or rule.fix
        if rule.fix_of_experts and layers == "the experts" and fix == rule.fix:
            fix = rule.fix_of_experts
        return FailureCause(rule.id, what, layers, fix, tells_reasons)
    what = f"{failure.error}: {failure.message}".strip(": ")[:_LONGEST]
    return FailureCause("other", what, _layers(failure, statements), "")


def _remedy(failure: EngineFailure, vllm: str) -> str:
    """What the error itself tells to set, as far as this vLLM reads it."""
    if not failure.reasons and "Failed to find a kernel" not in failure.message:
        return ""
    for name, value, flag in _NAMED.findall(" ".join((failure.message, *failure.reasons))):
        if flag:
            return f"The log names it: start vLLM with {flag}."
        ignored = [
            row for row in setting_rows({name: value}, vllm, (), ()) if row.status == "ignored"
        ]
        if not ignored:
            return f"The log names it: set {name}={value}."
        if ignored[0].instead:
            return (
                f"The log names {name}, which vLLM {vllm} does not read; use {ignored[0].instead}."
            )
    return ""


def _layers(failure: EngineFailure, statements: Sequence[Statement]) -> str:
    if layers := _last_of(LAYERS, failure.frames):
        return layers
    if re.search(r"\bmoe\b|grouped gemm|_moe_|experts", failure.text, re.I):
        return "the experts"
    kinds = {line.layer for line in _like(failure, statements)}
    return {"linear": "the linear layers", "moe": "the experts"}.get(
        kinds.pop() if len(kinds) == 1 else "", ""
    )


def _like(failure: EngineFailure, statements: Sequence[Statement]) -> list[Statement]:
    """The lines that name the kernel of some layers, of the library that the error names."""
    word = next((w for w in ("cutlass", "marlin", "triton") if w in failure.text.lower()), "")
    return [
        line
        for line in statements
        if word and line.rule.topic == "kernel" and line.layer in ("linear", "moe")
        and word in line.value.lower()
    ]  # fmt: skip


def _kernel(failure: EngineFailure, statements: Sequence[Statement]) -> str:
    """The kernel in the field's words, such as CUTLASS FP8 GEMM."""
    like = _like(failure, statements)
    families = {choice.family for line in like if (choice := choice_of(line.value))}
    formats = {format_of(f"{line.format} {line.value} {line.detail}") for line in like} - {""}
    stored = formats.pop().upper() if len(formats) == 1 else ""
    stored = stored or next(
        (name for word, name in _FORMATS if re.search(word, failure.text, re.I)), ""
    )
    library = "FlashInfer's CUTLASS" if families == {"FlashInfer CUTLASS"} else "CUTLASS"
    return " ".join(filter(None, (library, stored, "GEMM")))


def _library(failure: EngineFailure) -> str:
    """Whose code the innermost frames are."""
    return (
        _last_of(LIBRARIES[:-1], failure.frames)
        or _last_of(LIBRARIES, failure.frames)
        or ("a library")
    )


def _last_of(rows: Iterable[tuple[str, str]], frames: Sequence[str]) -> str:
    """What the innermost frame tells that tells anything."""
    table = tuple(rows)
    for frame in reversed(frames):
        for pattern, word in table:
            if re.search(pattern, frame, re.I):
                return word
    return ""
