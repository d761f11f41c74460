"""Shapes derived from a configuration are those that transformers builds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_prof.analyzers.ceilings import Question, ceilings_of
from spark_prof.analyzers.ceilings.checkpoint_ceilings import step_of
from spark_prof.analyzers.ceilings.checkpoint_weights import weights_of
from spark_prof.analyzers.ceilings.config import Config, architecture_of
from spark_prof.traces.checkpoint import Checkpoint, Tensor
from tests.checkpoints import MODELS
from tests.rows import each_row

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "gpt_oss": {},
    "mixtral": {},
    "qwen3_moe": {},
    "qwen3_next": {},
    "qwen3_5_moe_text": {},
    "deepseek_v3": {},
    "deepseek_v32": {},
    "glm4_moe": {},
    "gemma3_text": {},
    "granitemoehybrid": {},
    "bamba": {"attn_layer_indices": [9, 18, 27]},
    "nemotron_h": {},
    "falcon_h1": {},
    "llama4_text": {},
    "ernie4_5_moe": {},
    "gpt_neox": {},
}


def built(family: str, changes: dict[str, Any]) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    """A family's default configuration and the tensors that transformers makes of it."""
    torch = pytest.importorskip("torch", reason="transformers builds its models with torch")
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    config = transformers.AutoConfig.for_model(family, **changes)
    with torch.device("meta"):
        state = transformers.AutoModelForCausalLM.from_config(config).state_dict()
    tensors = (Tensor(n, "BF16", tuple(t.shape), 2 * t.numel()) for n, t in state.items())
    return config.to_dict(), tuple(tensors)


@each_row(("family", "changes"), FAMILIES.items())
def test_derived_bytes_are_those_of_the_real_tensors(family: str, changes: dict[str, Any]) -> None:
    config, tensors = built(family, changes)
    seen, derived = (weights_of(Checkpoint("", config, {}, t)) for t in (tensors, ()))
    assert seen.unplaced == ()
    assert not any("was not checked" in line for line in derived.lost)
    for tokens in (1, 16):
        one, other = (step_of(m, Question(batch=tokens)).read for m in (seen, derived))
        assert other == pytest.approx(one, rel=0.002)


@each_row("name", sorted(path.name for path in MODELS.iterdir() if path.is_dir()))
def test_a_missing_field_costs_a_line_and_not_the_rest(name: str) -> None:
    whole = json.loads((MODELS / name / "config.json").read_text())
    for key in whole:
        config = {k: v for k, v in whole.items() if k != key}
        found = ceilings_of(Checkpoint("", config, {}, ()), gpus=())
        assert found.model.weights or any("does not say" in line for line in found.model.lost)


def test_what_is_missing_is_named() -> None:
    config = json.loads((MODELS / "gpt-oss-20b" / "config.json").read_text())
    tensor = Tensor("model.layers.0.mlp.experts.down_proj", "BF16", (32, 64, 64), 262_144)
    without = {k: v for k, v in config.items() if "experts_per_tok" not in k and "expert" not in k}
    found = weights_of(Checkpoint("", without, {}, (tensor,)))
    assert any("how many experts a token takes" in line for line in found.lost)
    nothing = weights_of(Checkpoint("", {"architectures": ["X"]}, {}, ()))
    assert nothing.weights == ()
    assert any("not say enough" in line for line in nothing.lost)


KINDS = {
    "gpt-oss-120b": [(18, "kv", 1024, 0), (18, "window", 1024, 128)],
    "qwen3-next-80b-a3b": [(12, "kv", 1024, 0), (36, "recurrent", 548_864, 0)],
    "nemotron-3-nano-30b-a3b-mixed": [(6, "kv", 512, 0), (23, "recurrent", 542_720, 0)],
    "qwen3-vl-235b-a22b-nvfp4": [(94, "kv", 1024, 0)],
}


@each_row(("name", "states"), KINDS.items())
def test_what_a_sequence_keeps(name: str, states: list[tuple[int, str, int, int]]) -> None:
    config = json.loads((MODELS / name / "config.json").read_text())
    found = architecture_of(Config(config)).states
    assert sorted((s.layers, s.kind, s.elements, s.window) for s in found) == sorted(states)


@each_row(
    ("model", "field", "kept"),
    [
        ("qwen3-8b-nvfp4", "num_attention_heads", "mlp"),
        ("qwen3-8b-nvfp4", "vocab_size", "mlp"),
        ("qwen3-8b-nvfp4", "intermediate_size", "qkv"),
        ("qwen3-30b-a3b-nvfp4", "moe_intermediate_size", "qkv"),
    ],
)
def test_a_shape_that_is_missing_is_named_and_the_rest_counts(
    model: str, field: str, kept: str
) -> None:
    config = json.loads((MODELS / model / "config.json").read_text())
    dropped = {field, "head_dim"} | ({"intermediate_size"} if field.startswith("moe_") else set())
    without = {k: v for k, v in config.items() if k not in dropped}
    found = weights_of(Checkpoint("", without, {}, ()))
    assert any(f"has no {field}" in line for line in found.lost)
    assert kept in {weights.component for weights in found.weights}
    whole = weights_of(Checkpoint("", config, {}, ()))
    assert not any("has no " in line for line in whole.lost)
