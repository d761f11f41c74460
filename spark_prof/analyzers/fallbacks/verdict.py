"""The verdict: what is the matter with an engine, the worst first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from spark_prof.analyzers.fallbacks.audit_rows import Audit, AuditRow
from spark_prof.analyzers.fallbacks.causes import FIRST_WITH, capability_of
from spark_prof.analyzers.fallbacks.machine_checks import Machine
from spark_prof.analyzers.finding import Finding, first_sentence

VERDICTS: tuple[str, ...] = (
    "not-started",  # the engine did not start
    "died",  # it died while it served
    "emulated",  # layers are computed by emulation
    "weight-only",  # quantized activations are possible and not used
    "kv-full",  # requests wait because the KV cache is full
    "unquantized",  # layers that the checkpoint quantizes run unquantized
    "eager",  # no CUDA graphs
    "piecewise",  # fewer CUDA graphs than was asked for
    "attention-forced",  # the model rules out all attention backends but one
    "known-issue",  # what is known of this version on this GPU
    "finding",  # what the first finding says
    "failed-before",  # an engine failed, and a later one of the same log started
    "not-looked",  # nothing was found, and not everything was looked at
    "nothing",  # everything was looked at
)
"""Kinds of verdicts, the worst first."""

_GOOD_CAUSES = ("", "scheme", "architecture", "unquantized", "emulation")
_BUSY = 0.05  # share of a server's busy status lines from which on a full cache is the matter
_FURTHER = ("kernel", "attention", "cache", "start", "fallback")
_STARTS = ("engine-config", "engine-version", "sglang-arguments", "arguments")


@dataclass(frozen=True)
class DoctorVerdict:
    """One thing that is the matter, or that nothing is."""

    kind: str  # one of `VERDICTS`
    cause: str = ""  # of a failure, of a layer's kernel, or the key of a finding
    # What it is about: layers, an attention backend, or what was not looked at.
    subject: str = ""
    what: str = ""  # what failed, what the layers' kernel is, or a finding's first sentence
    scheme: str = ""  # formats of weights and activations that run, such as W4A16 nvfp4
    why: str = ""  # the cause in words; empty where it is unknown
    fix: str = ""
    line: int = 0  # of the log, from 1
    running: int = 0  # requests
    waiting: int = 0
    preemptions: int = 0
    unknown: int = 0  # warnings of the log that no rule knows
    layers: tuple[str, ...] = ()  # that it is about
    weights: str = ""  # format of their weights


def verdicts_of_audit(audit: Audit, findings: Sequence[Finding]) -> tuple[DoctorVerdict, ...]:
    """What is the matter with an engine, the worst first; what was not looked at, or nothing."""
    verdicts = [verdict for look in _LOOKS for verdict in look(audit)]
    if all(one.kind == "failed-before" for one in verdicts):
        verdicts += _of_findings(findings)
    blind = not (audit.engine.capability or audit.engine.gpu)
    if blind and any(row.cause == "unknown" for row in audit.rows):
        verdicts.append(DoctorVerdict("not-looked", subject="gpu"))
    if not verdicts:
        verdicts = list(_not_looked(audit)) or [
            DoctorVerdict("nothing", unknown=audit.unknown_count)
        ]
    return tuple(sorted(verdicts, key=lambda one: VERDICTS.index(one.kind)))


def verdicts_of_machine(machine: Machine, findings: Sequence[Finding]) -> tuple[DoctorVerdict, ...]:
    """The verdicts on a machine and what is installed on it."""
    if findings:
        return tuple(_of_findings(findings))
    if not machine.gpu:
        return (DoctorVerdict("not-looked", subject="no-gpu"),)
    if not machine.version("vllm"):
        return (DoctorVerdict("not-looked", subject="no-vllm"),)
    return (DoctorVerdict("nothing"),)


def _failed(audit: Audit) -> Iterator[DoctorVerdict]:
    failure, cause = audit.failure, audit.failure_cause
    if failure is None or cause is None:
        return
    kind = "died" if failure.serving else "not-started"
    yield DoctorVerdict(
        "failed-before" if failure.recovered else kind, cause.id, cause.layers, cause.what,
        fix=cause.fix, line=failure.line,
    )  # fmt: skip


def _layers(audit: Audit) -> Iterator[DoctorVerdict]:
    """Layers that do not run as they could; alike ones together."""
    capability = capability_of(audit.engine)
    kinds: dict[tuple[str, str, str], list[AuditRow]] = {}
    for row in audit.rows:
        kind = ""
        if row.emulated:
            kind = "emulated"
        elif row.cause == "unquantized":
            kind = "unquantized"
        elif row.weight_only and row.cause not in _GOOD_CAUSES:
            first = FIRST_WITH.get(row.weights)
            if first is not None and capability is not None and capability >= first:
                kind = "weight-only"
        if kind:
            kinds.setdefault((kind, row.executed, row.why), []).append(row)
    for (kind, executed, why), rows in kinds.items():
        first_row = rows[0]
        kernel = next((w.family or w.kernel for w in first_row.witnesses), "")
        layers = tuple(dict.fromkeys(row.layer for row in rows))
        yield DoctorVerdict(
            kind, first_row.cause, ", ".join(layers), kernel,
            executed, "" if first_row.cause == "unknown" else why, first_row.fix,
            layers=layers, weights=first_row.weights,
        )  # fmt: skip


def _full(audit: Audit) -> Iterator[DoctorVerdict]:
    load = audit.load
    if load is not None and load.full and load.full >= _BUSY * load.busy:
        yield DoctorVerdict(
            "kv-full", running=load.running, waiting=load.waiting, preemptions=load.preemptions,
            line=load.first,
        )  # fmt: skip


def _graphs(audit: Audit) -> Iterator[DoctorVerdict]:
    if audit.engine.eager or audit.engine.graph_mode == "NONE":
        lines = audit.log_rows("eager", "graphs-skipped", "graphs-off", "graph-mode")
        line = next((row.line for row in lines), 0)
        yield DoctorVerdict("eager", line=line)
        return
    for row in audit.log_rows("graph-mode"):
        if row.value == "PIECEWISE":
            yield DoctorVerdict("piecewise", line=row.line)
            return


def _attention(audit: Audit) -> Iterator[DoctorVerdict]:
    for row in audit.log_rows("attention-forced")[:1]:
        yield DoctorVerdict("attention-forced", "head-sizes", row.value, row.detail, line=row.line)


def _known_issue(audit: Audit) -> Iterator[DoctorVerdict]:
    # A message that only misleads is no matter of its own.
    for issue in [one for one in audit.known_issues if one.kind != "message"][:1]:
        yield DoctorVerdict("known-issue", issue.id, issue.issue, issue.what, why=issue.effect,
                      fix=issue.remedy)  # fmt: skip


_LOOKS: tuple[Callable[[Audit], Iterator[DoctorVerdict]], ...] = (
    _failed, _layers, _full, _graphs, _attention, _known_issue,
)  # fmt: skip


def _of_findings(findings: Sequence[Finding]) -> Iterator[DoctorVerdict]:
    for finding in findings[:1]:
        sentence = first_sentence(finding.text)
        yield DoctorVerdict("finding", finding.key or finding.id, what=sentence, fix=finding.fix)


def _came_further(audit: Audit) -> bool:
    """Whether the log goes on to where an engine says which kernels it takes."""
    return any(row.topic in _FURTHER for row in audit.log)


def _not_looked(audit: Audit) -> Iterator[DoctorVerdict]:
    missing = ""
    if not (audit.rows or audit.log or audit.engine.vllm or audit.load):
        missing = "everything"
    elif audit.writer == "SGLang":
        missing = "sglang"
    elif (audit.log or audit.load) and not (
        audit.engine.vllm or audit.rows or audit.log_rows(*_STARTS)
    ):
        missing = "start"
    elif audit.log and not (audit.rows or audit.load or _came_further(audit)):
        missing = "end"
    elif not (audit.engine.gpu or audit.engine.capability):
        missing = "gpu"
    if missing:
        load = audit.load
        yield DoctorVerdict(
            "not-looked", subject=missing, unknown=audit.unknown_count,
            running=load.running if load else 0, waiting=load.waiting if load else 0,
        )  # fmt: skip
