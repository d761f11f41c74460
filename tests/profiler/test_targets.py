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


class SharedExpertsMLP(Leaf):
    def __init__(self) -> None:
        super().__init__()
        self.up_proj = named("ColumnParallelLinear")
        self.down_proj = named("RowParallelLinear")


class SharedExperts(Leaf):
    """Holds the block's shared experts, which vLLM 0.33 calls below this one's forward."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self._layer = layer


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


def test_shared_experts_that_the_runner_calls_are_marked_in_a_compiled_model() -> None:
    """As in Nemotron-H, where they run inside the opaque op, whichever of two names comes first."""
    model = CompiledForCausalLM(CompiledDecoder())
    for first in (True, False):
        block = model.model.layers[1].mlp = SparseMoeBlock(gate_in_runner=True)
        shared = SharedExpertsMLP()
        runner = block.experts
        runner._shared_experts = SharedExperts(shared)
        if first:
            del block.experts
        block.shared_experts = shared
        block.experts = runner
        found = {m.owner: m for m in choose_targets(model)}
        for name in ("", ".up_proj", ".down_proj"):
            row = found[shared.get_submodule(name.lstrip("."))]
            assert role_of(row.path) == f"mlp.shared_experts{name}"
            assert (row.component, row.layer, row.may_be_traced) == ("shared_experts", 1, True)
    outside = model.model.layers[0].mlp
    outside.shared_experts = SharedExpertsMLP()  # called by the block itself, so compiled
    assert not any(m.owner is outside.shared_experts for m in choose_targets(model))


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


def body(name: str, holder: str, *methods: str) -> Any:
    """A layer of that class whose opaque ops' bodies call these methods of it."""
    layer = type(name, (Leaf,), dict.fromkeys(methods, Leaf.forward))()
    if holder:
        setattr(layer, holder, Leaf())
    return layer


@pytest.mark.parametrize(
    ("layer", "name", "role", "component"),
    [
        # The gated delta rule with speculation (vLLM 0.28 and later), Kimi's, and lightning.
        (body("QwenGatedDeltaNetAttention", "conv1d", "_forward_core_fused_norm_packed"),
         "linear_attn", "linear_attn", "ssm"),
        (body("QwenGatedDeltaNetAttention", "conv1d", "_forward_core_decode_spec_fused_norm"),
         "linear_attn", "linear_attn", "ssm"),
        (body("KimiDeltaAttention", "q_conv1d", "_forward"), "self_attn", "self_attn", "ssm"),
        (body("BailingMoELinearAttention", "slope_rate", "_forward"),
         "self_attn", "self_attn", "ssm"),
        (body("ShortConv", "L_cache", "forward_cuda"), "short_conv", "short_conv", "ssm"),
        (body("MLAAttention", "kv_b_proj", "forward_impl"),
         "self_attn", "self_attn", "attention"),
        (body("MLAAttention", "kv_b_proj", "update_kv_cache"),
         "self_attn", "self_attn.kv_write", "kv_write"),
        (body("StaticSinkAttention", "", "populate_sink_kv"),
         "self_attn", "self_attn.kv_write", "kv_write"),
        (body("HpcRopeNorm", "qk_norm_policy", "_forward_impl"), "rope_norm", "rope_norm", "norm"),
        (body("Cohere2MoeDecoderLayer", "", "_fork_mlp"), "", "mlp", "mlp"),
        (body("Cohere2MoeDecoderLayer", "", "_join_mlp"), "", "", ""),
    ],
)  # fmt: skip
def test_the_bodies_of_opaque_ops(layer: Any, name: str, role: str, component: str) -> None:
    model = CompiledForCausalLM(Decoder())
    model.layers = nn.ModuleList([Leaf(), nn.ModuleDict({name: layer}) if name else layer])
    (found,) = [row for row in choose_targets(model) if row.owner is layer and row.attribute !=
                "forward"]  # fmt: skip
    assert (found.component, found.layer, role_of(found.path)) == (component, 1, role)
    assert not found.may_be_traced


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
    # Its forward is compiled, and what computes logits is called behind it.
    outside = {path for path in found if ".layers." not in path}
    assert outside == {"lm_head", "logits_processor", "sampler"}
    assert found["logits_processor"].may_be_traced


