"""Which calls of a model are marked, shown on small models made of real torch modules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_prof.rules.components import role_of

torch = pytest.importorskip("torch")

from spark_prof.profiler.targets import (  # noqa: E402
    MarkedModule,
    all_targets,
    choose_targets,
)

nn = torch.nn


class Leaf(nn.Module):
    """A module that does nothing; the classes below exist for their names."""

    def forward(self, value: Any) -> Any:
        return value


def named(name: str) -> Any:
    """A module of a class of that name."""
    return type(name, (Leaf,), {})()


class MambaMixer2(Leaf):
    """What its opaque op calls, compiled or not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1d = Leaf()

    def conv_ssm_forward(self, value: Any) -> Any:
        return value


class FlashAttentionImpl:
    """No module, as in vLLM."""

    def forward(self, value: Any) -> Any:
        return value

    def do_kv_cache_update(self, value: Any) -> Any:
        return value


class Attention(Leaf):
    def __init__(self) -> None:
        super().__init__()
        self.impl = FlashAttentionImpl()


class SelfAttention(Leaf):
    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.qkv_proj = named("QKVParallelLinear")
        self.rotary_emb = rotary
        self.attn = Attention()


class FusedTopKRouter:
    def select_experts(self, value: Any) -> Any:
        return value


class RoutedExperts(Leaf):
    def forward_modular(self, value: Any) -> Any:
        return value

    def forward_monolithic(self, value: Any) -> Any:
        return value


class MoERunner(Leaf):
    def __init__(self, gate: nn.Module | None) -> None:
        super().__init__()
        self.gate = gate
        self.router = FusedTopKRouter()
        self.routed_experts = RoutedExperts()

    def _forward_impl(self, value: Any) -> Any:
        return value


class SparseMoeBlock(Leaf):
    """`gate_in_runner` says who calls the gate: the runner inside its opaque op, or this block."""

    def __init__(self, gate_in_runner: bool) -> None:
        super().__init__()
        self.gate = named("GateLinear")
        self.experts = MoERunner(self.gate if gate_in_runner else None)


class DecoderLayer(Leaf):
    def __init__(self, rotary: nn.Module, gate_in_runner: bool) -> None:
        super().__init__()
        self.input_layernorm = named("RMSNorm")
        self.self_attn = SelfAttention(rotary)
        self.dropout = named("Dropout")
        self.mlp = SparseMoeBlock(gate_in_runner)


class Decoder(Leaf):
    def __init__(self, gate_in_runner: bool = True) -> None:
        super().__init__()
        rotary = named("RotaryEmbedding")
        self.embed_tokens = nn.Embedding(4, 4)
        self.layers = nn.ModuleList(DecoderLayer(rotary, gate_in_runner) for _ in range(2))
        self.norm = named("RMSNorm")


class TorchCompileWithNoGuardsWrapper:
    """Named as vLLM's base class of a compiled module, and known by that name only."""

    do_not_compile = False


class CompiledDecoder(Decoder, TorchCompileWithNoGuardsWrapper): ...


class NotCompiledDecoder(CompiledDecoder):
    do_not_compile = True


class ForCausalLM(Leaf):
    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.model = decoder
        self.lm_head = nn.Linear(4, 4)
        self.logits_processor = Leaf()


class CompiledForCausalLM(ForCausalLM, TorchCompileWithNoGuardsWrapper): ...


LAYER = "model.layers.1."
OPAQUE = {
    "self_attn.attn.impl.forward": "attention",
    "self_attn.attn.impl.do_kv_cache_update": "kv_write",
    "mlp.experts._forward_impl": "experts",
    "mlp.experts.router.select_experts": "router",
    "mlp.experts.routed_experts": "experts",
    "mlp.experts.routed_experts.forward_modular": "experts",
    "mlp.experts.routed_experts.forward_monolithic": "experts",
}
TRACEABLE = {
    "self_attn": "attention",
    "self_attn.qkv_proj": "qkv",
    "self_attn.attn": "attention",
    "input_layernorm": "norm",
    "mlp": "experts",
    "mlp.experts": "experts",
}
OUTSIDE = {"model", "lm_head", "logits_processor"}


def by_path(marked: list[MarkedModule]) -> dict[str, MarkedModule]:
    found = {m.path: m for m in marked}
    assert len(found) == len(marked), "a path was chosen twice"
    return found


def in_layer(found: dict[str, MarkedModule]) -> dict[str, str]:
    """The components of what was chosen in the second layer."""
    return {
        path.removeprefix(LAYER): m.component for path, m in found.items() if path.startswith(LAYER)
    }


