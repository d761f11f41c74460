"""Bytes and operations of single pieces of work, against sums done by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spark_prof.analyzers.roofline.needs import (
    Load,
    Shape,
    attention,
    elementwise,
    reading,
    shape_of,
    state,
)
from spark_prof.analyzers.roofline.weight_bytes import Weights

GPT_OSS = {
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_hidden_layers": 4,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}


def test_heads_and_windows_of_a_model() -> None:
    shape = shape_of({"model_config": GPT_OSS, "dtype": "bfloat16"})
    assert (shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == (2880, 64, 8, 64)
    assert shape.kv_elements == 2 * 8 * 64
    assert [shape.window(layer) for layer in (-1, 0, 1, 2, 3, 4)] == [0, 128, 0, 128, 0, 0]


@pytest.mark.parametrize(
    ("cache", "dtype", "size"),
    [("auto", "bfloat16", 2), ("auto", "float32", 4), ("fp8_e4m3", "bfloat16", 1), ("fp8", "", 1),
     ("bfloat16", "float32", 2)],
)  # fmt: skip
def test_the_type_of_the_cache(cache: str, dtype: str, size: int) -> None:
    engine = {"cache_config": {"cache_dtype": cache}}
    assert shape_of({"engine_config": engine, "dtype": dtype}).kv_bytes == size


@pytest.mark.parametrize(
    ("parallel", "here", "surely"),
    [
        ({"tensor": 4}, 128, 4), ({"tensor": 4, "whole": True}, 32, 0),
        ({"tensor": 1, "data": 2, "whole": True}, 64, 0), ({"whole": True}, 128, 4),
    ],
)  # fmt: skip
def test_experts_of_a_rank_that_a_token_surely_hits(
    parallel: dict[str, int], here: int, surely: int
) -> None:
    engine = {"parallel_config": {"enable_expert_parallel": parallel.get("whole", False)}}
    facts = {"model_config": GPT_OSS, "parallel": parallel, "engine_config": engine}
    shape = shape_of(facts)
    assert (shape.experts_here, shape.surely_chosen) == (here, surely)


SHAPE = Shape(hidden=2048, heads=32, kv_heads=4, head_dim=128, experts=128, chosen=8,
              windows=(0, 128), state_bytes=1000.0)  # fmt: skip
ONE = Load(tokens=1, requests=1, sampled=1, context=500)


def weights(component: str, size: int, elements: int, *, experts: bool = False) -> Weights:
    return Weights(component, 0, "w", size, elements, experts, "bfloat16", quantized=False)


def test_a_product_reads_its_weights_once_and_its_activations_each_token() -> None:
    qkv = weights("qkv", 20_971_520, 5120 * 2048)
    for tokens in (1, 7, 64):
        need = reading(qkv, Load(tokens, tokens, tokens, 0), SHAPE).need
        assert need.streamed == 20_971_520
        assert need.other == tokens * (2048 + 5120) * 2
        assert need.operations == 2 * tokens * 5120 * 2048


def test_one_token_reads_its_experts_and_more_may_read_the_same() -> None:
    whole = 128 * 1_000_000
    all_of_them = weights("experts", whole, 128 * 768 * 2048, experts=True)
    one = reading(all_of_them, ONE, SHAPE).need
    assert one.streamed == pytest.approx(8 * 1_000_000)
    assert (one.part, one.expected) == ("8 of 128 experts", False)
    assert one.operations == 2 * 8 * 768 * 2048
    four = reading(all_of_them, Load(4, 4, 4, 0), SHAPE).need
    assert four.streamed == one.streamed
    assert (four.part, four.expected) == ("at least 8 of 128 experts", True)
    assert four.operations == 4 * one.operations
    # Dealt out to ranks, a token may be sent to experts of others only.
    local = replace(SHAPE, expert_ranks=4)
    quarter = weights("experts", whole // 4, 32 * 768 * 2048, experts=True)
    apart = reading(quarter, ONE, local).need
    assert (apart.streamed, apart.operations, apart.expected) == (0.0, 0.0, True)
    assert apart.part == "at least 0 of 32 experts"


def test_no_routing_needs_less_than_the_bound() -> None:
    """Whatever a router chooses, its tokens hit at least as many experts of a rank as counted."""
    random = np.random.default_rng(0)
    for _ in range(300):
        ranks, tokens, each = (int(n) for n in random.integers(1, (4, 9, 9)))
        experts = ranks * each
        chosen = int(random.integers(1, experts + 1))
        shape = replace(SHAPE, experts=experts, chosen=chosen, expert_ranks=ranks)
        own = weights("experts", each, each * 2048, experts=True)
        sent = [random.choice(experts, chosen, replace=False) for _ in range(tokens)]
        hit = {expert for one in sent for expert in one.tolist() if expert < each}
        need = reading(own, Load(tokens, tokens, tokens, 0), shape).need
        assert need.streamed <= len(hit) + 1e-9
        assert need.expected or need.streamed == pytest.approx(len(hit))


def test_the_head_works_for_sampled_tokens_only() -> None:
    load = Load(tokens=512, requests=1, sampled=1, context=0)
    prompt = reading(weights("lm_head", 1000, 1000 * 2048), load, SHAPE).need
    assert prompt.operations == 2 * 1000 * 2048
    assert prompt.other == 2048 * 2 + 1000 * 4


def test_attention_reads_the_cache_of_each_request() -> None:
    need = attention(0, Load(3, 3, 3, 500), SHAPE)[0].need
    assert need.streamed == 3 * 501 * (2 * 4 * 128) * 2
    assert need.operations == pytest.approx(2 * 3 * 501 * 32 * 2 * 128)
    assert attention(0, ONE, SHAPE)[1].need.other == 2 * 4 * 128 * (2 + 2)


def test_a_window_bounds_what_is_read() -> None:
    near, far = (attention(1, Load(1, 1, 1, n), SHAPE)[0] for n in (100, 100_000))
    assert near.need.streamed == 101 * 1024 * 2
    assert far.need.streamed == 128 * 1024 * 2
    assert "128 tokens" in near.what


def test_a_prompt_s_tokens_see_themselves_and_those_before() -> None:
    need = attention(0, Load(tokens=100, requests=1, sampled=1, context=0), SHAPE)[0].need
    pairs = 100 * 101 / 2
    assert need.operations == pytest.approx(2 * pairs * 32 * 2 * 128)


def test_the_recurrent_state_of_each_request_is_read_and_written() -> None:
    need = state(0, Load(tokens=16, requests=8, sampled=16, context=10_000), SHAPE).need
    assert (need.streamed, need.other) == (8000, 8000)


def test_small_kernels_have_activations_or_nothing() -> None:
    five = Load(5, 5, 5, 0)
    norm = elementwise("norm", 0, five, SHAPE, norms=2)
    assert norm is not None
    # Read and written: the stream and the residual, for each of two norms.
    assert norm.need.other == 5 * 2 * 2 * 2 * 2048 * 2
    assert elementwise("sampler", -1, five, SHAPE) is None
    assert elementwise("norm", 0, five, Shape()) is None
