"""Rules about layers that do not run as their checkpoint asks; all rules that read the audit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from spark_prof.analyzers.fallbacks.audit_rows import Audit, AuditRow
from spark_prof.analyzers.fallbacks.causes import capability_of
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.engine_setup import LINES, SETUP
from spark_prof.analyzers.findings.rule import Rule, Told, ms_per_token
from spark_prof.analyzers.model import Report
from spark_prof.rules.gpus import find_gpu

_NATIVE = {"FP4": 10.0, "FP8": 8.9}
"""Compute capability from which tensor cores multiply that format."""

_AVOIDABLE = ("order", "disabled", "install", "refused", "unknown")
"""Causes of a weight-only kernel that something can be done about, but for what forces one."""

_KINDS = {"linear": "the linear layers", "moe": "the experts"}
"""What a log alone can name."""

_WORTH = (
    "Weights take the same bytes either way, so that a batch of 1 is not automatically slower on a "
    "weight-only kernel such as Marlin: quantized activations win prompts and larger batches; FP4 "
    "ones are reported to lose a few per cent at batch 1 (vLLM pull request 55170)."
)


def _names(rows: list[AuditRow]) -> str:
    return ", ".join(dict.fromkeys(_KINDS.get(row.layer, row.layer) for row in rows))


def _kernels(rows: list[AuditRow]) -> str:
    return ", ".join(dict.fromkeys(row.witnesses[0].kernel for row in rows if row.witnesses))


def _evidence(rows: list[AuditRow]) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(
            f"{row.layer}: the {source.who} says {source.kernel[:120]}"
            for row in rows
            for source in row.witnesses
        )
    )


def _by_cause(audit: Audit, *causes: str) -> dict[tuple[str, str], list[AuditRow]]:
    """The rows with these causes, those with the same cause and fix together."""
    found: dict[tuple[str, str], list[AuditRow]] = {}
    for row in audit.rows:
        if row.cause in causes:
            found.setdefault((row.why, row.fix), []).append(row)
    return found


def _weight_only(bits: int) -> Callable[[Audit], Iterator[Told]]:
    """Looks for weights of so many bits whose activations are not quantized for no good reason."""

    def find(audit: Audit) -> Iterator[Told]:
        for (why, fix), rows in _by_cause(audit, *_AVOIDABLE).items():
            if f"W{bits}A16" not in rows[0].executed or _may_need_it(rows[0], audit):
                continue
            asked = rows[0].checkpoint
            instead = f"although the checkpoint asks for {asked}" if asked else "which it need not"
            yield (None,
                f"{_beginning(_names(rows))} run {rows[0].executed} on {_kernels(rows)}, "
                f"{instead}: {why}. {_WORTH}",
                f"{_capital(fix)}. Compare prompts and the batch that you serve, not batch 1 "
                "alone.",
                _evidence(rows),
            )  # fmt: skip

    return find


def _may_need_it(row: AuditRow, audit: Audit) -> bool:
    """Whether the GPU, which is not known, may have no other kernel."""
    return row.cause == "unknown" and capability_of(audit.engine) is None


def _forced(audit: Audit) -> Iterator[Told]:
    for (why, fix), rows in _by_cause(audit, "forced").items():
        if any("emulated" in row.executed for row in rows):
            continue
        yield (None,
            f"{_beginning(_names(rows))} run {rows[0].executed} because {why} asks for it. "
            f"{_WORTH}",
            f"{_capital(fix)}, and compare.",
            _evidence(rows),
        )  # fmt: skip


def _emulated(audit: Audit) -> Iterator[Told]:
    for (why, fix), rows in _by_cause(audit, "emulation", "forced").items():
        if not any("emulated" in row.executed for row in rows):
            continue
        yield (None,
            f"{_beginning(_names(rows))} are emulated: each step widens their weights to BF16 "
            f"first, and so moves several times their bytes ({why}).",
            f"{_capital(fix)}.",
            _evidence(rows),
        )  # fmt: skip


def _unquantized(audit: Audit) -> Iterator[Told]:
    for (why, fix), rows in _by_cause(audit, "unquantized").items():
        yield (None, f"{_names(rows)}: {why}.", f"{_capital(fix)}.",
            _evidence(rows),
        )  # fmt: skip


def _conflicts(audit: Audit) -> Iterator[Told]:
    disputed = [row for row in audit.rows if row.conflict]
    for conflict in audit.conflicts:
        yield (None,
            f"Witnesses disagree. {conflict}",
            "Believe the trace for what ran. A log names kernels for kinds of layers and for draft "
            "models too; make sure that recording and log are of one run.",
            _evidence(disputed) or ("What both say of the engine's configuration was compared.",),
        )  # fmt: skip


def _misleading(audit: Audit) -> Iterator[Told]:
    capability = capability_of(audit.engine)
    for said in audit.said("no-native-fp", "marlin-linear")[:1]:
        kind = "FP8" if said.format == "fp8" else "FP4"
        if capability is None or capability < _NATIVE.get(kind, 99):
            continue
        rows = [row for row in audit.rows if row.cause and "A16" in row.executed]
        causes = "; ".join(dict.fromkeys(f"{_names([row])}: {row.why}" for row in rows))
        yield (None,
            f"The log says that the GPU has no native {kind}. It has: compute capability "
            f"{audit.engine.capability} multiplies {kind} on its tensor cores. vLLM prints the "
            "line whenever it takes Marlin, without looking at the GPU. What is the case: "
            f"{causes or 'some layers run weight-only on Marlin'}.",
            "Do not look for a fault of the GPU; the cause named here is what can be changed.",
            (f"Line {said.line} of the log: {said.text[:160]}",),
        )  # fmt: skip


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _beginning(text: str) -> str:
    # The name of a component keeps its case.
    return _capital(text) if text.startswith("the ") else text


_OF_LAYERS = (
    Rule("emulation-backend", "layers of a quantized checkpoint are computed by emulation",
        _emulated),
    Rule("weight-only-fp4",
        "layers with FP4 weights, and FP4 activations in the checkpoint, run with 16-bit ones "
        "on a GPU with FP4 tensor cores",
        _weight_only(4)),
    Rule("weight-only-fp8", "the same of FP8 weights and activations", _weight_only(8)),
    Rule("marlin-forced", "the same, because a flag or variable asks for a weight-only kernel",
        _forced),
    Rule("unquantized-layers", "layers that the checkpoint quantizes run unquantized",
        _unquantized),
    Rule("witness-conflict",
        "engine, log and trace name different kernels for the same layers, or recording and log"
        " tell of different runs",
        _conflicts),
    Rule("misleading-fp4-warning",
        "the log says that a GPU with FP4 or FP8 tensor cores has none", _misleading),
)  # fmt: skip
_AUDIT_RULES = (*_OF_LAYERS, *SETUP, *LINES)


def findings_of_audit(audit: Audit) -> tuple[Finding, ...]:
    """What the rules find in an audit alone, without a recording's times."""
    return tuple(found for rule in _AUDIT_RULES for found in rule.find(audit))