def test_every_module_with_a_component_of_an_eager_model() -> None:
    found = by_path(choose_targets(ForCausalLM(Decoder())))
    # Without the dropout, and without second paths such as mlp.experts.gate.
    assert in_layer(found) == OPAQUE | TRACEABLE | {"mlp.gate": "router"}
    assert {"model.embed_tokens", "model.norm", "model.layers.0", "model.layers.1"} < set(found)
    assert found.keys() >= OUTSIDE
    assert not any(m.may_be_traced for m in found.values())
    # One that could be compiled and is not is eager.
    assert by_path(choose_targets(ForCausalLM(NotCompiledDecoder()))).keys() == found.keys()


def test_each_row_names_its_callable() -> None:
    model = ForCausalLM(Decoder())
    found = by_path(choose_targets(model))
    for path, m in found.items():
        assert m.path == path
        assert callable(getattr(m.owner, m.attribute))
        assert m.type == type(m.owner).__name__
    runner = model.get_submodule(LAYER + "mlp.experts")
    entry = found[LAYER + "mlp.experts._forward_impl"]
    assert (entry.owner, entry.attribute) == (runner, "_forward_impl")
    write = found[LAYER + "self_attn.attn.impl.do_kv_cache_update"]
    assert write.owner is model.get_submodule(LAYER + "self_attn.attn").impl


def test_a_module_that_the_layers_share_is_marked_once_and_has_no_layer() -> None:
    found = by_path(choose_targets(ForCausalLM(Decoder())))
    rope = [m for m in found.values() if m.component == "rope"]
    assert [(m.path, m.layer) for m in rope] == [("model.layers.0.self_attn.rotary_emb", -1)]


def test_the_body_of_a_mixers_opaque_op_counts_to_the_mixer() -> None:
    model = CompiledForCausalLM(Decoder())
    model.layers = nn.ModuleList([nn.ModuleDict({"mixer": MambaMixer2()})])
    body = by_path(choose_targets(model))["layers.0.mixer.conv_ssm_forward"]
    assert (body.component, body.layer, body.type) == ("ssm", 0, "MambaMixer2")
    assert role_of(body.path) == "mixer"


def test_a_drafter_is_marked_beside_the_model() -> None:
    model, drafter = ForCausalLM(Decoder()), ForCausalLM(Decoder())
    drafter.lm_head = model.lm_head
    runner = SimpleNamespace(
        model=model, sampler=named("Sampler"), drafter=SimpleNamespace(model=drafter)
    )
    found = by_path(all_targets(runner))
    own = [row for path, row in found.items() if path.startswith("drafter")]
    assert {row.layer for row in own} == {-1}
    assert found["drafter"].owner is drafter
    projection = found[f"drafter.{LAYER}self_attn.qkv_proj"]
    assert (projection.component, projection.path) == ("qkv", projection.path)
    assert not [row for row in own if row.owner is model.lm_head]
    assert len(found) == len(choose_targets(model, named("Sampler"))) + len(own)


def test_only_the_outside_and_the_opaque_ops_of_a_compiled_model() -> None:
    found = by_path(choose_targets(ForCausalLM(CompiledDecoder())))
    assert in_layer(found) == OPAQUE | {"mlp.gate": "router"}
    assert {path for path in found if ".layers." not in path} == OUTSIDE
    # Modules that opaque ops call may be traced, bodies may not.
    traced = {path.removeprefix(LAYER) for path, m in found.items() if m.may_be_traced}
    assert {path for path in traced if not path.startswith("model.")} == {
        "mlp.experts.routed_experts",
        "mlp.gate",
    }


def test_a_gate_that_the_compiled_code_calls_itself_is_left_out() -> None:
    found = by_path(choose_targets(ForCausalLM(CompiledDecoder(gate_in_runner=False))))
    assert in_layer(found) == OPAQUE


def test_a_model_that_is_compiled_as_a_whole() -> None:
    found = by_path(choose_targets(CompiledForCausalLM(Decoder()), named("Sampler")))
    assert in_layer(found) == OPAQUE | {"mlp.gate": "router"}
    assert {path for path in found if ".layers." not in path} == {"sampler"}


def test_shared_experts_in_the_runner_of_a_compiled_model() -> None:
    model = ForCausalLM(CompiledDecoder())
    model.model.layers[1].mlp.experts._shared_experts = named("SharedMLP")
    found = by_path(choose_targets(model))
    assert found[LAYER + "mlp.experts._shared_experts"].component == "shared_experts"
