"""Logs as vLLM 0.33.0 would write them, made of its own format strings, each with its truth."""

from __future__ import annotations

from dataclasses import dataclass

from tests.analyzers.fallbacks.formats_of_033 import FORMATS

ALL = ["FLASHINFER_TRTLLM", "FLASHINFER_CUTEDSL", "FLASHINFER_CUTLASS", "VLLM_CUTLASS", "MARLIN"]
GIB = "16.81"


@dataclass(frozen=True)
class Made:
    """A log, and what is true of it."""

    name: str
    lines: list[str]
    verdict: str  # the kind
    words: tuple[str, ...] = ()  # what the first sentence has in it
    findings: frozenset[str] = frozenset()  # exactly those
    unknown: int = 0
    gpu: str = "gb10"


def line(name: str, *args: object, process: str = "EngineCore", pid: int = 212) -> str:
    """A line as vLLM's formatter writes it."""
    level, text, file = FORMATS[name]
    return (
        f"({process} pid={pid}) {level} 11-28 10:00:07 [{file.rpartition('/')[2]}:12] "
        f"{text % args if args else text.replace('%%', '%')}"
    )


def start(model: str = "m", quantization: str = "None", *more: str, **config: str) -> list[str]:
    """What every start writes first."""
    settings = "".join(f", {name}={value}" for name, value in config.items())
    made = (
        f"model='{model}', speculative_config=None, dtype=torch.bfloat16, max_seq_len=32768, "
        f"quantization={quantization}, enforce_eager=False, enable_prefix_caching=True{settings}"
    )
    return [
        line("args", {"model_tag": model, "port": 8000}, process="APIServer", pid=1),
        line("chunked", 8192, process="APIServer", pid=1),
        line("start", "0.33.0", made),
        line("attention", "FLASHINFER", ["FLASHINFER", "TRITON_ATTN"]),
        *more,
    ]


def end() -> list[str]:
    """What an engine that came up writes last."""
    return [
        line("weights", 38.2), line("loaded", GIB, 45.1), line("dynamo", "", 5.3),
        line("compiled", "", "(1, 8192)", 21.7), line("kv_memory", "74.25"),
        line("kv", "GPU", "1,138,176", "32,768", 34.7), line("autotune", 8192, "(1, 2, 4, 8)"),
        line("warmup", 12.7), line("captured", 21, 1.3), line("ready", 68.2, 27.0),
        line("sampling", "the model's `generation_config.json`", "{'temperature': 0.6}",
             process="APIServer", pid=1),
        "(APIServer pid=1) INFO:     Application startup complete.",
    ]  # fmt: skip


def status(running: int, waiting: int, usage: float) -> str:
    """vLLM's line every ten seconds."""
    return line("status", 0, 12.4, 220.0, running, waiting, usage, 0.1, process="APIServer", pid=1)


def traceback(marker: str, error: str, *frames: tuple[str, str], process: str = "EngineCore",
              pid: int = 212) -> list[str]:  # fmt: skip
    """An error as `logger.exception` writes it, each line with vLLM's prefix."""
    prefix = line(marker, process=process, pid=pid).partition("] ")[0] + "] "
    text = ["Traceback (most recent call last):"]
    for file, function in frames:
        text += [f'  File "/opt/venv/site-packages/{file}", line 12, in {function}', "    call()"]
    return [line(marker, process=process, pid=pid)] + [
        prefix + part for part in [*text, *error.split("\n")]
    ]


FAILED = (
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {'EngineCore': 1}"
)
LOAD = ("vllm/v1/worker/gpu/model_runner.py", "load_model")
MARLIN_MOE = line("moe", "MARLIN", ALL)
W4A4 = line("nvfp4", "FlashInferCutlassNvFp4LinearKernel")
CUTLASS_MOE = line("moe", "FLASHINFER_CUTLASS", ALL)

