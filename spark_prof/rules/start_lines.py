"""Lines that tell how an engine starts: what took how long, and that it failed.

Rows as in `engine_log_lines`; wordings of vLLM 0.24 to 0.33.
"""

from __future__ import annotations

from spark_prof.rules.log_line_rule import LineRule
from spark_prof.rules.log_line_rule import line_rule as _rule

_S = r"(?P<value>\d+(?:\.\d+)?)"

START_LINES: tuple[LineRule, ...] = (
    # Ends. What they mean is told by the error behind them: `readers/log_errors.py`.
    _rule("engine-failed", "failure", "failed",
        r"(?P<value>(?:EngineCore|WorkerProc|Engine process) failed to start|(?:Engine core|"
        r"WorkerProc) initialization failed)",
        "The engine did not start.",
        "EngineCore failed to start.",
        "WorkerProc failed to start.",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core "
        "proc(s): {}"),
    _rule("engine-died", "failure", "EngineCore encountered",
        r"EngineCore encountered (?P<value>a fatal error|an issue)",
        "The engine died while it ran.",
        "EngineCore encountered a fatal error.",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack "
        "trace (above) for the root cause."),
    _rule("worker-died", "failure", "unexpectedly",
        r"(?P<value>(?:Ray)?Worker\w*)(?: proc)? \S+ died unexpectedly|(?:engine core|Engine core) "
        r"(?P<detail>exited unexpectedly)",
        "A process of the engine ended by itself.",
        "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.",
        "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup"),
    _rule("worker-exception", "failure", "hit an exception",
        r"(?P<value>WorkerProc|Scheduler) hit an exception",
        "A process of the engine met an error.",
        "WorkerProc hit an exception.",
        "Scheduler hit an exception: Traceback (most recent call last):"),
    # What the start took.
    _rule("weights-loaded", "start", "oading ",
        rf"Loading weights took {_S} seconds",
        "Seconds in which the weights were read.",
        "Loading weights took 38.20 seconds"),
    _rule("model-loaded", "start", "oading ",
        rf"Model loading took (?P<detail>[\d.]+) GiB(?: memory)? and {_S} seconds",
        "Seconds until the model was there, and the memory that it takes.",
        "Model loading took 16.81 GiB memory and 45.124212 seconds",
        "Model loading took 16.8144 GiB and 45.124212 seconds"),
    _rule("traced", "start", "transform time",
        rf"Dynamo bytecode transform time: {_S} s",
        "Seconds in which torch.compile traced the model.",
        "Dynamo bytecode transform time: 5.31 s"),
    _rule("compiled", "start", "ompil",
        rf"Compiling a graph for (?P<detail>compile range .{{1,60}}|.{{1,60}}) takes {_S} s",
        "Seconds in which torch.compile compiled for a range of sizes.",
        "Compiling a graph for compile range (1, 8192) takes 21.73 s"),
    _rule("compiled-before", "start", "compiled graph",
        rf"Directly load the compiled graph\(s\) for .{{1,80}} from the cache, took {_S} s",
        "Seconds in which compiled code was read from the cache.",
        "Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took "
        "1.902 "
        "s"),
    _rule("compile-total", "start", "orch.compile ",
        rf"torch\.compile (?:takes|took|and initial profiling/warmup run together took) {_S} s",
        "Seconds of torch.compile altogether.",
        "torch.compile takes 27.04 s in total",
        "torch.compile took 27.04 s in total"),
    _rule("warmed-up", "start", "arm",
        rf"(?:JIT kernel warmup finished in|Initial profiling/warmup run took) {_S}\s?s",
        "Seconds in which kernels were compiled and run once.",
        "JIT kernel warmup finished in 12.70s.",
        "Initial profiling/warmup run took 3.90 s"),
    _rule("warm-up-failed", "fallback", "arm",
        rf"JIT kernel warmup failed after {_S}s",
        "Kernels were not compiled beforehand: the first requests wait for that.",
        "JIT kernel warmup failed after 4.10s."),
    _rule("autotuned", "start", "FlashInfer autotune",
        r"Running FlashInfer autotune with (?P<value>\d+) tokens(?: and token buckets "
        r"(?P<detail>.{1,120}?))?\.?$",
        "FlashInfer tries its kernels for these numbers of tokens.",
        "Running FlashInfer autotune with 8192 tokens and token buckets (1, 2, 4, 8)."),
    _rule("autotune-cache", "start", "autotune cache",
        r"Using (?P<value>FlashInfer (?:managed )?autotune cache|legacy FlashInfer autotune cache)",
        "Where FlashInfer keeps what it found out.",
        "Using FlashInfer managed autotune cache (root=/root/.cache/x). Pass "
        "--disable-flashinfer-autotune to skip autotuning."),
    _rule("graphs-captured-in", "start", "Graph capturing",
        rf"Graph capturing finished in {_S} secs?, took (?P<detail>-?[\d.]+) GiB",
        "Seconds in which CUDA graphs were captured, and the memory that they take.",
        "Graph capturing finished in 21 secs, took 1.32 GiB"),
    _rule("memory-for-cache", "start", "KV cache memory",
        r"Available KV cache memory: (?P<value>-?[\d.]+) GiB",
        "Memory that was left for the KV cache.",
        "Available KV cache memory: 74.25 GiB"),
    _rule("engine-ready", "start", "init engine",
        rf"init engine \(.{{1,80}}\) took {_S} s",
        "Seconds from the loaded model to the engine that can serve.",
        "init engine (profile, create kv cache, warmup model) took 68.20 s (compilation: 27.04 s)",
        "init engine (profile, create kv cache, warmup model) took 68.20 seconds"),
    _rule("concurrency", "cache", "Maximum concurrency",
        r"Maximum concurrency for (?P<detail>[\d,]+) tokens per request: (?P<value>[\d.]+)x",
        "How many requests of the longest context the KV cache holds.",
        "Maximum concurrency for 32,768 tokens per request: 34.73x"),
)  # fmt: skip
