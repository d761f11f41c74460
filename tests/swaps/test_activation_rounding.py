"""What vLLM's layers round activations to: the table is vLLM's, and modules are told by it."""

from __future__ import annotations

import ast
import math
import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spark_prof.swaps.activation_rounding import KERNELS, largest_input, rounded_by
from spark_prof.swaps.build import SwapPoint
from spark_prof.swaps.swap_settings import Rounded
from tests.rows import each_row
from tests.swaps.layers import Linear, Runner
from tests.swaps.test_vllm_internals import SOURCES

from . import vllm_layers

NOT_THEIRS = re.compile("Int8|^(Aiter|CPU|ROCm|XPU|Zentorch)")
"""Kernels for other weights or other processors."""

WEIGHTS_ONLY = re.compile("Marlin|Humming|W4A16")

EITHER = {"EmulationMxfp4"}
"""It rounds as its scheme says."""

BASES = {"TorchFP8ScaledMM", "Fp8BlockScaledDynamicMM"}
"""What kernels are made of."""

QUANTIZES = re.compile(r"fp4_quant|mxfp4_quantize|ScaledMMLinearKernel|nvfp4_emulations")


def short(name: str) -> str:
    return name.removesuffix("Kernel").removesuffix("Linear")


def kernels(source: Path) -> dict[str, str]:
    """The kernels for a matrix in a vLLM, by their short names, and their files."""
    found = {}
    for folder in ("scaled_mm", "nvfp4", "mxfp4"):
        for path in (source / "model_executor/kernels/linear" / folder).glob("*.py"):
            for node in ast.walk(ast.parse(text := path.read_text())):
                named = isinstance(node, ast.ClassDef) and node.name.endswith("Kernel")
                # The classes of the others are what kernels are made of.
                if named and path.stem != "base" and path.stem not in node.name:
                    found[short(node.name)] = text
    return found


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_each_kernel_of_vllm_is_told(source: Path) -> None:
    found = kernels(source)
    if not found:
        pytest.skip("it keeps its kernels elsewhere")
    known = KERNELS.keys() | EITHER | BASES
    theirs = {name for name in found if not NOT_THEIRS.search(name)}
    # Whoever adds a kernel to vLLM adds a name here: until then its bound is strict.
    assert {name for name in theirs if not WEIGHTS_ONLY.search(name)} <= known
    assert not [name for name in KERNELS if WEIGHTS_ONLY.search(name) or NOT_THEIRS.search(name)]
    for name in KERNELS.keys() & found.keys():
        assert QUANTIZES.search(found[name]), name


def test_each_row_is_a_kernel_of_some_vllm() -> None:
    sources = [kernels(source) for source in SOURCES]
    if not any("B12xNvFp4" in each for each in sources):
        pytest.skip("vLLM 0.32 is not installed")
    assert KERNELS.keys() <= set().union(*sources)


def matrix(module: Any) -> Rounded:
    return rounded_by(SwapPoint("qkv", "qkv", module, "matrix"))


def of_class(name: str) -> Any:
    return object.__new__(type(name, (), {}))


