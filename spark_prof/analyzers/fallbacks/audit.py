"""The audit of a run: its layers and their kernels, its settings, its batches, its log."""

from __future__ import annotations

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
    LogRow,
)
from spark_prof.analyzers.fallbacks.causes import Cause, cause_of
from spark_prof.analyzers.fallbacks.engine_facts import (
    differences,
    engine_of_facts,
    engine_of_log,
    merged,
)
from spark_prof.analyzers.fallbacks.failure_cause import failure_cause
from spark_prof.analyzers.fallbacks.issue_evidence import arguments_of, evidence_of
from spark_prof.analyzers.fallbacks.known_issues import known_issues
from spark_prof.analyzers.fallbacks.layer_groups import LayerGroup, groups_of, groups_of_log
from spark_prof.analyzers.logged_command import logged_words
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.analyzers.recorded_command import engine_words
from spark_prof.rules.environment import setting_rows
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.readers.engine_log import EngineLog, Statement, statements_of
from spark_prof.traces.swapped import layers_of

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
            tuple(group.witnesses),
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
