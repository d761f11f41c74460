"""Rules about how the engine was set up, and about what lines of its log say by themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from spark_prof.analyzers.fallbacks.audit_rows import Audit, LogRow
from spark_prof.analyzers.findings.rule import Rule, Told, rule

_PADDED = 1.5
"""A step that is padded to that many times its tokens could use a graph of its own size."""

_FEW = 0.01  # share of the decode steps below which a size does not matter


@rule("eager-mode", "timeline", "CUDA graphs are off by configuration")
def _eager(audit: Audit) -> Iterator[Told]:
    if audit.engine.eager:
        yield (None,
            "The engine runs eagerly: the host launches every kernel of every step, and the GPU "
            "waits wherever that takes longer than the kernel before.",
            "Leave out --enforce-eager, so that CUDA graphs replay the decode step.",
            ("Its configuration or log says so.",),
        )  # fmt: skip


@rule("graph-sizes-missing", "steps",
      "decode steps are larger than the largest captured graph, or padded to 1.5 times their "
      "tokens")  # fmt: skip
def _graph_sizes(audit: Audit) -> Iterator[Told]:
    whole = sum(row.steps for row in audit.batches)
    many = [row for row in audit.batches if row.steps > _FEW * whole]
    bare = [row for row in many if row.graph is None]
    padded = [row for row in many if row.graph and row.graph >= _PADDED * row.tokens]
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
    yield (None,
        f"{'; '.join(parts)}.",
        f"--cudagraph-capture-sizes {' '.join(map(str, wanted[:64]))}",
        (f"Captured sizes: {', '.join(map(str, audit.engine.graph_sizes[:64]))}.",),
    )  # fmt: skip


@rule("graphs-downgraded", "timeline",
      "the log: full CUDA graphs were replaced by piecewise or none")  # fmt: skip
def _graph_mode(audit: Audit) -> Iterator[Told]:
    for said in audit.said("graph-mode"):
        if said.value in ("PIECEWISE", "NONE") or said.format in ("none", "piecewise"):
            yield (None,
                f"vLLM replaced full CUDA graphs by lesser ones. The log: {said.text[:240]}",
                "Choose an attention backend that can be captured whole (--attention-backend), or "
                "expect the host's launches between the pieces.",
                (f"Line {said.line} of the log.",),
            )  # fmt: skip


@rule("prefix-caching-off", "fallbacks",
      "a server does not keep common beginnings of prompts")  # fmt: skip
def _prefix_caching(audit: Audit) -> Iterator[Told]:
    reasons = [said.text[:160] for said in audit.said("prefix-caching-off")]
    if audit.engine.prefix_caching is False and (audit.engine.serves or reasons):
        yield (None,
            "A server without prefix caching computes every prompt anew, also the part that it has "
            "in common with earlier ones, such as a system prompt or a conversation so far.",
            "Use --enable-prefix-caching, unless the log gives a reason why the model cannot.",
            tuple(reasons) or ("Its configuration says enable_prefix_caching=False.",),
        )  # fmt: skip


@rule("ignored-environment-variable", "fallbacks",
      "a variable is set that this vLLM does not read, or soon will not")  # fmt: skip
def _ignored(audit: Audit) -> Iterator[Told]:
    version = f"vLLM {audit.engine.vllm}" if audit.engine.vllm else "this vLLM"
    for row in audit.settings:
        if row.status == "deprecated":
            text = f"{row.name} still works in {version} and will not in a later one ({row.why})."
        else:
            text = f"{row.name} does nothing in {version}: {row.why}."
        fix = f"Use {row.instead} instead." if row.instead else "Unset it."
        given = f"{row.name}={row.value}" if row.value else row.name
        yield None, text, fix, (f"The run had {given}.",), (), row.name


SETUP = (_eager, _graph_sizes, _graph_mode, _prefix_caching, _ignored)


_LONGEST = 240
_MOST_LINES = 20


def _lines(
    name: str, fires: str, rules: tuple[str, ...], fix: str, page: str = "fallbacks"
) -> Rule[Audit]:
    """A rule about the lines of a log that `rules` read; {detail} in `fix` is what a line names."""

    def look(audit: Audit) -> Iterator[Told]:
        alike: dict[tuple[str, str], list[LogRow]] = defaultdict(list)
        for said in audit.said(*rules):
            alike[said.means, fix.replace("{detail}", said.detail or "a configuration")].append(
                said
            )
        for (means, advice), lines in alike.items():
            more = f" And {len(lines) - 1} more lines like it." if len(lines) > 1 else ""
            evidence = tuple(
                f"Line {said.line} of the log, {said.count} times: {said.text[:_LONGEST]}"
                for said in lines[:_MOST_LINES]
            )
            text = f"{means} The log: {lines[0].text[:_LONGEST]}{more}"
            yield None, text, advice, evidence, (), lines[0].id

    return Rule(name, fires, look, page)


LINES = (
    _lines("kernel-fallback", "the log: a better kernel was not available",
        ("simulated-mx", "mxfp8-widened", "no-kernel", "no-moe-backend",
        "activations-not-quantized", "activations-ignored", "mxfp4-activations",
        "flashinfer-unavailable-moe", "marlin-fp4-moe", "int4-fallback", "transformers-model",
        "deepgemm-off", "kernel-failed", "no-image"),
        "VLLM_LOGGING_LEVEL=DEBUG makes vLLM name the reason; from 0.22 on --moe-backend and "
        "--linear-backend ask for another kernel."),
    _lines("setting-overridden",
        "the log: a backend or size that was asked for is not used",
        ("backend-not-for-layer", "kernel-not-forced", "batch-invariant", "block-size"),
        "Leave the setting out where it does not apply, or ask for a backend that has a kernel for "
        "every format of the checkpoint."),
    _lines("library-missing",
        "the log: FlashInfer, nvcc or Triton's kernels are missing", ("flashinfer-missing",
        "flashinfer-disabled", "nvcc-missing", "architecture-unknown", "triton-kernels-missing",
        "sampler-fallback"),
        "Install flashinfer-python and flashinfer-cubin of the version that vLLM pins, and a CUDA "
        "toolkit that knows the GPU (12.9 or later for compute capability 12.1)."),
    _lines("missing-moe-config",
        "the log: the Triton experts have no tuned configuration for the GPU",
        ("default-moe-config",),
        "Make {detail} with vLLM's benchmarks/kernels/benchmark_moe.py --tune, and name its folder "
        "in VLLM_TUNED_CONFIG_FOLDER."),
    _lines("default-block-config", "the log: the same of the block-scaled Triton GEMM",
        ("default-block-config",),
        "Make {detail} with vLLM's benchmarks/kernels/benchmark_w8a8_block_fp8.py, or try another "
        "kernel with --linear-backend cutlass."),
    _lines("padded-weights",
        "the log: weights or activations are padded to fit a kernel",
        ("marlin-padding", "hidden-padding", "intermediate-padding"),
        "Another tensor-parallel size or backend may need no padding; the conversions of a report "
        "show what padding and cutting take per token."),
    _lines("compiled-in-flight",
        "the log: a kernel was compiled while requests waited", ("compiled-in-flight",),
        "Send requests of every size that you serve before you measure; its time is in no later "
        "step.",
        "steps"),
)  # fmt: skip
