"""Rules about how the engine was set up, and about what lines of its log say by themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from spark_prof.analyzers.fallbacks.audit_rows import Audit, LogRow
from spark_prof.analyzers.findings.rule import FindingRule, Observation, rule
from spark_prof.rules import thresholds

_PADDED = thresholds.PADDED_TIMES.value

_CACHING = "--enable-prefix-caching"
_BLOCKWISE = "--linear-backend cutlass"
_FEW = thresholds.PADDED_STEPS.value


@rule("eager-mode", "timeline", "CUDA graphs are off by configuration", ("launch_gaps", "host"))
def _eager(audit: Audit) -> Iterator[Observation]:
    replaced, off = audit.log_rows("graph-mode"), audit.log_rows("graphs-off")
    if audit.engine.eager or (audit.engine.graph_mode == "NONE" and not replaced):
        yield Observation(None,
            "The engine runs eagerly: the host launches every kernel of every step, and the GPU "
            "waits wherever that takes longer than the kernel before.",
            "Leave out --enforce-eager, so that CUDA graphs replay the decode step."
            if not off
            else "Another setting rules CUDA graphs out; the log names it.",
            tuple(f"Line {log_row.line} of the log: {log_row.text[:160]}" for log_row in off)
            or ("Its configuration or log says so.",),
        )  # fmt: skip


@rule("graph-sizes-missing", "steps",
      "decode steps exceed the largest graph, or are padded to 1.5 times their tokens")  # fmt: skip
def _graph_sizes(audit: Audit) -> Iterator[Observation]:
    whole = sum(row.steps for row in audit.batches)
    frequent = [row for row in audit.batches if row.steps > _FEW * whole]
    bare = [row for row in frequent if row.graph is None]
    padded = [row for row in frequent if row.graph and row.graph >= _PADDED * row.tokens]
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
    capture_sizes = sorted({*audit.engine.graph_sizes, *(row.tokens for row in (*bare, *padded))})
    sizes = f"--cudagraph-capture-sizes {' '.join(map(str, capture_sizes[:64]))}"
    yield Observation(None,
        f"{'; '.join(parts)}.",
        sizes,
        (f"Captured sizes: {', '.join(map(str, audit.engine.graph_sizes[:64]))}.",),
        tries=(sizes,),
    )  # fmt: skip


@rule("graphs-downgraded", "timeline",
      "the log: CUDA graphs became piecewise or none")  # fmt: skip
def _graph_mode(audit: Audit) -> Iterator[Observation]:
    for log_row in audit.log_rows("graph-mode"):
        if log_row.value in ("PIECEWISE", "NONE"):
            yield Observation(None,
                f"vLLM replaced full CUDA graphs by lesser ones. The log: {log_row.text[:240]}",
                "Choose an attention backend that can be captured whole (--attention-backend), or "
                "expect the host's launches between the pieces.",
                (f"Line {log_row.line} of the log.",),
            )  # fmt: skip


@rule("prefix-caching-off", "fallbacks",
      "a server does not keep common beginnings of prompts")  # fmt: skip
def _prefix_caching(audit: Audit) -> Iterator[Observation]:
    reasons = [log_row.text[:160] for log_row in audit.log_rows("prefix-caching-off")]
    if audit.engine.prefix_caching is False and (audit.engine.serves or reasons):
        yield Observation(None,
            "A server without prefix caching computes every prompt anew, also the part that it has "
            "in common with earlier ones, such as a system prompt or a conversation so far.",
            f"Use {_CACHING}, unless the log gives a reason why the model cannot.",
            tuple(reasons) or ("Its configuration says enable_prefix_caching=False.",),
            tries=(_CACHING,),
        )  # fmt: skip


@rule("ignored-environment-variable", "fallbacks",
      "this vLLM does not read a variable, or soon will not")  # fmt: skip
def _ignored(audit: Audit) -> Iterator[Observation]:
    version = f"vLLM {audit.engine.vllm}" if audit.engine.vllm else "this vLLM"
    for row in audit.settings:
        if row.status == "deprecated":
            text = f"{row.name} still works in {version} and will not in a later one ({row.why})."
        else:
            text = f"{row.name} does nothing in {version}: {row.why}."
        fix = f"Use {row.instead} instead." if row.instead else "Unset it."
        setting = f"{row.name}={row.value}" if row.value else row.name
        yield Observation(None, text, fix, (f"The run had {setting}.",), subject=row.name)


SETUP = (_eager, _graph_sizes, _graph_mode, _prefix_caching, _ignored)


_LONGEST = 240
_MOST_LINES = 20
_OF_FAILURES = ("no-kernel", "no-moe-backend", "no-image", "kernel-failed", "architecture-unknown",
                "nvcc-missing")  # fmt: skip


def _lines(
    name: str,
    fires: str,
    rules: tuple[str, ...],
    fix: str,
    page: str = "fallbacks",
    tries: tuple[str, ...] = (),
) -> FindingRule[Audit]:
    """A rule about the lines of a log that `rules` read; {detail} in `fix` is what a line names."""

    def look(audit: Audit) -> Iterator[Observation]:
        lines_of: dict[tuple[str, str], list[LogRow]] = defaultdict(list)
        for log_row in audit.log_rows(*rules):
            if log_row.id in _OF_FAILURES and audit.failure and not audit.failure.recovered:
                continue  # it is told as what ended the engine
            if log_row.id == "deepgemm-off" and log_row.detail:
                continue  # vLLM leaves it out for the answers' sake, and names what runs instead
            lines_of[
                log_row.means, fix.replace("{detail}", log_row.detail or "a configuration")
            ].append(log_row)
        for (means, advice), lines in lines_of.items():
            rest = f" And {len(lines) - 1} more lines like it." if len(lines) > 1 else ""
            evidence = tuple(
                f"Line {log_row.line} of the log, {log_row.count} times: {log_row.text[:_LONGEST]}"
                for log_row in lines[:_MOST_LINES]
            )
            text = f"{means} The log: {lines[0].text[:_LONGEST]}{rest}"
            yield Observation(None, text, advice, evidence, subject=lines[0].id, tries=tries)

    return FindingRule(name, fires, look, page)


LINES = (
    _lines("kernel-fallback", "the log: a better kernel was not available",
        ("simulated-mx", "mxfp8-widened", "no-kernel", "no-moe-backend",
        "activations-not-quantized", "activations-ignored", "mxfp4-activations",
        "flashinfer-unavailable-moe", "marlin-fp4-moe", "int4-fallback", "transformers-model",
        "deepgemm-off", "kernel-failed", "no-image", "fusion-off", "sparse-mla-slow",
        "xqa-refused"),
        "VLLM_LOGGING_LEVEL=DEBUG makes vLLM name the reason; from 0.22 on --moe-backend and "
        "--linear-backend ask for another kernel."),
    _lines("setting-overridden",
        "the log: a requested backend or size is not used",
        ("backend-not-for-layer", "kernel-not-forced", "batch-invariant", "block-size",
        "bf16-backend-refused", "gdn-prefill-refused", "trtllm-refused", "attention-overridden"),
        "Leave the setting out where it does not apply, or ask for a backend that has a kernel for "
        "every format of the checkpoint."),
    _lines("library-missing",
        "the log: FlashInfer, nvcc or Triton's kernels are missing", ("flashinfer-missing",
        "flashinfer-disabled", "nvcc-missing", "architecture-unknown", "triton-kernels-missing",
        "sampler-fallback", "stock-path", "top-k-slow"),
        "Install flashinfer-python and flashinfer-cubin of the version that vLLM pins, and a CUDA "
        "toolkit that knows the GPU (12.9 or later for compute capability 12.1)."),
    _lines("missing-moe-config",
        "the log: Triton's experts are not tuned for the GPU",
        ("default-moe-config",),
        "Make {detail} with vLLM's benchmarks/kernels/benchmark_moe.py --tune, and name its folder "
        "in VLLM_TUNED_CONFIG_FOLDER."),
    _lines("default-block-config", "the log: the same of the block-scaled Triton GEMM",
        ("default-block-config",),
        "Make {detail} with vLLM's benchmarks/kernels/benchmark_w8a8_block_fp8.py, or try another "
        f"kernel with {_BLOCKWISE}.", tries=(_BLOCKWISE,)),
    _lines("padded-weights",
        "the log: weights or activations are padded",
        ("marlin-padding", "hidden-padding", "intermediate-padding"),
        "Another tensor-parallel size or backend may need no padding; the conversions of a report "
        "show what padding and cutting take per token."),
    _lines("attention-forced",
        "the log: head sizes force one attention backend", ("attention-forced",),
        "No setting changes that; compare the time of attention at the contexts that you serve "
        "with another model's, and newer versions of vLLM."),
    _lines("speculation-limited",
        "the log: speculation is limited, or takes from prompts",
        ("speculation-limits-tokens", "dynamic-speculation-off", "gdn-spec-triton", "draft-eager",
        "draft-shortens", "draft-limits-requests"),
        "Raise --max-num-batched-tokens by num_speculative_tokens times --max-num-seqs where the "
        "log asks for it; else compare speeds without speculation.",
        "steps"),
    _lines("synchronous-scheduling", "the log: no asynchronous scheduling",
        ("async-scheduling-off",),
        "Leave out what the log names, or compare without it.",
        "timeline"),
    _lines("all-reduce-fallback", "the log: a faster all-reduce is off",
        ("custom-all-reduce-off", "flashinfer-all-reduce-off", "pcie-all-reduce-off",
        "gemm-reduce-off"),
        "Small all-reduces run on NCCL or unfused: a report's collectives show what they take; "
        "between GPUs without peer access nothing else runs."),
    _lines("scales-differ", "the log: fused layers have several scales",
        ("scales-differ", "expert-scales-differ", "negative-scales"),
        "Compare answers with those of the unquantized model; a checkpoint with one scale for "
        "fused "
        "layers loses nothing."),
    _lines("untuned-sizes", "the log: FlashInfer runs untuned",
        ("autotuner-untuned", "sparse-mla-untuned"),
        "Let vLLM autotune at the start (--enable-flashinfer-autotune), with CUDA graphs up to the "
        "largest batch."),
    _lines("cache-wasted", "the log: KV cache is wasted",
        ("cache-padding-layers", "cache-not-unified", "hybrid-cache-turned-off"),
        "Without a draft model, or with another one, groups of layers may fit; the KV cache's size "
        "in tokens tells what it costs."),
    _lines("compiled-in-flight",
        "the log: a kernel was compiled while requests waited", ("compiled-in-flight",),
        "Send requests of every size that you serve before you measure; its time is in no later "
        "step.",
        "steps"),
)  # fmt: skip
