"""Rules about an engine that ended, or that cannot serve more at a time."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.fallbacks.audit_rows import Audit
from spark_prof.analyzers.fallbacks.verdict import verdicts_of_audit
from spark_prof.analyzers.findings.rule import Observation, rule


@rule("engine-failed", "fallbacks", "the log: the engine failed")
def _failed(audit: Audit) -> Iterator[Observation]:
    failure, cause = audit.failure, audit.failure_cause
    if failure is None or cause is None or failure.recovered:
        return
    how = "died while it served" if failure.serving else "did not start"
    where = f" in {cause.layers}" if cause.layers else ""
    reasons = () if cause.tells_reasons else failure.reasons[:3]
    message = " ".join((f"{failure.error}: {failure.message}".strip(": "), *reasons))
    frames = tuple(f"In {frame}" for frame in reversed(failure.frames[-4:]))
    yield Observation(None,
        f"The engine {how}: {cause.what.rstrip('. ')}{where}. The log: {message[:600]}",
        cause.fix or "Nothing is known of this error: look at the lines before it.",
        (f"Line {failure.line} of the log{_by(failure.process)}.", *frames),
        subject=cause.id,
    )  # fmt: skip


def _by(process: str) -> str:
    return f", by {process}" if process else ""


@rule("kv-cache-full", "steps", "the log: requests wait for a full KV cache")
def _full(audit: Audit) -> Iterator[Observation]:
    load = audit.load
    if load is None or not any(v.kind == "kv-full" for v in verdicts_of_audit(audit, ())):
        return
    preempted = (
        f" Running requests were put back, up to {load.preemptions} in ten seconds, and computed "
        "anew." if load.preemptions else ""
    )  # fmt: skip
    waiting = f" and up to {load.waiting} wait" if load.waiting else ""
    yield Observation(None,
        f"The KV cache is full: up to {load.running} requests run{waiting}, in "
        f"{load.full} of {load.lines} status lines that were looked at.{preempted}",
        "--kv-cache-dtype fp8 halves what a token takes; a higher --gpu-memory-utilization gives "
        "it more memory, a lower --max-model-len only keeps single requests small.",
        (f"Usage up to {load.usage:g} %.",),
    )  # fmt: skip


STATE = (_failed, _full)