LOGS: tuple[Made, ...] = (
    Made("clean-nvfp4", [*start("m", "modelopt_fp4", W4A4, CUTLASS_MOE), *end(), status(1, 0, 0.3)],
         "nothing", ("Nothing to change was found",)),
    Made("clean-bf16-h200", [*start("m", "None", line("bf16", "mm_bf16")), *end()],
         "nothing", gpu="h200"),
    Made("humming-h100",
         [*start("m", "modelopt_fp4", line("nvfp4", "HummingNvFp4LinearKernel"),
                 line("moe", "HUMMING", ALL), line("humming_gemm", "grouped_contiguous")), *end()],
         "nothing", gpu="h100"),
    Made("b12x-gb10",
         [*start("m", "modelopt_fp4", line("nvfp4", "FlashInferB12xNvFp4LinearKernel"),
                 line("moe", "FLASHINFER_B12X", ALL), line("b12x_warm", 12, "moe")), *end()],
         "nothing"),
    Made("marlin-experts",
         [*start("m", "compressed-tensors", W4A4, MARLIN_MOE, line("marlin_fp4")), *end()],
         "weight-only", ("NVFP4 experts run W4A16 on Marlin although this GPU multiplies FP4",),
         frozenset({"weight-only-fp4", "misleading-fp4-warning"})),
    Made("gpt-oss-gb10", [*start("gpt-oss", "mxfp4", line("mxfp4_moe", "MARLIN"),
                                 line("lacks_fp4")), *end()], "nothing"),
    Made("fp8-dense", [*start("m", "fp8", line("selected", "CutlassFP8ScaledMMLinearKernel",
                                               "Fp8LinearMethod"), line("fp8_scale")), *end()],
         "finding", ("scale",), frozenset({"scales-differ"})),
    Made("mtp", [*start("m", "None", line("scheduled", 1536, process="APIServer", pid=1),
                        line("gdn_prefill", "FlashInfer", "auto", 128),
                        line("gdn_triton", "FlashInfer does not support head_dim=64"),
                        line("drafter"), line("mtp_head")), *end()],
         "finding", ("Speculation takes tokens of the budget",),
         frozenset({"speculation-limited"})),
    Made("eagle", [*start("m", "None", line("drafter"), line("eagle_head"),
                          line("dynamic_off", "eagle", 3), line("padding", 5, 12.5)), *end()],
         "finding", ("Drafts do not follow the batch",),
         frozenset({"speculation-limited", "cache-wasted"})),
    Made("tensor-parallel",
         [*start("m", "None", line("custom_ar", process="Worker_TP0", pid=300),
                 line("custom_ar", process="Worker_TP1", pid=301),
                 line("flashinfer_ar", process="Worker_TP0", pid=300),
                 line("ar_backends", ["PYNCCL"], "tp:0", ["CUSTOM", "PYNCCL"],
                      process="Worker_TP0", pid=300)), *end()],
         "finding", ("All-reduces of few bytes run on NCCL",), frozenset({"all-reduce-fallback"})),
    Made("kv-full", [*start("m", "modelopt_fp4", W4A4, CUTLASS_MOE), *end(),
                     *(status(55, 30 + i, 99.0 + i / 20) for i in range(11)),
                     line("status_preempted", 0, 0.0, 190.0, 54, 40, 12, 98.5, process="APIServer",
                          pid=1)],
         "kv-full", ("KV cache full: 55 run, 40 wait", "12 preempted"),
         frozenset({"kv-cache-full"})),
    Made("eager", [*start("m", "None", line("eager"), line("cudagraph_eager")), *end()],
         "eager", ("CUDA graphs are off",), frozenset({"eager-mode"})),
    Made("graphs-none", [*start("m", "None", line("graph_none")), *end()],
         "eager", ("CUDA graphs are off",), frozenset({"graphs-downgraded"})),
    Made("breakable", [*start("m", "None", line("breakable_env"), line("breakable")), *end()],
         "nothing"),
    Made("attention-forced", [*start("gemma", "None", line("gemma_heads", "(256, 512)",
                                                           process="APIServer", pid=1)), *end()],
         "attention-forced", ("Attention was forced to Triton",), frozenset({"attention-forced"})),
    Made("out-of-memory",
         [*start("m", "None"),
          *traceback("core_failed", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
                     "1.16 GiB. GPU 0 has a total capacity of 121.69 GiB of which 512.00 MiB is "
                     "free.", ("vllm/v1/engine/core.py", "run_engine_core"), LOAD), FAILED],
         "not-started", ("memory ran out while the weights were loaded",),
         frozenset({"engine-failed"})),
    Made("cache-too-small",
         [*start("m", "None"), line("kv_memory", "9.31"),
          *traceback("core_failed", "ValueError: To serve at least one request with the model's "
                                    "max "
                     "seq len (262144), (24.00 GiB KV cache is needed, which is larger than the "
                     "available KV cache memory (9.31 GiB). Based on the available memory, the "
                     "estimated maximum model length is 98304.",
                     ("vllm/v1/core/kv_cache_planning.py", "_check_enough_kv_cache_memory")),
          FAILED],
         "not-started", ("one request of 262144 tokens needs 24.00 GiB of KV cache",),
         frozenset({"engine-failed"})),
    Made("no-image-tp2",
         [*start("m", "modelopt_fp4", W4A4),
          *traceback("worker_failed", "torch.AcceleratorError: CUDA error: no kernel image is "
                     "available for execution on the device\nCUDA kernel errors might be "
                     "asynchronously reported at some other API call",
                     LOAD, ("vllm/model_executor/kernels/linear/nvfp4/flashinfer.py", "apply"),
                     ("flashinfer/gemm/gemm_base.py", "mm_fp4"), process="Worker_TP1", pid=301),
          *traceback("core_failed", "Exception: WorkerProc initialization failed due to an "
                                    "exception "
                     "in a background process. See stack trace for root cause."), FAILED],
         "not-started", ("FlashInfer has no code for this GPU in the linear layers",),
         frozenset({"engine-failed"})),
    Made("died-while-serving",
         [*start("m", "modelopt_fp4", W4A4, CUTLASS_MOE), *end(), status(3, 0, 2.0),
          *traceback("worker_hit", "torch.AcceleratorError: CUDA error: an illegal memory access "
                                   "was "
                     "encountered", ("vllm/v1/worker/gpu/model_runner.py", "execute_model"),
                     ("vllm/model_executor/layers/fused_moe/layer.py", "forward"),
                     process="Worker_TP0", pid=300),
          *traceback("core_fatal", "RuntimeError: Worker failed with error 'CUDA error: an illegal "
                     "memory access was encountered', please check the stack trace above for the "
                     "root cause"),
          "(APIServer pid=1) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an "
          "issue. See stack trace (above) for the root cause."],
         "died", ("The engine died while it served", "memory that is not its own"),
         frozenset({"engine-failed"})),
    Made("unknown-warnings",
         [*start("m", "modelopt_fp4", W4A4, CUTLASS_MOE), line("u_wsp", 0, 1), *end(),
          line("u_tokens", "a-1"), line("u_tokens", "a-2"), line("u_kv", 3),
          line("u_spec", "eagle"), line("u_grammar", [3, 4], "a-3"),
          *traceback("u_req", "KeyError: 'x'", ("vllm/v1/engine/core.py", "preprocess")),
          status(1, 0, 0.3)],
         "nothing", ("Nothing to change was found", "7 warnings of this log are not known to me"),
         unknown=7),
    Made("emulated", [*start("m", "modelopt_fp4", W4A4, line("moe", "EMULATION", ALL),
                             line("emulation")), *end()],
         "emulated", ("NVFP4 experts are emulated",), frozenset({"emulation-backend"})),
    Made("killed", [*start("m", "None"),
                    line("worker_died", "VllmWorker-0", -9), FAILED.replace(": 1}", ": -9}")],
         "not-started", ("ended its process (signal 9)",), frozenset({"engine-failed"})),
    Made("without-overlap", [*start("m", "None", line("async_off", "ngram")), *end()],
         "finding", ("scheduled only when this one has ended",),
         frozenset({"synchronous-scheduling"})),
)  # fmt: skip
