"""The bytes of published checkpoints, by hand, and shapes as transformers builds them.

The figures are calculated by hand from the models' shapes: weights only, one token a step.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from spark_prof.analyzers.ceilings.ceiling_rows import CheckpointCeilings, Question
from spark_prof.analyzers.ceilings.checkpoint_ceilings import ceilings_of, step_of
from spark_prof.analyzers.ceilings.checkpoint_weights import weights_of
from spark_prof.analyzers.ceilings.config import Config, architecture_of
from spark_prof.traces.checkpoint import Checkpoint, Tensor, read_checkpoint
from tests.checkpoints import FORMATS, MODELS, Linear, as_tensors, config_of, tensors_of
from tests.rows import each_row

NVFP4, COMPRESSED, FP8, FP8_BLOCKS, AWQ = (
    FORMATS[name][1]
    for name in ("NVFP4 by ModelOpt", "NVFP4 by compressed-tensors", "FP8 by ModelOpt",
                 "FP8 in blocks", "AWQ")
)  # fmt: skip


def every(linear: Linear, but: tuple[str, ...] = ()) -> Callable[[str], Linear | None]:
    """That format for every matrix of a layer but the router's and those named."""
    kept = ("lm_head", "embed", "router", "visual", *but)
    return lambda name: (
        None if name.endswith(("gate", "_ba")) or any(k in name for k in kept) else linear
    )


def only(linear: Linear, named: tuple[str, ...]) -> Callable[[str], Linear | None]:
    """That format for the matrices whose names contain one of these."""
    return lambda name: linear if any(part in name for part in named) else None


def mixed(name: str) -> Linear | None:
    """Nemotron's experts in NVFP4 and its mixers in FP8."""
    if "experts" in name:
        return NVFP4
    return FP8 if name.endswith(("in_proj", "out_proj")) else None


QKV = ("q_proj", "k_proj", "v_proj", "in_proj_qkvz")
CHECKPOINTS: dict[str, Callable[[str], Linear | None]] = {
    "gpt-oss-120b": lambda name: None,
    "gpt-oss-20b": lambda name: None,
    "qwen3-next-80b-a3b": lambda name: None,
    "qwen3-next-80b-a3b-fp8": every(FP8_BLOCKS),
    "qwen3-next-80b-a3b-nvfp4-experts": only(NVFP4, ("expert",)),
    "qwen3-next-80b-a3b-nvfp4": every(NVFP4, QKV),
    "qwen3-30b-a3b-nvfp4": every(NVFP4),
    "qwen3-vl-235b-a22b-nvfp4": every(COMPRESSED),
    "qwen3-vl-235b-a22b-awq": every(AWQ),
    "llama-3.1-8b-nvfp4": every(NVFP4),
    "qwen3-8b-nvfp4": every(NVFP4),
    "nemotron-3-nano-30b-a3b-mixed": mixed,
}
"""Which format each matrix is stored in; the configuration of the same name says the same."""

AS_IT_IS = "as-shipped"
GIGABYTES = {
    ("gpt-oss-120b", AS_IT_IS): 5.002,
    ("gpt-oss-120b", "attention-head-fp8"): 3.468,
    ("gpt-oss-120b", "attention-head-mxfp4"): 2.748,
    ("gpt-oss-20b", AS_IT_IS): 3.708,
    ("gpt-oss-20b", "dense-mxfp4"): 1.922,
    ("qwen3-next-80b-a3b", AS_IT_IS): 7.125,
    ("qwen3-next-80b-a3b", "but-head-nvfp4"): 2.524,
    ("qwen3-next-80b-a3b", "all-nvfp4"): 2.076,
    ("qwen3-next-80b-a3b-fp8", AS_IT_IS): 3.924,
    ("qwen3-next-80b-a3b-nvfp4-experts", AS_IT_IS): 4.737,
    ("qwen3-next-80b-a3b-nvfp4", AS_IT_IS): 4.16,
    ("qwen3-30b-a3b-nvfp4", AS_IT_IS): 2.176,
    ("qwen3-30b-a3b-nvfp4", "all-nvfp4"): 1.729,
    ("qwen3-vl-235b-a22b-nvfp4", AS_IT_IS): 13.10,
    ("llama-3.1-8b-nvfp4", AS_IT_IS): 4.977,
    ("llama-3.1-8b-nvfp4", "all-nvfp4"): 4.221,
    ("qwen3-8b-nvfp4", AS_IT_IS): 5.152,
    ("nemotron-3-nano-30b-a3b-mixed", AS_IT_IS): 2.92,
}


@cache
def from_config(name: str) -> CheckpointCeilings:
    return ceilings_of(read_checkpoint(MODELS / name))


@cache
def from_tensors(name: str) -> CheckpointCeilings:
    config = config_of(name)
    tensors = tensors_of(config, CHECKPOINTS[name])
    return ceilings_of(Checkpoint(name, config, {}, as_tensors(tensors)))


def choice(found: CheckpointCeilings, name: str):
    return next(choice for choice in found.choices if choice.id == name)


@each_row(("key", "gigabytes"), GIGABYTES.items())
def test_bytes_of_a_token_from_the_configuration(key: tuple[str, str], gigabytes: float) -> None:
    found = from_config(key[0])
    assert not found.model.seen
    assert choice(found, key[1]).step.read / 1e9 == pytest.approx(gigabytes, rel=0.01)


@pytest.mark.slow
@each_row("name", ["gpt-oss-20b", "nemotron-3-nano-30b-a3b-mixed", "qwen3-next-80b-a3b-fp8",
                   "qwen3-30b-a3b-nvfp4", "qwen3-vl-235b-a22b-awq"])  # fmt: skip
def test_configuration_and_tensors_agree(name: str) -> None:
    derived, seen = from_config(name), from_tensors(name)
    assert (seen.model.seen, seen.model.lost, seen.model.unplaced) == (True, (), ())
    assert [c.id for c in derived.choices] == [c.id for c in seen.choices]
    for one, other in zip(derived.choices, seen.choices, strict=True):
        assert one.step.read == pytest.approx(other.step.read, rel=0.005)


def test_what_drafts_tokens_or_sees_images_is_left_out() -> None:
    drafters = from_tensors("qwen3-next-80b-a3b").left_out
    assert {weights.role for weights in drafters} == {"drafter"}
    encoders = from_tensors("qwen3-vl-235b-a22b-nvfp4").left_out
    assert {weights.role for weights in encoders} == {"encoder"}


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {}, "qwen3": {}, "gpt_oss": {}, "mixtral": {}, "qwen3_moe": {}, "qwen3_next": {},
    "qwen3_5_moe_text": {}, "deepseek_v3": {}, "deepseek_v32": {}, "glm4_moe": {},
    "gemma3_text": {}, "granitemoehybrid": {}, "bamba": {"attn_layer_indices": [9, 18, 27]},
    "nemotron_h": {}, "falcon_h1": {}, "llama4_text": {}, "ernie4_5_moe": {}, "gpt_neox": {},
}  # fmt: skip


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
