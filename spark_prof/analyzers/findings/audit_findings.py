"""Rules about layers that do not run as their checkpoint asks; all rules that read the audit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from spark_prof.analyzers.answers import written_time
from spark_prof.analyzers.ceilings.schemes import bits_of
from spark_prof.analyzers.fallbacks.audit_rows import Audit, AuditRow
from spark_prof.analyzers.fallbacks.causes import FIRST_WITH, capability_of
from spark_prof.analyzers.fallbacks.verdict import verdicts_of_audit
from spark_prof.analyzers.finding import Finding, keyed
from spark_prof.analyzers.findings.engine_setup import LINES, SETUP
from spark_prof.analyzers.findings.rule import FindingRule, Observation, ms_per_token, rule
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.roofline.roofline_rows import starts_early
from spark_prof.rules.gpus import find_gpu


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


_AVOIDABLE = ("order", "disabled", "install", "refused", "unknown")
"""Causes of a weight-only kernel that something can be done about, but for what forces one."""

_KINDS = {"linear": "the linear layers", "moe": "the experts"}  # what a log alone can name

_WORTH = (
    "Weights take the same bytes either way, so that a batch of 1 is not automatically slower on a "
    "weight-only kernel such as Marlin: quantized activations win prompts and larger batches; FP4 "
    "ones are reported to lose a few per cent at batch 1 (vLLM pull request 55170)."
)


def _names(rows: list[AuditRow]) -> str:
    return ", ".join(dict.fromkeys(_KINDS.get(row.layer, row.layer) for row in rows))


def _begin(rows: list[AuditRow]) -> str:
    """The names at the begin of a sentence, where that of a component keeps its case."""
    return _capital(_names(rows)) if rows[0].layer in _KINDS else _names(rows)


def _evidence(rows: list[AuditRow]) -> tuple[str, ...]:
    sources = ((row.layer, source) for row in rows for source in row.witnesses)
    lines = (f"{layer}: the {one.who} says {one.kernel[:120]}" for layer, one in sources)
    return tuple(dict.fromkeys(lines))


def _of_cause(
    name: str,
    looks_for: str,
    causes: Collection[str],
    holds: Callable[[list[AuditRow], Audit], bool],
    text: str,
    fix: str,
) -> FindingRule[Audit]:
    """A rule about layers that do not run as asked for one of these causes.

    Args:
        holds: whether rows with the same cause and fix are what the rule is about.
        text: {names} are the layers, {Names} at the begin of a sentence, {asked} is what the
            checkpoint has to do with it; {executed}, {kernels} and {why}.
        fix: {fix} is that of the cause.
    """

    def look(audit: Audit) -> Iterator[Observation]:
        rows_of: dict[tuple[str, str], list[AuditRow]] = defaultdict(list)
        for row in audit.rows:
            if row.cause in causes:
                rows_of[row.why, row.fix].append(row)
        for (why, better), rows in rows_of.items():
            if not holds(rows, audit):
                continue
            names, scheme = _names(rows), rows[0].checkpoint
            kernels = dict.fromkeys(row.witnesses[0].kernel for row in rows if row.witnesses)
            words = {
                "names": names,
                "Names": _begin(rows),
                "executed": rows[0].executed,
                "kernels": ", ".join(kernels),
                "asked": f"although the checkpoint asks for {scheme}"
                if scheme
                else "which it need not",
                "why": why,
            }
            yield Observation(None,
                text.format(**words),
                fix.format(fix=_capital(better)),
                _evidence(rows),
                components=tuple(dict.fromkeys(row.layer for row in rows if row.modules)),
                subject=names,
                tries=rows[0].tries,
            )  # fmt: skip

    return FindingRule(name, looks_for, look)


def _avoidable(rows: list[AuditRow], audit: Audit, bits: int) -> bool:
    """Whether weights of so many bits have 16-bit activations for no good reason."""
    # A GPU that is not known may have no other kernel.
    cause_known = rows[0].cause != "unknown" or capability_of(audit.engine) is not None
    return rows[0].weight_only and bits_of(rows[0].weights) == bits and cause_known


def _is_emulated(rows: list[AuditRow]) -> bool:
    return any(row.emulated for row in rows)


_WEIGHT_ONLY = f"{{Names}} run {{executed}} on {{kernels}}, {{asked}}: {{why}}. {_WORTH}"
_COMPARE = "{fix}. Compare prompts and the batch that you serve, not batch 1 alone."


@rule("witness-conflict", "fallbacks",
      "engine, log and trace name different kernels, or recording and log are of different "
      "runs")  # fmt: skip
def _conflicts(audit: Audit) -> Iterator[Observation]:
    disputed = [row for row in audit.rows if row.conflict]
    for conflict in audit.conflicts:
        yield Observation(None,
            f"Sources disagree. {conflict}",
            "Believe the trace for what ran. A log names kernels for kinds of layers and for draft "
            "models too; make sure that recording and log are of one run.",
            _evidence(disputed) or ("What both say of the engine's configuration was compared.",),
            subject=conflict.subject,
        )  # fmt: skip


@rule("misleading-fp4-warning", "fallbacks",
      "the log: a GPU with FP4 or FP8 tensor cores has none")  # fmt: skip
def _misleading(audit: Audit) -> Iterator[Observation]:
    capability = capability_of(audit.engine)
    for log_row in audit.log_rows("no-native-fp", "marlin-linear")[:1]:
        kind, first = ("FP8", "fp8") if log_row.format == "fp8" else ("FP4", "nvfp4")
        if capability is None or capability < FIRST_WITH[first]:
            continue
        rows = [row for row in audit.rows if row.cause and row.weight_only]
        causes = "; ".join(dict.fromkeys(f"{_names([row])}: {row.why}" for row in rows))
        yield Observation(None,
            f"The log says that the GPU has no native {kind}. It has: compute capability "
            f"{audit.engine.capability} multiplies {kind} on its tensor cores. vLLM prints the "
            "line whenever it takes Marlin, without looking at the GPU. What is the case: "
            f"{causes or 'some layers run weight-only on Marlin'}.",
            "Do not look for a fault of the GPU; the cause named here is what can be changed.",
            (f"Line {log_row.line} of the log: {log_row.text[:160]}",),
        )  # fmt: skip


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


_AUDIT_RULES: tuple[FindingRule[Audit], ...] = (
    *STATE,
    _of_cause("emulation-backend", "layers of a quantized checkpoint are computed by emulation",
        ("emulation", "forced"), lambda rows, _: _is_emulated(rows),
        "{Names} are emulated: each step widens their weights to BF16 first, and so moves several "
        "times their bytes ({why}).",
        "{fix}."),
    _of_cause("weight-only-fp4",
        "layers that are W4A4 in FP4 run W4A16 on a GPU with FP4 tensor cores",
        _AVOIDABLE, lambda rows, audit: _avoidable(rows, audit, 4), _WEIGHT_ONLY, _COMPARE),
    _of_cause("weight-only-fp8", "the same of FP8 weights and activations",
        _AVOIDABLE, lambda rows, audit: _avoidable(rows, audit, 8), _WEIGHT_ONLY, _COMPARE),
    _of_cause("marlin-forced", "the same, because a flag or variable asks for a weight-only kernel",
        ("forced",), lambda rows, _: not _is_emulated(rows),
        f"{{Names}} run {{executed}} because {{why}} asks for it. {_WORTH}",
        "{fix}, and compare."),
    _of_cause("activations-rounded",
        "layers whose checkpoint quantizes weights alone run with rounded activations",
        ("rounds",), lambda *_: True,
        "{Names} run {executed} on {kernels}, {asked}: {why}. Answers are not those of the "
        "checkpoint's own scheme; prompts are faster by it.",
        "{fix}; compare answers and times."),
    _of_cause("unquantized-layers", "layers that the checkpoint quantizes run unquantized",
        ("unquantized",), lambda *_: True, "{names}: {why}.", "{fix}."),
    _conflicts, _misleading, *SETUP, *LINES,
)  # fmt: skip


def findings_of_audit(audit: Audit) -> tuple[Finding, ...]:
    """What the rules find in an audit alone, without a recording's times."""
    return keyed(observation for rule in _AUDIT_RULES for observation in rule.find(audit))


