"""Rules about how the engine was set up: graphs, caches and environment variables."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.fallbacks.audit_rows import Audit
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.rule import AuditRule

_PADDED = 1.5
"""A step that is padded to that many times its tokens could use a graph of its own size."""

_FEW = 0.01
"""Share of the decode steps below which a size does not matter."""


def _eager(audit: Audit) -> Iterator[Finding]:
    if audit.engine.eager:
        yield Finding("eager-mode", None,
            "The engine runs eagerly: the host launches every kernel of every step, and the GPU "
            "waits wherever that takes longer than the kernel before.",
            "Leave out --enforce-eager, so that CUDA graphs replay the decode step.",
            ("Its configuration or log says so.",),
        )  # fmt: skip


def _graph_sizes(audit: Audit) -> Iterator[Finding]:
    whole = sum(row.steps for row in audit.batches)
    bare = [row for row in audit.batches if row.graph is None and row.steps > _FEW * whole]
    padded = [
        row
        for row in audit.batches
        if row.graph and row.graph >= _PADDED * row.tokens and row.steps > _FEW * whole
    ]
    if not bare and not padded:
        return
    parts = []
    if bare:
        sizes = ", ".join(str(row.tokens) for row in bare)
        parts.append(
            f"{sum(row.steps for row in bare)} of {whole} decode steps compute {sizes} tokens, "
            f"more than the largest captured graph has ({max(audit.engine.graph_sizes)}), and run "
            "without a graph"
        )
    if padded:
        sizes = ", ".join(f"{row.tokens} to {row.graph}" for row in padded)
        parts.append(
            f"{sum(row.steps for row in padded)} of {whole} decode steps are padded: {sizes} tokens"
        )
    wanted = sorted({*audit.engine.graph_sizes, *(row.tokens for row in (*bare, *padded))})
    yield Finding("graph-sizes-missing", None,
        f"{'; '.join(parts)}.",
        f"--cudagraph-capture-sizes {' '.join(map(str, wanted[:64]))}",
        (f"Captured sizes: {', '.join(map(str, audit.engine.graph_sizes[:64]))}.",),
    )  # fmt: skip


def _graph_mode(audit: Audit) -> Iterator[Finding]:
    for said in audit.said("graph-mode"):
        if said.value in ("PIECEWISE", "NONE") or said.format in ("none", "piecewise"):
            yield Finding("graphs-downgraded", None,
                f"vLLM replaced full CUDA graphs by lesser ones. The log: {said.text[:240]}",
                "Choose an attention backend that can be captured whole (--attention-backend), or "
                "expect the host's launches between the pieces.",
                (f"Line {said.line} of the log.",),
            )  # fmt: skip


def _prefix_caching(audit: Audit) -> Iterator[Finding]:
    reasons = [said.text[:160] for said in audit.said("prefix-caching-off")]
    if audit.engine.prefix_caching is False and (audit.engine.serves or reasons):
        yield Finding("prefix-caching-off", None,
            "A server without prefix caching computes every prompt anew, also the part that it has "
            "in common with earlier ones, such as a system prompt or a conversation so far.",
            "Use --enable-prefix-caching, unless the log gives a reason why the model cannot.",
            tuple(reasons) or ("Its configuration says enable_prefix_caching=False.",),
        )  # fmt: skip


def _ignored(audit: Audit) -> Iterator[Finding]:
    version = f"vLLM {audit.engine.vllm}" if audit.engine.vllm else "this vLLM"
    for row in audit.settings:
        if row.status == "deprecated":
            text = f"{row.name} still works in {version} and will not in a later one ({row.why})."
        else:
            text = f"{row.name} does nothing in {version}: {row.why}."
        fix = f"Use {row.instead} instead." if row.instead else "Unset it."
        given = f"{row.name}={row.value}" if row.value else row.name
        yield Finding("ignored-environment-variable", None, text, fix, (f"The run had {given}.",))


SETUP = (
    AuditRule("eager-mode", "CUDA graphs are off by configuration", _eager, "timeline"),
    AuditRule("graph-sizes-missing",
        "decode steps are larger than the largest captured graph, or padded to 1.5 times their "
        "tokens",
        _graph_sizes, "steps"),
    AuditRule("graphs-downgraded",
        "the log says that full CUDA graphs were replaced by piecewise or none", _graph_mode,
        "timeline"),
    AuditRule("prefix-caching-off", "a server does not keep common beginnings of prompts",
        _prefix_caching),
    AuditRule("ignored-environment-variable",
        "a variable is set that this vLLM does not read, or soon will not", _ignored),
)  # fmt: skip
