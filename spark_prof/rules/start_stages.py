"""What an engine does while it starts, and the lines of its log between which it does it.

Rows are in the order of vLLM's own start; wordings are those of 0.24 to 0.33. What runs between two
lines was read from the sources of 0.32: a line `opens` what comes next, and what ends with a line
that states seconds takes no more than those.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_prof.lazy_pattern import LazyPattern

STAGES: dict[str, str] = {
    "imports": "importing packages",
    "configuration": "reading arguments and configuration",
    "model-class": "reading the model's configuration and class",
    "processes": "starting processes, devices and collectives",
    "build": "building the model",
    "load": "loading the model, of which no line tells the parts",
    "weights": "reading weights",
    "repack": "repacking weights",
    "trace": "tracing for torch.compile",
    "compile": "compiling with torch.compile",
    "compiled-before": "reading compiled code from torch.compile's cache",
    "compile-and-profile": "compiling and the first run, which the log tells together",
    "profile": "the profiling run",
    "graph-memory": "measuring the memory of CUDA graphs",
    "kv-cache": "making the KV cache",
    "warm-up": "warming up kernels",
    "deep-gemm": "DeepGEMM's warm-up",
    "autotune": "FlashInfer's autotuning",
    "autotune-and-warm-up": "FlashInfer's autotuning and warming up kernels",
    "capture": "capturing CUDA graphs",
    "recording": "getting ready to record",
    "rest": "the rest of the engine's start",
    "server": "starting the server",
}
"""Stages in the order of a start, and what the engine does in each."""


@dataclass(frozen=True)
class Milestone:
    """One kind of line that ends a stage."""

    id: str  # words joined by hyphens
    word: str  # stands in every such line: what is looked for before the pattern is tried
    pattern: LazyPattern  # searched for in the message; its group seconds is what it states
    # The stage that ends here: for the seconds that the line states, or all the time since the
    # line before where it is `whole`. The rest is of the stage that was open.
    stage: str
    opens: str | None  # the stage that begins here; None where the open one goes on
    examples: tuple[str, ...]  # real messages; each is a test
    whole: bool = False
    bar: bool = False  # a progress bar without a time: it splits the time around it
    through: bool = False  # splits nothing, and tells that `compile` is `stage` this time
    begins: bool = False  # the first lines of a start


def _row(
    name: str, word: str, pattern: str, stages: str, *examples: str, kind: str = ""
) -> Milestone:
    """A row; its stages are the one that ends, a colon, and the one that it opens."""
    stage, _, opens = stages.partition(":")
    return Milestone(
        name, word, LazyPattern(pattern), stage, opens or None, examples,
        kind == "whole", kind == "bar", kind == "through", kind == "begins",
    )  # fmt: skip


_S = r"(?P<seconds>\d+(?:\.\d+)?)"
_TAG = r"^(?:\[[\w. -]{1,60}\] )?"
_BAR = r"100%.{0,40}?\[(?P<clock>\d+:\d\d(?::\d\d)?)<"

MILESTONES: tuple[Milestone, ...] = (
    _row("version", "version ", r"(?:vLLM (?:API server|server)? ?|[█▄▀]\s+)version v?\d",
        "imports:configuration",
        "vLLM API server version 0.26.0",
        kind="begins"),
    _row("arguments", "non-default args", r"^non-default args: ", "imports:configuration",
        "non-default args: {'model_tag': 'openai/gpt-oss-20b', 'enforce_eager': True}",
        kind="begins"),
    _row("architecture", "Resolved architecture", r"^Resolved architecture: ",
        "model-class:configuration",
        "Resolved architecture: GptOssForCausalLM",
        kind="whole"),
    _row("engine-config", "Initializing a", r"^Initializing an? (?:V\d )?LLM engine \(v",
        ":processes",
        "Initializing a V1 LLM engine (v0.33.0) with config: model='m', enforce_eager=False"),
    _row("load-begins", "tarting to load", r"^Starting to load model ", ":load",
        "Starting to load model /tmp/m/gpt..."),
    _row("load-begins-anew", "Loading model from", r"^Loading model from scratch\.\.\.", ":load",
        "Loading model from scratch..."),
    _row("built", "nitializing model took", rf"^Initializing model took {_S} seconds",
        "build:load",
        "Initializing model took 4.017674 seconds"),
    _row("weights-read", "oading weights took", rf"^Loading weights took {_S} seconds",
        "weights:repack",
        "Loading weights took 38.20 seconds"),
    _row("model-loaded", "odel loading took",
        r"^Model loading took [\d.]+ GiB(?: memory)? and [\d.]+ seconds",
        ":profile",
        "Model loading took 16.81 GiB memory and 45.124212 seconds"),
    _row("compile-begins", "Starting torch.compile", rf"{_TAG}Starting torch\.compile$",
        "profile:trace",
        "[backbone] Starting torch.compile",
        "Starting torch.compile"),
    _row("traced", "transform time", rf"{_TAG}Dynamo bytecode transform time: {_S} s",
        "trace:compile",
        "[backbone] Dynamo bytecode transform time: 5.31 s",
        "Dynamo bytecode transform time: 4.65 s"),
    _row("compiled", "Compiling a graph",
        rf"{_TAG}Compiling a graph for (?:compile range .{{1,60}}|.{{1,60}}) takes {_S} s",
        "compile:",
        "[eagle_head] Compiling a graph for compile range (1, 2048) takes 4.49 s",
        "Compiling a graph for compile range (1, 8192) takes 21.73 s"),
    _row("compiled-before", "compiled graph",
        rf"{_TAG}Directly load the compiled graph\(s\) for .{{1,80}} from the cache, took [\d.]+ s",
        "compiled-before:compiled-before",
        "Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took "
        "1.902 s",
        "[backbone] Directly load the compiled graph(s) for compile range (1, 2048) from the "
        "cache, took 0.412 s",
        kind="whole"),
    _row("whole-before", "AOT compilation", rf"{_TAG}Directly load AOT compilation from path ",
        "compiled-before",
        "Directly load AOT compilation from path /root/.cache/vllm/torch_compile_cache/x/model",
        "[backbone] Directly load AOT compilation from path /root/.cache/vllm/x/rank_0_0/model",
        kind="through"),
    _row("compiled-together", "together took",
        rf"{_TAG}torch\.compile and initial profiling/warmup run together took [\d.]+ s",
        "compile-and-profile:profile",
        "[backbone] torch.compile and initial profiling/warmup run together took 9.12 s in total",
        kind="whole"),
    _row("compile-total", "torch.compile t",
        rf"{_TAG}torch\.compile (?:takes|took) {_S} s",
        "compile:profile",
        "[backbone] torch.compile took 7.71 s in total",
        "torch.compile takes 27.04 s in total"),
    _row("first-run", "Initial profiling", rf"{_TAG}Initial profiling/warmup run took [\d.]+ s",
        ":profile",
        "[backbone] Initial profiling/warmup run took 5.36 s",
        "Initial profiling/warmup run took 3.90 s"),
    _row("graph-memory-begins", "Profiling CUDA graph", r"^Profiling CUDA graph memory: ",
        ":graph-memory",
        "Profiling CUDA graph memory: PIECEWISE=3 (largest=4), FULL=3 (largest=4)"),
    _row("graph-memory", "Estimated CUDA graph", r"^Estimated CUDA graph memory: ",
        ":profile",
        "Estimated CUDA graph memory: 0.05 GiB total"),
    _row("memory-for-cache", "Available KV cache", r"^Available KV cache memory: ",
        ":kv-cache",
        "Available KV cache memory: 74.25 GiB"),
    _row("memory-reserved", "memory for KV Cache",
        r"^Initial free memory [\d.]+ GiB, reserved [\d.]+ GiB memory for KV Cache",
        ":kv-cache",
        "Initial free memory 123.01 GiB, reserved 1.0 GiB memory for KV Cache as specified by "
        "kv_cache_memory_bytes config and skipped memory profiling."),
    _row("cache-size", "KV cache size", r"^\w+ KV cache size: [\d,]+ tokens",
        ":kv-cache",
        "GPU KV cache size: 1,060,205 tokens",
        "GPU KV cache size: 209,024 tokens, Maximum concurrency for 1,024 tokens per request: "
        "204.12x"),
    # Mamba's warm-up runs within the profiling run, and no line tells where it ends.
    _row("warm-up-begins", "arm",
        r"^(?:JIT kernel warmup starting|Compile and warming up model for size|"
        r"Warming up (?!Mamba2 SSD|chat template|done|[Mm]ultimodal|[Rr]eadonly))",
        ":warm-up",
        "JIT kernel warmup starting.",
        "Warming up ll_bf16 router GEMM kernels for shapes: ((7168, 64),).",
        "Warming up FlashInfer attention.",
        "Compile and warming up model for size 8192"),
    _row("warmed-up", "arm",
        rf"^(?:JIT kernel warmup finished in {_S}\s?s|Skipping CuTeDSL warmup|Warming up done)",
        "warm-up:warm-up",
        "JIT kernel warmup finished in 12.70s.",
        "Skipping CuTeDSL warmup because no compile units were requested."),
    _row("deep-gemm", "DeepGEMM warmup", rf"DeepGEMM warmup: {_BAR}",
        "deep-gemm",
        "DeepGEMM warmup: 100%|██████████| 810/810 [02:41<00:00,  5.03it/s]",
        kind="bar"),
    _row("autotune-begins", "FlashInfer",
        r"^(?:Running FlashInfer (?:BF16-only )?autotune|Using (?:legacy )?FlashInfer (?:managed )?"
        r"autotune cache|Autotuning FlashInfer )",
        ":autotune-and-warm-up",
        "Running FlashInfer autotune with 8192 tokens and token buckets (1, 2, 4, 8).",
        "Running FlashInfer autotune with 8192 tokens.",
        "Using FlashInfer managed autotune cache (root=flashinfer default). Pass "
        "--disable-flashinfer-autotune to skip autotuning."),
    _row("autotuner-begins", "Autotuning process",
        r"\[Auto[Tt]uner\]: Autotuning process starts",
        ":autotune-and-warm-up",
        "flashinfer.jit: [Autotuner]: Autotuning process starts ..."),
    _row("autotuned", "Autotuning process", r"\[Auto[Tt]uner\]: Autotuning process ends",
        "autotune:warm-up",
        "flashinfer.jit: [Autotuner]: Autotuning process ends",
        kind="whole"),
    _row("captured", "Graph capturing", rf"^Graph capturing finished in {_S} secs?",
        "capture:rest",
        "Graph capturing finished in 21 secs, took 1.32 GiB"),
    _row("monitor", "Kernel JIT monitor", r"^Kernel JIT monitor activated",
        ":rest",
        "Kernel JIT monitor activated; monitored JIT compilations during inference will use "
        "mode=warn.",
        "Kernel JIT monitor activated — Triton JIT compilations during inference will be logged "
        "as warnings."),
    _row("engine-up", "init engine", r"^init engine \(.{1,80}?\) took [\d.]+ s",
        "rest:server",
        "init engine (profile, create kv cache, warmup model) took 68.20 s (compilation: 27.04 s)",
        "init engine (profile, create kv cache, warmup model) took 68.20 seconds"),
    _row("server-up", "Starting vLLM", r"^Starting vLLM (?:API )?server(?: \d+)? on ",
        ":server",
        "Starting vLLM API server 0 on http://0.0.0.0:8000",
        "Starting vLLM server on http://0.0.0.0:8000"),
)  # fmt: skip

MILESTONES_BY_ID = {milestone.id: milestone for milestone in MILESTONES}

UP = ("server-up", "engine-up")
"""Milestones of an engine that can serve, the last first."""