@each_row(
    ("holder", "attribute", "kernel", "expected"),
    [
        ("scheme", "fp8_linear", "CutlassFP8ScaledMMLinearKernel", "fp8"),
        ("scheme", "fp8_linear", "MarlinFP8ScaledMMLinearKernel", ""),
        ("scheme", "kernel", "MarlinNvFp4LinearKernel", ""),
        ("scheme", "kernel", "FlashInferCutlassNvFp4LinearKernel", "fp4"),
        ("scheme", "kernel", "FlashInferMxFp4LinearKernel", "fp4"),
        ("scheme", "kernel", "MacheteLinearKernel", ""),
        ("scheme", "linear_kernel", "CutlassFP8ScaledMMLinearKernel", ""),  # W8A16 has that
        ("quant_method", "fp8_linear", "DeepGemmFp8BlockScaledMMKernel", "fp8"),
        ("quant_method", "kernel", "FlashInferCuteDslNvFp4W4A16LinearKernel", ""),
        ("quant_method", "kernel", "SomeNewNvFp4LinearKernel", ""),
    ],
)
def test_a_matrix_as_vllm_0_26_has_it(
    holder: str, attribute: str, kernel: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Linear(16, 16)
    setattr(module, holder, SimpleNamespace(**{attribute: of_class(kernel)}))
    assert matrix(module) == expected
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert matrix(module) == ""


@each_row(
    ("dtype", "expected"),
    [("float8e4m3", "fp8"), ("float4e2m1", "fp4"), ("bfloat16", ""), ("int8", "")],
)
def test_humming_says_itself_what_it_rounds_to(dtype: str, expected: str) -> None:
    """As vLLM 0.33 has it: which one it is, is known once the weights are laid out."""
    kernel = of_class("HummingMxFp4LinearKernel")
    module = Linear(16, 16)
    module.scheme = SimpleNamespace(kernel=kernel)
    assert matrix(module) == ""
    a_dtype = type("DataType", (), {"__str__": lambda _: dtype})()
    kernel.layer_config = SimpleNamespace(a_dtype=a_dtype)
    assert matrix(module) == expected


def test_what_has_no_such_kernel_rounds_nothing() -> None:
    assert matrix(Linear(16, 16)) == ""
    assert rounded_by(SwapPoint("moe", "experts", Runner(), "experts")) == ""
    assert rounded_by(SwapPoint("norm", "norm", torch.nn.LayerNorm(4), "norm")) == ""


@pytest.mark.usefixtures("vllm_world")
@each_row(
    ("quantization", "module", "kernel", "expected"),
    [
        ("compressed fp8", "scaled_mm.cutlass", "CutlassFP8ScaledMMLinearKernel", "fp8"),
        ("compressed fp8", "scaled_mm.marlin", "MarlinFP8ScaledMMLinearKernel", ""),
        ("compressed fp8 w8a16", "scaled_mm.cutlass", "CutlassFP8ScaledMMLinearKernel", ""),
        ("fp8 blocks", "scaled_mm.deep_gemm", "DeepGemmFp8BlockScaledMMKernel", "fp8"),
        ("modelopt nvfp4", "nvfp4.cutlass", "CutlassNvFp4LinearKernel", "fp4"),
        ("modelopt nvfp4", "nvfp4.marlin", "MarlinNvFp4LinearKernel", ""),
        ("compressed nvfp4 w4a4", "nvfp4.flashinfer", "FlashInferCutlassNvFp4LinearKernel", "fp4"),
        ("compressed mxfp4", "mxfp4.flashinfer", "FlashInferMxFp4LinearKernel", "fp4"),
    ],
)
def test_a_matrix_of_the_vllm_that_is_here(
    quantization: str, module: str, kernel: str, expected: str
) -> None:
    layer = vllm_layers.qkv(quantization)
    holder = getattr(layer, "scheme", None) or layer.quant_method
    kind = getattr(import_module(f"vllm.model_executor.kernels.linear.{module}"), kernel)
    names = [name for name in ("fp8_linear", "kernel", "linear_kernel") if hasattr(holder, name)]
    assert names
    for name in names:
        setattr(holder, name, object.__new__(kind))
    assert matrix(layer) == expected
    unquantized = vllm_layers.qkv("bf16")
    assert matrix(unquantized) == ""


SCALE = torch.ones(1)


@each_row(
    ("make", "given", "expected"),
    [
        ("fp8_w8a8_moe_quant_config", (SCALE, SCALE), "fp8"),
        ("fp8_w8a16_moe_quant_config", (SCALE, SCALE), ""),
        ("nvfp4_moe_quant_config", (SCALE,) * 6, "fp4"),
        ("nvfp4_w4a16_moe_quant_config", (SCALE,) * 4, ""),
        ("mxfp4_w4a16_moe_quant_config", (SCALE, SCALE), ""),
        ("mxfp4_mxfp8_moe_quant_config", (SCALE, SCALE), "fp8"),
        ("int8_w8a8_moe_quant_config", (SCALE,) * 4, ""),
    ],
)
def test_experts_by_vllms_own_config(make: str, given: tuple[Any, ...], expected: str) -> None:
    config = pytest.importorskip("vllm.model_executor.layers.fused_moe.config")
    runner = Runner()
    made = getattr(config, make)(*given)
    # It is made when it is first asked for.
    runner.routed_experts._ensure_moe_quant_config_init = lambda: setattr(
        runner.routed_experts.quant_method, "moe_quant_config", made
    )
    assert rounded_by(SwapPoint("moe", "experts", runner, "experts")) == expected


def test_a_static_scale_holds_so_much() -> None:
    module = Linear(16, 16)
    assert largest_input(module, "fp8") == math.inf
    module.input_scale = torch.tensor(0.0625)
    assert largest_input(module, "fp8") == 28.0
    assert largest_input(module, "fp4") == math.inf
    module.input_global_scale_inv = torch.tensor(537.6, dtype=torch.float32)
    assert largest_input(module, "fp4") == pytest.approx(5.0)
    assert largest_input(module, "") == math.inf


def test_static_scales_of_experts_hold_tokens_of_unit_size() -> None:
    experts = Runner().routed_experts
    assert largest_input(experts, "fp8") == math.inf
    for scale, expected in ((None, math.inf), (1 / 448, 1.0), (1.0, 4.0)):
        given = None if scale is None else torch.tensor([scale, 2.0], dtype=torch.float32)
        experts.quant_method.moe_quant_config = SimpleNamespace(a1_scale=given, a1_gscale=None)
        assert largest_input(experts, "fp8") == pytest.approx(expected)
        assert largest_input(experts, "fp4") == math.inf
