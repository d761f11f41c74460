"""A norm and the matrix behind it: configurations, and what does not fit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels.candidate import (
    Format,
    Layer,
    LinearLayer,
    NormedLinearLayer,
    NormLayer,
    Replacement,
)
from spark_prof.kernels.check.inputs import make_activations, make_weight
from spark_prof.kernels.check.normed_cases import NormedCase
from spark_prof.kernels.check.verdict import same_bits
from spark_prof.kernels.dense import LinearConfig, linear
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.normed_linear import build, normed_config, normed_linear
from spark_prof.kernels.pack import pack_linear
from tests.emulator.compiler import compiler
from tests.kernels.check.plain import kept, said
from tests.rows import each_row

CONFIGURED: list[tuple[LinearConfig, Format, int]] = [
    (LinearConfig(warps=1, split=1, depth=1, x_ahead=0, min_blocks=1), "nvfp4", 1),
    (LinearConfig(warps=9, split=3, depth=2, x_ahead=0, min_blocks=1, blocks=1), "mxfp4", 3),
    (LinearConfig(warps=8, split=4, depth=1, x_ahead=1, min_blocks=1, blocks=1), "fp8", 7),
    (LinearConfig(warps=2, split=2, depth=3, x_ahead=0, min_blocks=1), "bf16", 2),
]
"""Warps that no row needs, blocks of many rounds, a warp to a row, several vectors a thread."""


@pytest.mark.slow
@each_row(("config", "kind", "tokens"), CONFIGURED)
def test_a_configuration(config: LinearConfig, kind: Format, tokens: int, device: str) -> None:
    def configured(layer: Layer) -> Replacement:
        assert isinstance(layer, NormedLinearLayer)
        packed = pack_linear(layer.linear.weight)
        norm = replace(layer.norm, weight=layer.norm.weight.float())
        return kept(
            lambda x, residual, bias: normed_linear(x, residual, norm, packed, bias, config)
        )

    assert said(NormedCase(kind, (144, 448), tokens, bias=True), configured, device) == ""


@each_row(
    ("columns", "tokens", "fits"),
    [(2880, 1, True), (2880, 4, True), (2880, 5, False), (2048, 8, True), (4096, 4, True),
     (4096, 5, False), (16384, 1, True), (32768, 1, False), (448, 9, False)],
)  # fmt: skip
def test_rows_fit_into_shared_memory_or_not(columns: int, tokens: int, fits: bool) -> None:
    assert (normed_config(64, columns, tokens, "mxfp4") is not None) is fits


def test_rows_are_not_as_wide_as_no_block_has_threads_for() -> None:
    weight = make_weight("mxfp4", "plain", (64, 8224), 1, "cpu")
    norm = NormLayer("norm", torch.ones(8224), 1e-5)
    replacement = build(NormedLinearLayer("layer", norm, LinearLayer("qkv_proj", "qkv", weight)))
    with pytest.raises(KernelError, match="up to 8192 features, not 8224"):
        replacement.run(torch.zeros(1, 8224, dtype=torch.bfloat16), None, None)


@each_row(("warps", "split"), [(1, 1), (2, 1), (32, 32)])
def test_a_configuration_without_room_is_refused(warps: int, split: int) -> None:
    weight = pack_linear(make_weight("mxfp4", "plain", (64, 4096), 1, "cpu"))
    x, norm = make_activations("plain", 4, 4096, 2, "cpu"), NormLayer("", torch.ones(4096), 1e-5)
    with pytest.raises(KernelError, match="shared memory"):
        normed_linear(x, None, norm, weight, config=LinearConfig(warps, split, 1, 0, 1))


@each_row("weight", [torch.ones(64).bfloat16(), torch.ones(63), torch.ones(1, 64)])
def test_another_weight_of_the_norm_is_refused(weight: torch.Tensor) -> None:
    packed = pack_linear(make_weight("mxfp4", "plain", (64, 64), 1, "cpu"))
    x = make_activations("plain", 1, 64, 2, "cpu")
    with pytest.raises(KernelError, match="the norm's weight is"):
        normed_linear(x, None, NormLayer("", weight, 1e-5), packed)


def test_dependent_launches_read_what_those_before_write(device: str) -> None:
    weight = pack_linear(make_weight("mxfp4", "plain", (448, 448), 1, device))
    norm = NormLayer("", torch.ones(448, device=device), 1e-5)
    x = make_activations("plain", 3, 448, 2, device)
    residual = make_activations("plain", 3, 448, 5, device)

    def both(dependent: bool) -> list[torch.Tensor]:
        y, stream = normed_linear(x, residual, norm, weight, dependent=dependent)
        z = linear(y, weight, dependent=dependent)
        return [
            z,
            *normed_linear(z, stream, norm, weight, dependent=dependent),
        ]

    plain = both(False)
    if device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = both(True)
        for _ in range(20):
            graph.replay()
        torch.cuda.synchronize()
    else:
        got = both(True)
    assert all(same_bits(*pair) for pair in zip(plain, got, strict=True))


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@each_row("normed", [False, True])
def test_a_dependent_launch_does_not_wait_for_its_weights(normed: bool) -> None:
    """What reads weights early must not follow on who writes them."""
    made = torch.zeros(16, 64, dtype=torch.bfloat16)
    packed = pack_linear(make_weight("mxfp4", "plain", (64, 64), 1, "cpu"))
    x = make_activations("plain", 16, 64, 2, "cpu")
    norm = NormLayer("", torch.ones(64), 1e-5)
    weight = pack_linear(made)
    linear(x, packed, out=made)
    run = partial(normed_linear, x[:2], None, norm) if normed else partial(linear, x)
    with pytest.raises(KernelError, match="used too early"):
        run(weight, dependent=True)
