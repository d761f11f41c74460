"""The cases of passes that quantize: right kernels pass them, wrong results do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels.check.bound import Expected
from spark_prof.kernels.check.fused_cases import Pass, fused_cases
from spark_prof.kernels.check.oracles import activation_oracle, expanded_oracle, norm_oracle
from spark_prof.kernels.check.verdict import judge_quantized
from spark_prof.kernels.formats import GlobalScale, MxFp8, NvFp4, quantize_mxfp8, quantize_nvfp4
from tests.rows import each_row

PASSES: tuple[Pass, ...] = ("norm", "norm with residual", "activation", "expand")
EPSILON = 1e-6


def bf16(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def test_each_pass_has_cases_of_both_formats() -> None:
    for does in PASSES:
        labels = [label for label, _ in fused_cases((does,), "cpu")]
        assert len(set(labels)) == len(labels)
        for kind in ("nvfp4", "mxfp8"):
            assert any(label.startswith(f"{does} to {kind}") for label in labels)


def nvfp4(values: torch.Tensor) -> NvFp4:
    return quantize_nvfp4(values, GlobalScale(torch.tensor(300.0), "divides"), "reciprocal")


def changed(rows: NvFp4 | MxFp8, change: Callable[[torch.Tensor], torch.Tensor]) -> NvFp4 | MxFp8:
    """The same rows with other scales."""
    scales = change(rows.scales.view(torch.uint8)).view(rows.scales.dtype)
    if isinstance(rows, NvFp4):
        return NvFp4(rows.packed, scales, rows.global_scale)
    return MxFp8(rows.values, scales)


MUTATIONS: dict[str, Callable[[NvFp4 | MxFp8], NvFp4 | MxFp8]] = {
    "a scale one step larger": lambda rows: changed(rows, lambda s: s + (s == s.max()).byte()),
    "scales one column on": lambda rows: changed(rows, lambda s: s.roll(1, -1)),
    "scales one row on": lambda rows: changed(rows, lambda s: s.roll(1, 0)),
    "nibbles or bytes swapped": lambda rows: (
        NvFp4(rows.packed << 4 | rows.packed >> 4, rows.scales, rows.global_scale)
        if isinstance(rows, NvFp4)
        else MxFp8(
            rows.values.view(torch.uint8)
            .unflatten(-1, (-1, 2))
            .flip(-1)
            .flatten(-2)
            .view(torch.float8_e4m3fn),
            rows.scales,
        )
    ),
    "rows swapped": lambda rows: (
        NvFp4(rows.packed.flip(0), rows.scales, rows.global_scale)
        if isinstance(rows, NvFp4)
        else MxFp8(rows.values.view(torch.uint8).flip(0).view(torch.float8_e4m3fn), rows.scales)
    ),
}


@each_row("kind", ["nvfp4", "mxfp8"])
@each_row("mutation", MUTATIONS)
def test_wrong_bytes_are_told(kind: str, mutation: str) -> None:
    expected = norm_oracle(bf16(4, 512), bf16(512, seed=2) + 3, EPSILON, None)
    rows = (
        nvfp4(expected.value.float()) if kind == "nvfp4" else quantize_mxfp8(expected.value.float())
    )
    scale = rows.global_scale if isinstance(rows, NvFp4) else None
    assert judge_quantized(rows, expected, scale).detail == ""
    wrong = judge_quantized(MUTATIONS[mutation](rows), expected, scale)
    assert "blocks wrong, first row" in wrong.detail


def _norm(**changes: object) -> Expected:
    given = {
        "x": bf16(4, 512), "weight": bf16(512, seed=2) + 3, "epsilon": EPSILON,
        "residual": bf16(4, 512, seed=3),
    } | changes  # fmt: skip
    return norm_oracle(**given)  # type: ignore[arg-type]


WRONG: dict[str, tuple[Expected, Expected]] = {
    "no residual": (_norm(), _norm(residual=None)),
    "no weight": (_norm(), _norm(weight=torch.ones(512).bfloat16())),
    "another epsilon": (_norm(x=bf16(4, 512) / 512, residual=None), _norm(
        x=bf16(4, 512) / 512, residual=None, epsilon=1e-5)),
    "gate and up swapped": (
        activation_oracle(bf16(4, 1024)),
        activation_oracle(bf16(4, 1024).roll(512, -1)),
    ),
    "another token": (
        expanded_oracle(bf16(4, 512), torch.tensor([0, 1, 2])),
        expanded_oracle(bf16(4, 512), torch.tensor([0, 2, 2])),
    ),
}  # fmt: skip


@each_row("wrong", WRONG)
def test_wrong_values_are_told(wrong: str) -> None:
    expected, other = WRONG[wrong]
    assert judge_quantized(quantize_mxfp8(other.value.float()), expected, None).detail
    rows = nvfp4(other.value.float())
    assert judge_quantized(rows, expected, rows.global_scale).detail


def test_the_oracles_are_plain_torch() -> None:
    x, weight, residual = bf16(3, 256), bf16(256, seed=2), bf16(3, 256, seed=3)
    added = (x + residual).double()
    plain = torch.nn.functional.rms_norm(added, (256,), weight.double(), EPSILON)
    found = norm_oracle(x, weight, EPSILON, residual)
    assert torch.allclose(found.value, plain, rtol=2**-8, atol=0)
    gate, up = bf16(3, 512).chunk(2, -1)
    silu = torch.nn.functional.silu(gate.double()) * up.double()
    assert torch.allclose(activation_oracle(bf16(3, 512)).value, silu, rtol=2**-7, atol=1e-30)
    rows = expanded_oracle(x, torch.tensor([2, -1, 0, 3]))
    assert torch.equal(
        rows.value, torch.stack([x[2], 0 * x[0].abs(), x[0], 0 * x[0].abs()]).double()
    )
    assert not rows.error.any()


def test_bits_that_nothing_decides_are_not_called_right() -> None:
    value = bf16(2, 64).double()
    doubtful = Expected(value, value.abs() * 2**-3)
    assert "certain bits" in judge_quantized(quantize_mxfp8(value.float()), doubtful, None).detail