def _in_report(rule: FindingRule[Audit]) -> FindingRule[Report]:
    """The rule with what the recording's times tell."""

    def look(report: Report) -> Iterator[Observation]:
        # A CPU engine has neither graphs nor these kernels.
        if report.audit is None or report.run.units == "op":
            return
        gap = report.steps.host_gap_us
        for observation in rule.look(report.audit):
            per_token, evidence = observation.ms_per_token, observation.evidence
            if rule.id == "eager-mode" and gap is not None and report.steps.decode:
                per_token = ms_per_token(report, gap.median * report.steps.decode)
            if rule.id in ("weight-only-fp4", "weight-only-fp8", "marlin-forced"):
                layers = {row.layer for row in report.audit.rows if row.weight_only}
                evidence = (*evidence, *achieved_bandwidth(report, layers))
            # Whose kernels they are the recording tells better.
            yield replace(observation, ms_per_token=per_token, evidence=evidence, components=())

    return FindingRule(rule.id, rule.looks_for, look, rule.page, rule.parts)


FALLBACKS = tuple(map(_in_report, _AUDIT_RULES))


_WHOLE = ("qkv", "o_proj", "mlp", "shared_experts", "lm_head")
"""Components of which a step reads all weights; of experts it reads those that were chosen."""


def achieved_bandwidth(report: Report, components: Collection[str]) -> Iterator[str]:
    """A sentence for each of the components whose weights a decode step reads whole."""
    gpu = find_gpu(report.gpu.name, report.gpu.compute_capability)
    rows = report.decode_roofline.rows if report.decode_roofline else ()
    early = {row.component for row in rows if starts_early(row.us, row.ahead_us)}
    for row in report.components:
        size = sum(module.bytes for module in report.modules if module.component == row.name)
        whole = row.name in components and row.name in _WHOLE
        if not whole or not size or not row.decode_us_per_step or row.name in early:
            continue
        reached = size / row.decode_us_per_step * 1e6
        share = ""
        if gpu is not None:
            percent = 100 * reached / gpu.memory_bandwidth.value
            share = f", {percent:.0f} % of its data sheet's bandwidth"
        yield (
            f"Measured: a decode step reads {size / 1e6:,.0f} MB of {row.name} weights in "
            f"{written_time(row.decode_us_per_step)}, {reached / 1e9:,.0f} GB/s{share}."
        )