def test_shared_experts_in_the_runner_of_a_compiled_model() -> None:
    model = ForCausalLM(CompiledDecoder())
    model.model.layers[1].mlp.experts._shared_experts = named("SharedMLP")
    found = by_path(choose_targets(model))
    assert found[LAYER + "mlp.experts._shared_experts"].component == "shared_experts"


def encoder_decoder() -> Any:
    """Whisper's shape: one activation for all of its layers, and cross-attention."""
    activation = named("GELU")

    def block(cross: bool) -> Any:
        layer = named("WhisperDecoderLayer" if cross else "WhisperEncoderLayer")
        layer.self_attn, layer.mlp = named("WhisperAttention"), named("WhisperMLP")
        layer.mlp.activation_fn = activation
        layer.mlp.fc1 = named("ColumnParallelLinear")
        if cross:
            layer.encoder_attn = named("WhisperCrossAttention")
            layer.encoder_attn.kv_proj = named("MergedColumnParallelLinear")
            layer.encoder_attn.out_proj = named("RowParallelLinear")
        return layer

    model = named("WhisperForConditionalGeneration")
    model.model = named("WhisperModel")
    model.model.encoder, model.model.decoder = named("WhisperEncoder"), named("WhisperDecoder")
    model.model.encoder.conv1 = named("Conv1d")
    model.model.encoder.layers = nn.ModuleList([block(False), block(False)])
    model.model.decoder.layers = nn.ModuleList([block(True), block(True)])
    return model


def test_an_encoders_layers_are_none_of_the_decoders() -> None:
    found = by_path(choose_targets(encoder_decoder()))
    layers = {path: row.layer for path, row in found.items()}
    assert {layers[path] for path in layers if ".encoder." in path} == {-1}
    assert layers["model.decoder.layers.1.encoder_attn.kv_proj"] == 1
    components = {path: row.component for path, row in found.items()}
    assert components["model.decoder.layers.0.encoder_attn.kv_proj"] == "qkv"
    assert components["model.decoder.layers.0.encoder_attn.out_proj"] == "o_proj"
    assert components["model.decoder.layers.0.encoder_attn"] == "attention"
    assert components["model.encoder.conv1"] == "embedding"
    assert role_of("model.encoder.layers.1.mlp.fc1") == "encoder.mlp.fc1"
    # What they do between their modules is theirs, and the decoder's own is not in them.
    assert {role_of(path) for path in ("model.encoder", "model.encoder.layers.0")} == {"encoder"}
    assert {"model.encoder", "model.encoder.layers.0", "model.encoder.layers.1"} <= set(found)
    assert "model.decoder" not in found


def test_what_encoder_and_decoder_share_is_told_by_who_calls_it() -> None:
    """Marked, the decoder's activation would have the role of the encoder's."""
    found = by_path(choose_targets(encoder_decoder()))
    assert not [path for path in found if path.endswith("activation_fn")]
    assert "model.decoder.layers.0.mlp" in found
    assert "model.encoder.layers.0.mlp" in found


def test_what_the_layers_of_one_kind_share_keeps_its_own_mark() -> None:
    model = encoder_decoder()
    del model.model.encoder.layers
    assert "model.decoder.layers.0.mlp.activation_fn" in by_path(choose_targets(model))


def test_what_makes_the_input_of_a_drafters_layers_is_marked() -> None:
    """DeepSeek's MTP: two norms, and a plain Linear over both of their results."""
    model, drafter = ForCausalLM(Decoder()), named("DeepSeekMTP")
    predictor = named("DeepSeekMultiTokenPredictorLayer")
    predictor.enorm, predictor.hnorm = named("RMSNorm"), named("RMSNorm")
    predictor.eh_proj = nn.Linear(8, 4)
    predictor.shared_head = named("SharedHead")
    predictor.shared_head.norm = named("RMSNorm")
    predictor.shared_head.head = named("ParallelLMHead")
    drafter.model = named("DeepSeekMultiTokenPredictor")
    drafter.model.layers = nn.ModuleDict({"4": predictor})
    runner = SimpleNamespace(
        model=model, sampler=named("Sampler"), drafter=SimpleNamespace(model=drafter)
    )
    found = {role_of(row.path): row for row in all_targets(runner) if row.path[:7] == "drafter"}
    components = {role: row.component for role, row in found.items()}
    assert components["drafter.eh_proj"] == "mlp"
    assert components["drafter.enorm"] == components["drafter.hnorm"] == "norm"
    assert components["drafter.shared_head.norm"] == "norm"
    assert components["drafter.shared_head.head"] == "lm_head"
    assert all(role.startswith("drafter") for role in found)


