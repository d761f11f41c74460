"""Logs as people paste them, each with its truth: cut, prefixed, of several versions."""

from __future__ import annotations

import json

from tests.analyzers.fallbacks.logs_of_033 import (
    CUTLASS_MOE,
    FAILED,
    MARLIN_MOE,
    W4A4,
    Made,
    end,
    line,
    start,
    status,
    traceback,
)

_FALLBACK = frozenset({"weight-only-fp4", "misleading-fp4-warning"})
_FAILS = frozenset({"engine-failed"})
_CONFIG = (
    "Initializing a V1 LLM engine (v{}) with config: model='/models/m', speculative_config=None, "
    "dtype=torch.bfloat16, max_seq_len=8192, quantization={}, enforce_eager=False"
)
_ONE = [*start("m", "modelopt_fp4", W4A4, MARLIN_MOE, line("marlin_fp4")), *end()]


def _core(text: str, level: str = "INFO", place: str = "core.py:107") -> str:
    return f"(EngineCore_DP0 pid=21) {level} 06-08 10:00:01 [{place}] {text}"


def _json(text: str, level: str = "INFO") -> str:
    return json.dumps({
        "asctime": "2026-06-08 10:00:01,123", "levelname": level, "name": "vllm.v1.engine.core",
        "processName": "EngineCore", "process": 21, "message": text,
    })  # fmt: skip


