"""The verdict on whole logs: the right kind, nothing invented, every unknown warning counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spark_prof.analyzers.fallbacks.audit import audit_of_log
from spark_prof.analyzers.fallbacks.audit_rows import Audit, EngineSetup, KnownIssue
from spark_prof.analyzers.fallbacks.verdict import VERDICTS, DoctorVerdict, verdicts_of_audit
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.audit_findings import findings_of_audit
from spark_prof.dashboards.verdict_sentence import verdict_sentence
from spark_prof.rules.gpus import find_gpu
from spark_prof.traces.readers.engine_log import read_engine_log
from tests.analyzers.fallbacks.logs_of_033 import LOGS, Made
from tests.analyzers.fallbacks.logs_of_people import PASTED
from tests.rows import each_row


def seen(path: Path, gpu: str) -> tuple[Audit, tuple[Finding, ...], tuple[DoctorVerdict, ...]]:
    """What doctor finds in a log."""
    known = find_gpu(gpu)
    name, capability = (known.name, known.compute_capability) if known else ("", "")
    audit = audit_of_log(read_engine_log(path), name, capability)
    findings = findings_of_audit(audit)
    return audit, findings, verdicts_of_audit(audit, findings)


@each_row("made", LOGS + PASTED)
def test_the_verdict_on_a_log(tmp_path: Path, made: Made) -> None:
    path = tmp_path / f"{made.name}.log"
    path.write_text("\n".join([*made.lines, ""]))
    audit, findings, verdicts = seen(path, made.gpu)
    sentence = verdict_sentence(verdicts)
    assert verdicts[0].kind == made.verdict, sentence
    for words in made.words:
        assert words in sentence
    assert {found.id for found in findings} == made.findings
    assert audit.unknown_count == made.unknown, [one.text for one in audit.unknown]
    assert sum(one.count for one in audit.unknown) == made.unknown
    if made.verdict in ("not-started", "died"):
        assert "Nothing to change" not in sentence
        assert findings[0].id == "engine-failed"


def test_every_kind_of_verdict_is_in_some_log() -> None:
    kinds = {made.verdict for made in LOGS + PASTED}
    # No log alone shows that layers which the checkpoint quantizes run unquantized.
    assert set(VERDICTS) - kinds == {"unquantized", "known-issue"}


def test_a_known_issue_is_told_before_nothing_to_change() -> None:
    issue = KnownIssue("x", "speed", "experts are slow", "21 % slower", "0.28", "0.33", "", "",
                       "vllm-project/vllm#1", (), "", "", "use another", "")  # fmt: skip
    verdicts = verdicts_of_audit(Audit(EngineSetup(), known_issues=(issue,)), ())
    assert verdict_sentence(verdicts) == (
        "Known issue of this vLLM (vllm-project/vllm#1): experts are slow."
    )
    misleading = replace(issue, kind="message")
    verdicts = verdicts_of_audit(Audit(EngineSetup(), known_issues=(misleading,)), ())
    assert verdicts[0].kind == "not-looked"
