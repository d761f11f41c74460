"""Recordings of an NVFP4 model with one layer, made by hand, and what their engine wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_prof.analyzers.model import Report
from spark_prof.traces.readers.engine_log import EngineLog, statements_of
from tests.analyzers.reported import reported
from tests.support import (
    QKV,
    Piece,
    Recorded,
    call,
    engine,
    kernel,
    kineto,
    layer_row,
    step,
)

GB10 = {"name": "NVIDIA GB10", "compute_capability": "12.1"}
H100 = {"name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0"}
W4A4 = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
W4A16 = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}}
A16_FIRST = "FlashInferCuteDslNvFp4W4A16LinearKernel"
MARLIN = "void marlin::Marlin<1125899906909960l>(int4 const*)"
CUTLASS = "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<MainloopSm120>>(x)"


def facts(
    gpu: Mapping[str, str] = GB10,
    model: Mapping[str, Any] = W4A4,
    vllm: str = "0.26.0",
    environment: Mapping[str, str] | None = None,
    **settings: str,
) -> dict[str, Any]:
    """What a worker tells of itself; settings by name, in the configuration that has them."""
    places = {"enforce_eager": "model_config", "enable_prefix_caching": "cache_config",
              "moe_backend": "kernel_config", "linear_backend": "kernel_config",
              "cudagraph_capture_sizes": "compilation_config"}  # fmt: skip
    config: dict[str, dict[str, str]] = {"model_config": {"enforce_eager": "False"}}
    for name, value in settings.items():
        config.setdefault(places[name], {})[name] = value
    return {
        "vllm": vllm, "gpu": dict(gpu), "model_config": dict(model), "engine_config": config,
        "environment": dict(environment or {}), "quantization": "modelopt_fp4",
    }  # fmt: skip


def module(kernel_class: str, method: str = "ModelOptNvFp4LinearMethod") -> dict[str, Any]:
    """The row of the layer's qkv_proj."""
    path = "model.layers.0.self_attn.qkv_proj"
    return layer_row(path, 0, "qkv", quant_method=method, kernel=kernel_class)


def log(*lines: str) -> EngineLog:
    """A log of these lines."""
    return EngineLog("log.txt", len(lines), statements_of(lines))


def report(
    tmp_path: Path,
    layer: Mapping[str, Any],
    ran: str,
    given: Mapping[str, Any] | None = None,
    said: EngineLog | None = None,
    tokens: tuple[int, ...] = (1, 1, 1, 1),
) -> Report:
    """The report of a run whose layer is that row and in which that kernel ran."""
    steps, calls, kernels = [], [], []
    for index, count in enumerate(tokens):
        at = 1000 * index
        steps.append(step(index, at, at + 900, decode_tokens=count, decode_requests=count))
        calls += call(QKV, at + 100, at + 200)
        kernels += kernel(ran, at + 150, at + 550, index + 1, at + 110)
    piece = Piece(steps, calls, kineto(*kernels))
    rows = [engine(index, 1000 * index, 1000 * index + 950) for index in range(len(tokens))]
    recorded = Recorded({0: [piece]}, {0: rows}, facts=given or facts(), layers=[layer])
    return reported(recorded.assemble(tmp_path / "bundle"), log=said)