PASTED: tuple[Made, ...] = (
    Made("fp8-cutlass-failed",
         [_core(_CONFIG.format("0.26.0", "fp8")),
          _core("Selected CutlassFp8BlockScaledMMKernel for Fp8LinearMethod"),
          _core("EngineCore failed to start.", "ERROR", "core.py:1330"),
          "(EngineCore_DP0 pid=21) RuntimeError: cutlass_gemm_caller, /w/quantization/w8a8/cutlass/"
          "c3x/cutlass_gemm_caller.cuh:62, Error Internal", FAILED],
         "not-started",
         ("The engine did not start: CUTLASS FP8 GEMM failed in the linear layers",), _FAILS),
    Made("reason-on-the-next-line",
         [_core(_CONFIG.format("0.26.0", "modelopt_mixed")),
          "(EngineCore_DP0 pid=21) ValueError: Failed to find a kernel that can implement the "
          "ScaledMM linear layer. Reasons: ",
          "(EngineCore_DP0 pid=21) MarlinFP8ScaledMMLinearKernel To apply FP8 Marlin on "
          "high-capability GPUs, please set VLLM_TEST_FORCE_FP8_MARLIN=1.", FAILED],
         "not-started", ("ScaledMM linear layers", "VLLM_TEST_FORCE_FP8_MARLIN=1"), _FAILS),
    Made("weights-missing",
         [_core(_CONFIG.format("0.25.1", "compressed-tensors")),
          *traceback("core_failed", "ValueError: Following weights were not initialized from "
                     "checkpoint: {'model.layers.0.mlp.gate.weight'}"), FAILED],
         "not-started", ("lacks weights",), _FAILS),
    Made("architecture-unknown",
         ["Traceback (most recent call last):",
          '  File "/x/bin/vllm", line 10, in <module>',
          "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
          "  Value error, The checkpoint you are trying to load has model type `qwen9` but "
          "Transformers does not recognize this architecture."],
         "not-started", ("does not know the model's architecture",), _FAILS),
    Made("compose-restarts-until-it-fits",
         [f"vllm-1  | {text}" for text in (
             *start("m", "modelopt_fp4", W4A4, CUTLASS_MOE),
             *traceback("core_failed", "ValueError: Free memory on device cuda:0 (93.1/121.69 GiB) "
                        "on startup is less than desired GPU memory utilization (0.9, 109.52 "
                        "GiB)."),
             FAILED, *start("m", "modelopt_fp4", W4A4, CUTLASS_MOE), *end(), status(1, 0, 0.3))],
         "failed-before", ("A later start succeeded", "only 93.1 of 121.69 GiB were free")),
    Made("status-lines-alone", [status(55, 35 + i, 99.5) for i in range(6)],
         "kv-full", ("KV cache full: 55 run, 40 wait",), frozenset({"kv-cache-full"})),
    Made("cut-at-the-beginning", [status(1, 0, 0.3)] * 5, "not-looked",
         ("start of the engine is not in the log",)),
    Made("cut-at-the-end", start("m", "modelopt_fp4")[:3], "not-looked",
         ("the log ends before",)),
    Made("journald", [f"Nov 28 10:58:01 spark-1 vllm[812]: {text}" for text in _ONE],
         "weight-only", ("NVFP4 experts run W4A16 on Marlin",), _FALLBACK),
    Made("docker-logs-t", [f"2026-11-28T10:58:01.123456789Z {text}" for text in _ONE],
         "weight-only", ("NVFP4 experts run W4A16 on Marlin",), _FALLBACK),
    Made("coloured", [text.replace(" WARNING ", " \x1b[33mWARNING\x1b[0m \x1b[90m")
                      .replace(" INFO ", " \x1b[32mINFO\x1b[0m ") + "\r" for text in _ONE],
         "weight-only", ("NVFP4 experts run W4A16 on Marlin",), _FALLBACK),
    Made("records-of-json",
         [_json(_CONFIG.format("0.33.0", "modelopt_fp4")),
          _json("Using FlashInferCutlassNvFp4LinearKernel for NVFP4 GEMM"),
          _json("Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['MARLIN']."),
          _json("A warning that nobody has seen", "WARNING")],
         "weight-only", ("NVFP4 experts run W4A16 on Marlin",), frozenset({"weight-only-fp4"}), 1),
    Made("sglang",
         ["[2026-06-08 10:00:01] server_args=ServerArgs(model_path='m', "
             "attention_backend='triton', "
          "disable_cuda_graph=False)",
          "[2026-06-08 10:00:09 TP0] Capture cuda graph bs [1, 2, 4, 8]"],
         "not-looked", ("SGLang log",)),
    Made("port-in-use",
         [line("args", {"model_tag": "m"}, process="APIServer", pid=1),
          "(APIServer pid=1) Traceback (most recent call last):",
          '(APIServer pid=1)   File "/x/vllm/entrypoints/launchers/api_server.py", line 9, in bind',
          "(APIServer pid=1) OSError: [Errno 98] Address already in use"],
         "not-started", ("its port is in use",), _FAILS),
    Made("old-arguments",
         ["usage: vllm serve [model_tag] [options]",
          "vllm serve: error: unrecognized arguments: --enable-thing"],
         "not-started", ("unrecognized arguments: --enable-thing",), _FAILS),
    Made("ptxas",
         [_core(_CONFIG.format("0.24.0", "None")),
          *traceback("core_failed", "torch._inductor.exc.InductorError: PTXASError: PTXAS error: "
                     "Internal Triton PTX codegen error\n`ptxas` stderr:\nptxas fatal   : Value "
                     "'sm_121a' is not defined for option 'gpu-name'"), FAILED],
         "not-started", ("the compiler does not know this GPU",), _FAILS),
    Made("nccl-at-two-sparks",
         [_core(_CONFIG.format("0.31.0", "None")),
          *traceback("worker_failed", "torch.distributed.DistBackendError: NCCL error in: "
                     "ProcessGroupNCCL.cpp:3690, unhandled system error, NCCL version 2.28.9",
                     process="Worker_TP1", pid=301),
          *traceback("core_failed", "Exception: WorkerProc initialization failed due to an "
                     "exception in a background process. See stack trace for root cause."), FAILED],
         "not-started", ("NCCL failed between the GPUs",), _FAILS),
    Made("a-request-that-failed",
         [*start("m", "modelopt_fp4", W4A4, CUTLASS_MOE), *end(),
          "(APIServer pid=1) ERROR:    Exception in ASGI application",
          "(APIServer pid=1) Traceback (most recent call last):",
          '(APIServer pid=1)   File "/x/starlette/routing.py", line 9, in app',
          "(APIServer pid=1) ValueError: 'max_tokens' is too large",
          status(1, 0, 0.3)],
         "nothing", ("1 warning of this log is not known to me",), unknown=1),
    Made("piecewise-by-speculation",
         [*start("m", "None", _core(
             "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode for attention "
             "backend FlashInferBackend (support: AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE); "
             "setting cudagraph_mode=PIECEWISE", "WARNING", "gpu_model_runner.py:1")), *end()],
         "piecewise", ("CUDA graphs are piecewise",), frozenset({"graphs-downgraded"})),
)  # fmt: skip
