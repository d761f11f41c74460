"""The shape of a model, from configurations as Hugging Face writes them."""

from __future__ import annotations

import pytest

from spark_prof.analyzers.roofline.shape import Shape, shape_of

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


def test_ranks_share_heads_and_each_has_at_least_one() -> None:
    def of(ranks: object) -> Shape:
        return shape_of({"model_config": GPT_OSS, "parallel": {"tensor": ranks}})

    assert (of(2).heads, of(2).kv_heads) == (32, 4)
    assert (of(16).heads, of(16).kv_heads) == (4, 1)
    assert of(0) == of(None) == of("2") == of(-3) == of(1)


def test_a_latent_cache_has_no_heads() -> None:
    config = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 128,
              "hidden_size": 7168}  # fmt: skip
    assert shape_of({"model_config": config}).kv_elements == 576


@pytest.mark.parametrize(
    ("cache", "dtype", "size"),
    [("auto", "bfloat16", 2), ("auto", "float32", 4), ("fp8_e4m3", "bfloat16", 1), ("fp8", "", 1),
     ("bfloat16", "float32", 2)],
)  # fmt: skip
def test_the_type_of_the_cache(cache: str, dtype: str, size: int) -> None:
    engine = {"cache_config": {"cache_dtype": cache}}
    assert shape_of({"engine_config": engine, "dtype": dtype}).kv_bytes == size


def test_a_recurrent_state_is_kept_in_bytes() -> None:
    config = {
        "hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16,
        "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
        "linear_num_value_heads": 32, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32", "dtype": "bfloat16",
    }  # fmt: skip
    state = 32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128)
    assert shape_of({"model_config": config}).state_bytes == 4 * state


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


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"model_config": None},
        {"model_config": []},
        {"model_config": {"hidden_size": "wide"}, "parallel": 3},
    ],
)
def test_a_configuration_that_says_nothing_gives_zeros(facts: dict[str, object]) -> None:
    shape = shape_of(facts)
    assert (shape.hidden, shape.heads, shape.kv_elements, shape.experts) == (0, 0, 0, 0)