class NgramProposer:
    """What drafts without a model."""

    def propose(self, tokens: Any) -> Any:
        return tokens


@pytest.mark.parametrize("attribute", ["drafter", "speculator"])
def test_the_drafting_of_a_step_is_marked_also_without_a_model(attribute: str) -> None:
    proposer = NgramProposer()
    runner = SimpleNamespace(model=ForCausalLM(Decoder()), **{attribute: proposer})
    [row] = [row for row in all_targets(runner) if row.owner is proposer]
    assert (row.attribute, row.path, row.component, row.layer) == (
        "propose", "drafter.propose", "sampler", -1,
    )  # fmt: skip
    assert role_of(row.path) == "drafter.propose"


def test_a_slice_of_the_layers_under_a_second_name_keeps_their_layers() -> None:
    """Gemma 4: two halves for a fast prefill, in which the second one's count from 0 again."""
    model = ForCausalLM(Decoder())
    decoder = model.model
    decoder.embed_tokens_per_layer = named("VocabParallelEmbedding")
    decoder.per_layer_model_projection = named("ColumnParallelLinear")
    for layer in decoder.layers:
        layer.per_layer_input_gate = named("ReplicatedLinear")
    for half, layers in (
        ("self_decoder", decoder.layers[:1]),
        ("cross_decoder", decoder.layers[1:]),
    ):
        alias = named("DecoderLayers")
        alias.decoder_layers = layers
        alias.embed_tokens_per_layer = decoder.embed_tokens_per_layer
        setattr(decoder, half, alias)
    found = by_path(choose_targets(model))
    assert not [path for path in found if "decoder_layers" in path]
    layers = {path: row.layer for path, row in found.items() if ".layers." in path}
    shared = "model.layers.0.self_attn.rotary_emb"
    assert layers.pop(shared) == -1
    assert layers == {path: int(path.split(".")[2]) for path in layers}
    assert {"model.layers.0", "model.layers.1", f"{LAYER}input_layernorm"} <= set(layers)
    assert found["model.embed_tokens_per_layer"].component == "embedding"
    assert found["model.per_layer_model_projection"].component == "mlp"
    assert found[f"{LAYER}per_layer_input_gate"].component == "mlp"


class Speculator:
    """Drafts as runner V2 does."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def propose(self, tokens: Any) -> Any:
        return self._run_model(tokens)

    def _run_model(self, tokens: Any) -> Any:
        return self.model(tokens)


@pytest.mark.parametrize("whole", [True, False])
def test_the_call_of_a_draft_model_that_is_compiled_as_a_whole_is_marked(
    whole: bool,
) -> None:
    """DeepSeek's MTP, whose own forward is compiled, and EAGLE, where only the model inside is."""
    kind = CompiledForCausalLM if whole else ForCausalLM
    speculator = Speculator(kind(CompiledDecoder()))
    runner = SimpleNamespace(model=ForCausalLM(Decoder()), speculator=speculator)
    [row] = [row for row in all_targets(runner) if row.path == "drafter"]
    assert row.owner is (speculator if whole else speculator.model)
    assert (row.attribute, row.component) == ("_run_model" if whole else "forward", "")
    assert (row.layer, row.may_be_traced, row.type) == (-1, False, kind.__name__)


class Proposer:
    """Drafts as runner V1 does, and calls its model itself."""

    propose = Speculator.propose

    def __init__(self, model: Any) -> None:
        self.model = model


@pytest.mark.parametrize("whole", [True, False])
def test_the_drafting_around_a_call_that_cannot_be_marked_tells_no_component(whole: bool) -> None:
    kind = CompiledForCausalLM if whole else ForCausalLM
    proposer = Proposer(kind(CompiledDecoder()))
    found = by_path(all_targets(SimpleNamespace(model=ForCausalLM(Decoder()), drafter=proposer)))
    assert ("drafter" in found) == (not whole)
    assert found["drafter.propose"].component == ("" if whole else "sampler")
