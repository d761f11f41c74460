"""Kernels of vLLM as contestants, where there are a GPU and vLLM: each computes what is right."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from spark_prof.kernels.bench.passes import PASSES, SEPARATE, Pass, race_pass
from spark_prof.kernels.bench.results import Cell
from spark_prof.kernels.bench.run import race_dense, race_experts
from spark_prof.kernels.bench.shapes import DenseShape, ExpertsShape, Layer, WeightFormat

GPT_OSS = ExpertsShape("gpt-oss", "mxfp4", 32, 4, 320, 320, "swiglu", True)
QWEN = ExpertsShape("Qwen", "nvfp4", 16, 8, 256, 192, "silu", False)


@pytest.fixture
def gpu() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    pytest.importorskip("vllm")
    return torch.device("cuda", torch.cuda.current_device())


def failures(cells: Iterable[Cell]) -> list[str]:
    found = [result for cell in cells for result in cell.results]
    assert found
    return [f"{result.contestant}: {result.failed}" for result in found if result.failed]


@pytest.mark.parametrize("form", ["nvfp4", "mxfp4", "fp8"])
@pytest.mark.parametrize(("rows", "columns"), [(256, 320), (192, 256)])
def test_marlin(form: WeightFormat, rows: int, columns: int, gpu: torch.device) -> None:
    shape = DenseShape(rows, columns, (Layer("small", "o", rows, columns),))
    assert failures(race_dense(shape, form, [1, 3], gpu, 0.0, ["vLLM Marlin"])) == []


@pytest.mark.parametrize(
    ("shape", "name"),
    [(GPT_OSS, "vLLM Marlin"), (GPT_OSS, "vLLM Triton"), (QWEN, "vLLM Marlin")],
    ids=["gpt-oss Marlin", "gpt-oss Triton", "Qwen Marlin"],
)
def test_experts(shape: ExpertsShape, name: str, gpu: torch.device) -> None:
    assert failures(race_experts(shape, [1, 3], gpu, 0.0, [name])) == []


@pytest.mark.parametrize("work", PASSES[::3], ids=lambda work: work.name)
def test_separate_kernels(work: Pass, gpu: torch.device) -> None:
    for row_format in ("nvfp4", "mxfp8"):
        assert failures(race_pass(work, row_format, [2], gpu, 0.0, [SEPARATE])) == []
