"""Embeddings that are off by a rounding."""

from __future__ import annotations

import pytest
import torch

from spark_prof.swaps.extension import disturb
from tests.rows import each_row

pytest.importorskip("vllm")


def model(dtype: torch.dtype = torch.bfloat16, *, tied: bool = False) -> torch.nn.Module:
    from vllm.model_executor.layers.vocab_parallel_embedding import (
        ParallelLMHead,
        VocabParallelEmbedding,
    )

    def table(kind: type[torch.nn.Module]) -> torch.nn.Module:
        made = kind.__new__(kind)  # its own constructor wants an engine
        torch.nn.Module.__init__(made)
        generator = torch.Generator().manual_seed(0)
        values = torch.randn(320, 256, generator=generator).to(dtype)
        made.weight = torch.nn.Parameter(values, requires_grad=False)
        return made

    whole = torch.nn.Module()
    whole.embed_tokens = table(VocabParallelEmbedding)
    whole.lm_head = whole.embed_tokens if tied else table(ParallelLMHead)
    whole.norm = torch.nn.LayerNorm(256)
    return whole


@each_row("dtype", [torch.bfloat16, torch.float16])
@each_row("tied", [False, True])
def test_it_changes_the_embeddings_and_changes_them_back(dtype: torch.dtype, tied: bool) -> None:
    whole = model(dtype, tied=tied)
    weight, head = whole.embed_tokens.weight, whole.lm_head.weight
    before, head_before = weight.clone(), head.clone()
    assert disturb(whole) == int((weight != before).sum()) > 0
    assert tied or torch.equal(head, head_before)
    disturb(whole)
    assert torch.equal(weight, before)
    assert disturb(model(torch.float32)) == 0


def test_every_token_moves_by_what_a_rounding_brings() -> None:
    whole = model()
    weight = whole.embed_tokens.weight
    before = weight.double()
    disturb(whole)
    relative = (weight.double() - before).norm(dim=1) / before.norm(dim=1)
    exact = torch.randn(320, 256, generator=torch.Generator().manual_seed(1))
    expected = float(((exact.bfloat16() - exact).norm(dim=1) / exact.norm(dim=1)).mean())
    assert float(relative.min()) > 0
    assert (weight.double() != before).any(dim=0).all(), "rows differ in where they move"
    assert float(relative.mean()) == pytest.approx(expected, rel=0.35)
