"""Which known issues a run has for certain: the table's conditions, asked of what shows of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from spark_prof.analyzers.fallbacks.audit_rows import KnownIssue
from spark_prof.analyzers.fallbacks.issue_evidence import IssueEvidence, whole_number
from spark_prof.analyzers.finding import NONE, command
from spark_prof.rules.known_issue import (
    AnyOf,
    AtLeast,
    Capability,
    CheckpointScheme,
    Condition,
    EngineSetting,
    EnvironmentCondition,
    Issue,
    LogSays,
    Model,
    Runs,
    Traced,
)
from spark_prof.rules.known_issues import ISSUES

_LONGEST_EVIDENCE = 200


def known_issues(evidence: IssueEvidence, engine: Sequence[str]) -> tuple[KnownIssue, ...]:
    """The issues that the run has for certain; without its version there are none.

    Args:
        engine: what `spark-prof ab` takes behind `--` to start it; none where nothing tells.
    """
    return tuple(_issue_of_run(issue, evidence, engine) for issue in ISSUES if has(issue, evidence))


def has(issue: Issue, evidence: IssueEvidence) -> bool | None:
    """Whether a run has an issue; None where what is known of it does not tell."""
    return _all(
        [issue.vllm.holds(evidence.vllm), *(holds(condition, evidence) for condition in issue.when)]
    )


def holds(condition: Condition, evidence: IssueEvidence) -> bool | None:
    """Whether a condition is so in a run; None where it cannot be told."""
    match condition:
        case Capability(spans):
            if evidence.capability is None:
                return None
            tenths = round(10 * evidence.capability)
            return any(low <= tenths <= high for low, high in spans)
        case Model(pattern):
            names = (*evidence.architectures, evidence.model)
            if any(re.search(pattern, name, re.I) for name in names):
                return True
            # A folder's name need not say what is in it.
            return False if evidence.architectures else None
        case Runs(kind, pattern):
            return _any_of(pattern, evidence.chosen.get(kind))
        case CheckpointScheme(kind, pattern):
            return _any_of(pattern, evidence.checkpoint_schemes.get(kind))
        case EngineSetting(name, pattern, default):
            value = _setting(name, default, evidence)
            return None if value is None else bool(re.fullmatch(pattern, value, re.I))
        case AtLeast(name, least, default):
            value = _setting(name, default, evidence)
            if value is None:
                return None
            number = whole_number(value)
            return None if number is None else number >= least
        case EnvironmentCondition(name, pattern, default):
            if evidence.environment is None:
                return None
            return bool(re.fullmatch(pattern, evidence.environment.get(name, default)))
        case LogSays(pattern):
            # What a log does not say may stand in a part of it that is not here.
            return True if any(re.search(pattern, line) for line in evidence.lines) else None
        case Traced(pattern):
            return _any_of(pattern, evidence.traced)
        case AnyOf(conditions):
            answers = [holds(alternative, evidence) for alternative in conditions]
            return True if True in answers else (None if None in answers else False)


def _all(answers: Sequence[bool | None]) -> bool | None:
    return False if False in answers else (None if None in answers else True)


def _any_of(pattern: str, names: Sequence[str] | None) -> bool | None:
    if not names:
        return None
    return any(re.search(pattern, name, re.I) for name in names)


def _setting(name: str, default: str, evidence: IssueEvidence) -> str | None:
    value = evidence.settings.get(name)
    if value is None and default and evidence.complete:
        return default
    return value


def every_known_issue() -> tuple[KnownIssue, ...]:
    """The whole table, of no run."""
    return tuple(_row(issue) for issue in ISSUES)


def _issue_of_run(issue: Issue, evidence: IssueEvidence, engine: Sequence[str]) -> KnownIssue:
    typed = NONE
    if issue.side and engine and not issue.needs_start:
        typed = command("spark-prof", "ab", "--b", issue.side, "--", *engine)
    return replace(
        _row(issue),
        command=typed,
        evidence=tuple(dict.fromkeys(_evidence(issue, evidence))),
    )


def _row(issue: Issue) -> KnownIssue:
    window = issue.vllm
    return KnownIssue(
        id=issue.id,
        kind=issue.kind,
        what=issue.what,
        effect=issue.effect,
        since=window.since,
        last=window.last,
        fixed=window.fixed,
        gpus=issue.gpus,
        issue=issue.reported[0].thread,
        reported=tuple(report.url for report in issue.reported),
        date=issue.reported[0].date,
        as_of=issue.as_of,
        remedy=issue.remedy,
        side=issue.side,
    )


def _evidence(issue: Issue, evidence: IssueEvidence) -> Iterable[str]:
    """What of the run it stands on, a few words each."""
    yield f"vLLM {evidence.vllm}"
    for condition in issue.when:
        yield from _condition_words(condition, evidence)


def _condition_words(condition: Condition, evidence: IssueEvidence) -> Iterable[str]:
    match condition:
        case Capability():
            yield f"compute capability {evidence.capability}"
        case Model(pattern):
            names = (*evidence.architectures, evidence.model)
            yield next((name for name in names if re.search(pattern, name, re.I)), "")
        case Runs(kind, pattern):
            names = evidence.chosen.get(kind, ())
            named = next((name for name in names if re.search(pattern, name, re.I)), "")
            yield f"{kind}: {named}"[:_LONGEST_EVIDENCE]
        case CheckpointScheme(kind):
            schemes = dict.fromkeys(evidence.checkpoint_schemes.get(kind, ()))
            yield f"checkpoint, {kind}: {', '.join(schemes)}"
        case EngineSetting(name, _, default) | AtLeast(name, _, default):
            yield f"{name} {_setting(name, default, evidence)}"
        case EnvironmentCondition(name, _, default):
            value = (evidence.environment or {}).get(name)
            yield f"{name}={value}" if value is not None else f"{name} not set"
        case LogSays(pattern):
            line = next((line for line in evidence.lines if re.search(pattern, line)), "")
            yield f"the log: {line}"[:_LONGEST_EVIDENCE]
        case Traced(pattern):
            names = evidence.traced or ()
            traced = next((name for name in names if re.search(pattern, name, re.I)), "")
            yield f"kernel {traced}"[:_LONGEST_EVIDENCE]
        case AnyOf(conditions):
            for alternative in conditions:
                if holds(alternative, evidence):
                    yield from _condition_words(alternative, evidence)
