"""Attention against the models' own code in transformers, token after token into an empty cache."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels.attention import build
from spark_prof.kernels.candidate import AttentionLayer, NormLayer
from spark_prof.kernels.check.attention_cases import AttentionCase
from spark_prof.kernels.check.inputs import copies, make_activations
from tests.rows import each_row

HEADS, KV_HEADS, TOKENS, PAGE = 8, 2, 40, 16
ROUNDINGS = 2.0**-7
"""Of the L2 norm of all results: of q, k, the weights of tokens and the result."""


def decoded(layer: AttentionLayer, qkv: torch.Tensor) -> torch.Tensor:
    """What the kernel gives for each token, [tokens, H D]."""
    device, count = qkv.device, len(qkv)
    pages = -(-count // PAGE)
    shape = (2, pages, PAGE, KV_HEADS, layer.size)
    keys, values = torch.full(shape, torch.nan, dtype=torch.bfloat16, device=device)
    blocks = torch.arange(pages, dtype=torch.int32, device=device)[None]
    run = build(layer).run
    results = []
    for at in range(count):
        # A call reads what the one right before it in the stream must not have written.
        keys, values = copies([keys, values])
        position = torch.tensor([at], device=device)
        length = torch.tensor([at + 1], dtype=torch.int32, device=device)
        results.append(run(qkv[at : at + 1], position, keys, values, blocks, length, position))
    return torch.cat(results)


def as_decoded(
    theirs: torch.nn.Module, layer: AttentionLayer, qkv: torch.Tensor, whole_table: bool
) -> torch.Tensor:
    """What a model's attention gives in float64; its matrices take qkv apart."""
    theirs = theirs.double()
    given, width = qkv.double().cpu(), HEADS * layer.size
    ones = torch.eye(qkv.shape[1], dtype=torch.float64)
    sizes = (width, KV_HEADS * layer.size, KV_HEADS * layer.size)
    for name, rows in zip("qkv", ones.split(sizes), strict=True):
        theirs.get_parameter(f"{name}_proj.weight").data = rows
    theirs.get_parameter("o_proj.weight").data = ones[:, :width]
    table = layer.cos_sin[: len(qkv)].double().cpu()[None]
    cosine, sine = table.chunk(2, -1)
    turned = tuple(torch.cat([each, each], -1) if whole_table else each for each in (cosine, sine))
    at = torch.arange(len(qkv))
    apart = at[:, None] - at
    seen = (apart >= 0) & (apart < (layer.window or len(qkv)))
    mask = torch.where(seen, 0.0, -torch.inf).double()[None, None]
    with torch.no_grad():
        return theirs(given[None], turned, mask)[0][0, :, :width]  # type: ignore[no-any-return]


def assert_same(got: torch.Tensor, expected: torch.Tensor) -> None:
    off = (got.double().cpu() - expected).norm() / expected.norm()
    assert 0 < off < ROUNDINGS


def configured(kind: Any, size: int, **more: object) -> Any:
    return kind(
        hidden_size=(HEADS + 2 * KV_HEADS) * size,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=size,
        attention_bias=False,
        attn_implementation="eager",
        **more,
    )


@each_row("window", [0, 12])
def test_gpt_oss(window: int, device: str) -> None:
    models = pytest.importorskip("transformers.models.gpt_oss", reason="no transformers")
    case = AttentionCase(HEADS, KV_HEADS, 64, (1,), window, sinks=True, float_table=True)
    layer = case.layer(device)
    theirs = models.modeling_gpt_oss.GptOssAttention(configured(models.GptOssConfig, 64), 0)
    assert layer.sinks is not None
    theirs.sinks.data = layer.sinks.double().cpu()
    qkv = make_activations("plain", TOKENS, (HEADS + 2 * KV_HEADS) * 64, 5, device)
    assert_same(decoded(layer, qkv), as_decoded(theirs, layer, qkv, whole_table=False))


def test_qwen3(device: str) -> None:
    models = pytest.importorskip("transformers.models.qwen3_moe", reason="no transformers")
    case = AttentionCase(HEADS, KV_HEADS, 128, (1,), normed=True, float_table=True)
    layer = case.layer(device)
    config = configured(models.Qwen3MoeConfig, 128, rms_norm_eps=1e-6)
    theirs = models.modeling_qwen3_moe.Qwen3MoeAttention(config, 0)
    for name, norm in (("q_norm", layer.q_norm), ("k_norm", layer.k_norm)):
        assert isinstance(norm, NormLayer)
        theirs.get_parameter(f"{name}.weight").data = norm.weight.double().cpu()
    qkv = make_activations("plain", TOKENS, (HEADS + 2 * KV_HEADS) * 128, 5, device)
    assert_same(decoded(layer, qkv), as_decoded(theirs, layer, qkv, whole_table=True))
