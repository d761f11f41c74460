"""The words that anybody may see: vLLM's, CUDA's and this package's, and nobody's own."""

from __future__ import annotations

from spark_prof.rules.known_words import is_option, is_public_model, unknown_parts
from tests.rows import each_row


@each_row(
    ("name", "unknown"),
    [
        ("fused_moe_kernel", ()),
        ("model.layers.11.mlp.experts.w13_weight_scale", ()),
        ("Qwen3MoeForCausalLM", ()),
        ("FlashAttnFwdSm90", ()),
        ("t128x8x512u2", ()),
        ("acme_router_logits", ("acme",)),
        ("alice", ("alice",)),
        ("Zq7pW2kLm9Rt4Xy8", ("Zq7pW2kLm9Rt4Xy8",)),
        ("9369534310263559", ("9369534310263559",)),
    ],
)
def test_words_of_a_name_that_nothing_known_has(name: str, unknown: tuple[str, ...]) -> None:
    assert unknown_parts(name) == unknown


@each_row(
    ("name", "public"),
    [
        ("openai/gpt-oss-20b", True),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", True),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8", True),
        ("nvidia/acme-secret", False),
        ("acme/Qwen3-8B", False),
        ("../openai/gpt-oss-20b", False),
        ("/openai/gpt-oss-20b", False),
        ("gpt-oss-20b", False),
        ("openai/../x", False),
        ("~/qwen", False),
    ],
)
def test_models_of_the_hub(name: str, public: bool) -> None:
    assert is_public_model(name) == public


def test_options_of_vllm() -> None:
    known = ("--max-num-seqs", "--max_num_seqs", "--no-enable-prefix-caching", "--moe-backend")
    assert [name for name in known if not is_option(name)] == []
    assert not is_option("--acme-mode")
