"""The audit of a run: its layers and their kernels, its settings, its batches, its log."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.ceilings.schemes import schemes_of
from spark_prof.analyzers.fallbacks.audit_rows import (
    Audit,
    AuditRow,
    BatchRow,
    Disagreement,
    EngineSetup,
    FailureCause,
    LogRow,
)
from spark_prof.analyzers.fallbacks.causes import Cause, cause_of
from spark_prof.analyzers.fallbacks.engine_facts import (
    differences,
    engine_of_facts,
    engine_of_log,
    logged_words,
    merged,
)
from spark_prof.analyzers.fallbacks.issue_evidence import arguments_of, evidence_of
from spark_prof.analyzers.fallbacks.known_issues import known_issues
from spark_prof.analyzers.fallbacks.layer_groups import (
    LayerGroup,
    format_of,
    groups_of,
    groups_of_log,
)
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.analyzers.recorded_command import engine_words
from spark_prof.rules.backends import choice_of
from spark_prof.rules.engine_failures import FAILURES, LAYERS, LIBRARIES, STAGES
from spark_prof.rules.environment import setting_rows
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.readers.engine_log import EngineLog, Statement, statements_of
from spark_prof.traces.readers.log_errors import EngineFailure
from spark_prof.traces.swapped import layers_of

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
        failure_text = rule.failure.format(
            *groups[:3], library=_library(failure), kernel=_kernel(failure, statements),
            stage=_last_of(STAGES, failure.frames),
        )  # fmt: skip
        tells_reasons = rule.id == "no-linear-kernel" and bool(failure.reasons)
        if tells_reasons:
            failure_text = f"{failure_text}: {'; '.join(failure.reasons)}"[: 2 * _LONGEST]
        fix = _remedy(failure, vllm) or rule.fix
        if rule.fix_of_experts and layers == "the experts" and fix == rule.fix:
            fix = rule.fix_of_experts
        return FailureCause(rule.id, failure_text, layers, fix, tells_reasons)
    failure_text = f"{failure.error}: {failure.message}".strip(": ")[:_LONGEST]
    return FailureCause("other", failure_text, _layers(failure, statements), "")


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
    """The library whose code the innermost frames are."""
    return (
        _last_of(LIBRARIES[:-1], failure.frames)
        or _last_of(LIBRARIES, failure.frames)
        or ("a library")
    )


def _last_of(rows: Iterable[tuple[str, str]], frames: Sequence[str]) -> str:
    """The word for the innermost frame that a row of the table matches."""
    table = tuple(rows)
    for frame in reversed(frames):
        for pattern, word in table:
            if re.search(pattern, frame, re.I):
                return word
    return ""


_MOST_BATCHES = 200


def audit_of(
    bundle: Bundle,
    rank: int,
    kernels: Sequence[KernelRow],
    batches: Mapping[int, int],
    log: EngineLog | None = None,
) -> Audit | None:
    """The audit of one rank of a recording; None where the bundle tells nothing of its engine.

    Args:
        batches: how many decode steps compute how many tokens.
    """
    facts = bundle.facts(rank)
    lines = map(str, bundle.frame("log", rank, ["message"])["message"]) if log is None else ()
    statements = log.statements if log else statements_of(lines)
    recorded = engine_of_facts(facts, bundle.meta.command)
    logged = engine_of_log(statements)
    layers = layers_of(bundle, rank)[["path", "component", "quant_method", "kernel"]]
    layers = layers.astype(str)
    if layers.empty and not facts.get("engine_config") and not statements:
        return None
    notes = list(log.lost) if log else []
    if len(layers):
        config = mapping_in(facts, "model_config")
        schemes = schemes_of(mapping_in(config, "quantization_config")) if config else None
        groups = groups_of(layers, schemes, kernels, statements)
    else:
        notes.append("The recording holds no modules: nothing but the log says which kernels run.")
        groups = groups_of_log(statements, logged.quantization, kernels)
    apart = differences(recorded, logged)
    audit = _audit(merged(recorded, logged), groups, statements, notes, batches, apart, log)
    attention = layers.loc[layers["component"] == "attention", "kernel"]
    names = (row.name for row in kernels)
    evidence = evidence_of(audit, statements, facts, names, filter(None, attention.unique()))
    started = engine_words(bundle.meta.command, evidence.model) if evidence.model else ()
    return replace(audit, known_issues=known_issues(evidence, started))


def audit_of_log(log: EngineLog, gpu: str = "", capability: str = "") -> Audit:
    """The audit of a log alone."""
    logged = engine_of_log(log.statements)
    engine = merged(logged, EngineSetup(gpu=gpu, capability=capability))
    notes = [*log.lost, "A log names kernels for kinds of layers, not for single layers."]
    if log.writer == "SGLang":
        notes.append(
            "An SGLang log: its lines are read only for its configuration, for the backends of "
            "attention and experts, for the sizes of CUDA graphs and for errors."
        )
    if not engine.capability:
        notes.append("The log does not tell the GPU; --gpu does, and fewer causes stay open.")
    groups = groups_of_log(log.statements, engine.quantization)
    audit = _audit(engine, groups, log.statements, notes, log=log)
    evidence = evidence_of(audit, log.statements)
    words = logged_words(arguments_of(log.statements), evidence.model)
    started = engine_words(words, PurePath(evidence.model).name) if words else ()
    return replace(audit, known_issues=known_issues(evidence, started))


def _audit(
    engine: EngineSetup,
    groups: Iterable[LayerGroup],
    statements: Sequence[Statement],
    notes: Sequence[str],
    batches: Mapping[int, int] | None = None,
    differing: tuple[Disagreement, ...] = (),
    log: EngineLog | None = None,
) -> Audit:
    failure = log.failure if log else None
    rows = tuple(
        AuditRow(
            group.layer,
            group.modules,
            group.checkpoint,
            group.executed,
            tuple(group.sources),
            cause.id,
            cause.why,
            cause.fix,
            group.conflict,
            cause.tries,
            group.checkpoint_formats,
            *group.formats,
            group.emulated,
        )
        for group in groups
        for cause in [cause_of(group, engine, statements) or Cause("", "")]
    )
    return Audit(
        engine,
        rows,
        setting_rows(
            dict(engine.environment),
            engine.vllm,
            tuple(line.value for line in statements if line.rule.id == "unknown-variable"),
            tuple(line.value for line in statements if line.rule.id == "deprecated-variable"),
        ),
        _batches(batches or {}, engine),
        tuple(_log_row(line) for line in statements),
        (
            *differing,
            *(
                Disagreement(f"{row.layer}: {row.conflict}", row.layer)
                for row in rows
                if row.conflict
            ),
        ),
        tuple(notes),
        failure,
        failure_cause(failure, statements, engine.vllm) if failure else None,
        log.load if log else None,
        log.unknown if log else (),
        log.unknown_count if log else 0,
        log.writer if log else "",
    )


def _log_row(line: Statement) -> LogRow:
    rule = line.rule
    # A whole configuration is read for its fields and would fill pages.
    detail = "" if rule.topic == "engine" else line.detail[:1000]
    return LogRow(
        rule.id, rule.topic, rule.means, line.value, line.format, line.layer, detail,
        line.line, line.count, line.text,
    )  # fmt: skip


def _batches(batches: Mapping[int, int], engine: EngineSetup) -> tuple[BatchRow, ...]:
    if engine.eager or not engine.graph_sizes or engine.graph_mode == "NONE":
        return ()
    sizes = engine.graph_sizes
    most = sorted(batches.items(), key=lambda item: -item[1])[:_MOST_BATCHES]
    return tuple(
        BatchRow(
            tokens, steps, sizes[at] if (at := bisect_left(sizes, tokens)) < len(sizes) else None
        )
        for tokens, steps in sorted(most)
    )
