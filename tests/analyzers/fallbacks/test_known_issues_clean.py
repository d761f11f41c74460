"""Known issues of runs that have none: made logs of every version and GPU, and real ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from spark_prof.analyzers.fallbacks.audit import audit_of_log
from spark_prof.traces.readers.engine_log import read_engine_log
from tests.analyzers.fallbacks.issue_runs import (
    A100,
    B200,
    GB10,
    H100,
    L40S,
    LLAMA,
    PCIE,
    RTX,
    Engine,
)
from tests.rows import each_row

DATA = Path(__file__).parents[2] / "data"
ALL_GPUS = (A100, L40S, H100, B200, RTX, GB10)


def clean() -> Iterator[Engine]:
    """Plain engines of every version and GPU, and such with what issues are told by elsewhere."""
    versions = ("0.24.0", "0.25.1", "0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0",
                "0.32.0", "0.33.0")  # fmt: skip
    flash = "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN']."
    for vllm, gpu in product(versions, ALL_GPUS):
        yield Engine(vllm, gpu, LLAMA, (flash,), "meta-llama/Llama-3.1-8B")
        yield Engine(vllm, gpu, "Qwen3MoeForCausalLM", (
            flash, "Using TRITON Unquantized MoE backend out of potential backends: ['TRITON'].",
        ), "Qwen/Qwen3-30B-A3B", given={"enforce_eager": True})  # fmt: skip
        yield Engine(vllm, gpu, "GptOssForCausalLM", (
            "Using 'TRITON' Mxfp4 MoE backend.", "Using TRITON_ATTN attention backend.",
        ), "openai/gpt-oss-20b", "mxfp4", {"kv_cache_dtype": "fp8"})  # fmt: skip
    for vllm, gpu in product(versions, (RTX, GB10)):
        yield Engine(vllm, gpu, LLAMA, (
            "Detected ModelOpt NVFP4 checkpoint (quant_algo=NVFP4).",
            "Using FlashInferCutlassNvFp4LinearKernel for NVFP4 GEMM",
            "Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend out of potential backends: ['MARLIN'].",
        ), "nvidia/Qwen3-30B-A3B-NVFP4", "modelopt_fp4")  # fmt: skip
    yield Engine("0.30.0", B200, LLAMA, (PCIE,), given={"tensor_parallel_size": 4})


def names(engine: Engine) -> list[str]:
    audit = audit_of_log(engine.log(), capability=engine.capability)
    return [row.id for row in audit.known_issues]


def test_plain_engines_have_none() -> None:
    engines = list(clean())
    assert len(engines) >= 60
    wrong = [(each.vllm, each.capability, each.model, names(each)) for each in engines]
    assert [row for row in wrong if row[3]] == []


@each_row("path", sorted((DATA / "logs").iterdir()))
def test_real_logs_have_none(path: Path) -> None:
    assert audit_of_log(read_engine_log(path), capability=H100).known_issues == ()
