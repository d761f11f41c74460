"""Bit for bit what vLLM's references make of the same numbers; each difference has its test."""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from spark_prof.kernels.formats import (
    GlobalScale,
    MxFp4,
    NvFp4,
    e8m0_decode,
    quantize_mxfp4,
)

from .values import every_bfloat16, every_byte, same_bits, wild_blocks


def test_gpt_oss_blocks_are_decoded_as_in_transformers() -> None:
    """All bytes with all scales. They read the scale 255 as infinity."""
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4", reason="no transformers")
    blocks = every_byte().reshape(1, 1, 16, 16).expand(1, 256, 16, 16).contiguous()
    scales = every_byte().reshape(1, 256, 1).expand(1, 256, 16).contiguous()
    theirs = mxfp4.convert_moe_packed_tensors(blocks, scales)
    found = MxFp4(blocks.flatten(-2), scales).decode(torch.bfloat16)
    assert found.shape == (1, 256, 512)
    theirs = theirs.transpose(1, 2)
    assert same_bits(found[:, :255], theirs[:, :255])
    assert found[:, 255].isnan().all()
    assert theirs[:, 255].isinf().any()


def test_scales_are_decoded_as_pytorch_s_float8_e8m0fnu() -> None:
    assert same_bits(
        e8m0_decode(every_byte(), torch.float32),
        every_byte().view(torch.float8_e8m0fnu).to(torch.float32),
    )


PROGRAM = Path(__file__).with_name("vllm_mxfp4.py")
MIXED = wild_blocks(64, 256)


def need_vllm() -> None:
    """Older references differ: in signs of zero, in where they are."""
    pytest.importorskip("vllm", minversion="0.32", reason="vLLM 0.32 or newer is not installed")


def utils(name: str) -> Any:
    need_vllm()
    return importlib.import_module(f"vllm.model_executor.layers.quantization.utils.{name}")


def dequantized(packed: torch.Tensor, scales: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """What vLLM's emulation decodes, on a GPU where there is one: there it is a Triton kernel."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    decode = utils("nvfp4_emulation_utils").dequantize_to_dtype
    operands = (operand.to(device) for operand in (packed, scales, scale))
    decoded: torch.Tensor = decode(*operands, torch.float32, swizzle=False)
    return decoded.cpu()


def test_nvfp4_is_decoded_as_vllm_emulates_it() -> None:
    """All bytes with all finite scales; the global scale is a power of two, exact in float32."""
    packed = every_byte().repeat(127, 1)
    scales = torch.arange(127).to(torch.uint8).unsqueeze(1).expand(127, 32).contiguous()
    scale = GlobalScale(torch.tensor(2.0**-7), "multiplies")
    weight = NvFp4(packed, scales.view(torch.float8_e4m3fn), scale)
    linear = dequantized(packed, weight.scales, scale.value)
    assert same_bits(weight.decode(torch.float32), linear)


@pytest.mark.slow
def test_mxfp4_is_vllm_s_triton_kernel(tmp_path: Path) -> None:
    """Maxima of all sizes, infinity, -0; no subnormal numbers, which the interpreter loses."""
    need_vllm()
    pytest.importorskip("triton", reason="Triton is not installed")
    # 29 has no factor in common with the 128 mantissas.
    largest = every_bfloat16()[every_bfloat16() > 0][::29]
    random = torch.Generator().manual_seed(3)
    parts = torch.rand(len(largest), 32, generator=random) * 2 - 1
    parts[:, 0] = 1
    values = torch.where(parts.abs() < 0.1, parts * 0, parts) * largest.clamp(max=3.3e38)[:, None]
    values[-1, 0] = math.inf
    values = torch.where(values.abs() < 2.0**-126, values * 0, values).to(torch.bfloat16)
    torch.save(values, tmp_path / "values.pt")
    subprocess.run(
        [sys.executable, PROGRAM, tmp_path / "values.pt", tmp_path / "found.pt"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=True,
        capture_output=True,
    )
    packed, scales = torch.load(tmp_path / "found.pt", weights_only=True)
    weight = quantize_mxfp4(values)
    assert torch.equal(weight.scales, scales)
    assert torch.equal(weight.packed, packed)