def _in_report(rule: Rule[Audit]) -> Rule[Report]:
    """The rule with what the recording's times tell."""

    def look(report: Report) -> Iterator[Told]:
        # A CPU engine has neither graphs nor these kernels.
        if report.audit is None or report.run.units == "op":
            return
        gap = report.steps.host_gap_us
        for per_token, text, fix, evidence, *_ in rule.look(report.audit):
            if rule.id == "eager-mode" and gap is not None and report.steps.decode:
                per_token = ms_per_token(report, gap.median * report.steps.decode)
            if rule.id in ("weight-only-fp4", "weight-only-fp8", "marlin-forced"):
                layers = {row.layer for row in report.audit.rows if "A16" in row.executed}
                evidence = (*evidence, *achieved_bandwidth(report, layers))
            yield per_token, text, fix, evidence

    return Rule(rule.id, rule.looks_for, look, rule.page)


FALLBACKS = tuple(map(_in_report, _AUDIT_RULES))


_WHOLE = ("qkv", "o_proj", "mlp", "shared_experts", "lm_head")
"""Components of which a step reads all weights; of experts it reads those that were chosen."""


def achieved_bandwidth(report: Report, components: Collection[str]) -> Iterator[str]:
    """A sentence for each of the components whose weights a decode step reads whole."""
    gpu = find_gpu(report.gpu.name, report.gpu.compute_capability)
    for row in report.components:
        if row.name not in components or row.name not in _WHOLE or not row.decode_us_per_step:
            continue
        size = sum(module.bytes for module in report.modules if module.component == row.name)
        if not size:
            continue
        reached = size / row.decode_us_per_step * 1e6
        share = ""
        if gpu is not None:
            share = f", {reached / gpu.memory_bandwidth.value:.0%} of its data sheet's bandwidth"
        yield (
            f"Measured: a decode step reads {size / 1e6:,.0f} MB of {row.name} weights in "
            f"{row.decode_us_per_step:,.0f} us, {reached / 1e9:,.0f} GB/s{share}."
        )
