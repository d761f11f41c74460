"""The templates' Triton kernels compile for the GPUs of this project; no GPU is needed for that."""

from __future__ import annotations

import os
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from spark_prof.swaps.templates import experts, matrix, norm, router
from tests.rows import each_row

BLOCKS = {"BLOCK_ROWS": 32, "BLOCK_BYTES": 64}
WEIGHT = {"codes": "*u8", "scales": "*bf16", "row_scales": "*fp32"}

KERNELS: dict[str, tuple[Any, dict[str, str], dict[str, Any]]] = {
    "norm": (
        norm._norm,
        {
            "x": "*bf16", "residual": "*bf16", "weight": "*bf16", "y": "*bf16", "both": "*bf16",
            "columns": "i32", "epsilon": "fp32",
        },
        {"BLOCK": 4096, "HAS_RESIDUAL": True},
    ),
    "router": (
        router._route,
        {
            "logits": "*bf16", "correction": "*fp32", "weights": "*fp32", "chosen": "*i32",
            "experts": "i32", "scale": "fp32",
        },
        {
            "TOP_K": 4, "SLOTS": 4, "BLOCK": 32, "SIGMOID": True, "CORRECTED": True,
            "RENORMALIZE": True,
        },
    ),
    "router, softmax of all": (
        router._route,
        {
            "logits": "*fp32", "weights": "*fp32", "chosen": "*i32", "experts": "i32",
            "scale": "fp32",
        },
        {
            "correction": None, "TOP_K": 6, "SLOTS": 8, "BLOCK": 128, "SIGMOID": False,
            "CORRECTED": False, "RENORMALIZE": False,
        },
    ),
    "matrix": (
        matrix._matrix,
        {"x": "*bf16", **WEIGHT, "bias": "*bf16", "y": "*bf16", "rows": "i32"},
        {"COLUMNS": 2880, "GROUP": 32, "HAS_BIAS": True, **BLOCKS},
    ),
    "gate and up": (
        experts._gate_up,
        {
            "x": "*bf16", **WEIGHT, "bias": "*bf16", "experts": "*i64", "between": "*bf16",
            "alpha": "fp32", "limit": "fp32",
        },
        {
            "INNER": 2880, "COLUMNS": 2880, "GROUP": 32, "TOP_K": 4, "HAS_BIAS": True,
            "SWIGLU": True, **BLOCKS,
        },
    ),
    "down": (
        experts._down,
        {
            "between": "*bf16", **WEIGHT, "experts": "*i64", "weights": "*fp32", "y": "*bf16",
        },
        {
            "bias": None, "ROWS": 2048, "COLUMNS": 768, "GROUP": 16, "TOP_K": 8,
            "HAS_BIAS": False, **BLOCKS,
        },
    ),
}  # fmt: skip
"""Each with the types of its tensors and numbers, and its constants."""


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Triton interprets here")
@each_row("architecture", [90, 121])
@each_row("name", KERNELS)
def test_a_kernel_compiles(name: str, architecture: int) -> None:
    kernel, types, constants = KERNELS[name]
    signature = types | dict.fromkeys(constants, "constexpr")
    signature = {argument: signature[argument] for argument in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32))
    assert len(compiled.asm["cubin"]) > 1000
