"""Norm and experts of layers whose attention is vLLM's, and experts that every token takes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from spark_prof.kernels.candidate import (
    Activation,
    ActivationName,
    ExpertsLayer,
    LinearLayer,
    NormedExpertsLayer,
    NormLayer,
    RouterLayer,
)
from spark_prof.kernels.check.inputs import Weight, decode, make_weight
from spark_prof.kernels.check.oracles import normed_experts_oracle
from spark_prof.kernels.formats import TwoStacks
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.moe import pack_experts
from spark_prof.swaps import build, joined_weights
from spark_prof.swaps.build import SwapPoint, build_all
from spark_prof.swaps.builders import build_kept
from spark_prof.swaps.decoder_layer import parts_of, read_part
from spark_prof.swaps.guard import GuardedReplacement
from spark_prof.swaps.joined_weights import add_shared
from spark_prof.swaps.layer_parts import part_body, swap_layer
from spark_prof.swaps.layers import Replacement
from spark_prof.swaps.swap_settings import SIDES, Swap
from tests.emulator.compiler import compiler
from tests.rows import each_row
from tests.swaps.test_decoder_layer import HIDDEN, Matrix, Norm, SiluAndMul, rows

COUNT, INNER, WIDTH, SHARED = 4, 32, 64, 2


class ReLUSquaredActivation(nn.Module):
    """vLLM's."""


ACTIVATIONS: dict[ActivationName, nn.Module] = {
    "silu": SiluAndMul(),
    "relu2": ReLUSquaredActivation(),
}


def experts(kind: Any, activation: ActivationName = "silu") -> ExpertsLayer:
    """Four, of which a token takes two."""
    joins = Activation(activation)
    gate_up = make_weight(kind, "plain", (COUNT, joins.halves * INNER, WIDTH), 3, "cpu")
    down = make_weight(kind, "plain", (COUNT, WIDTH, INNER), 4, "cpu")
    router = RouterLayer("", COUNT, 2, True, "softmax", None, 1.5)
    return ExpertsLayer("", gate_up, down, None, None, joins, router)


def shared_mlp(
    kind: Any,
    monkeypatch: pytest.MonkeyPatch,
    width: int = SHARED * INNER,
    activation: ActivationName = "silu",
) -> Any:
    """An MLP that is as wide as two experts, and its matrices' values."""
    halves = Activation(activation).halves
    first = make_weight(kind, "plain", (halves * width, WIDTH), 5, "cpu")
    down = make_weight(kind, "plain", (WIDTH, width), 6, "cpu")
    of = {"gate_up" if halves == 2 else "up": first, "down": down}
    monkeypatch.setattr(
        joined_weights,
        "read_linear",
        lambda name, part, slot: LinearLayer(name, slot, of[part.name]),
    )
    parts = {f"{name}_proj": SimpleNamespace(name=name) for name in of}
    return SimpleNamespace(act_fn=ACTIVATIONS[activation], **parts), first, down


def mlp_of(
    x: torch.Tensor, first: torch.Tensor, down: torch.Tensor, activation: ActivationName = "silu"
) -> torch.Tensor:
    product = x @ first.T
    if activation == "relu2":
        return torch.nn.functional.relu(product).square() @ down.T
    gate, up = product.chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up) @ down.T


FORMS: list[tuple[Any, ActivationName]] = [
    ("nvfp4", "silu"), ("mxfp4", "silu"), ("bf16", "silu"), ("fp8", "silu"), ("fp8", "relu2"),
    ("nvfp4", "relu2"), ("bf16", "relu2"),
]  # fmt: skip


@each_row(("kind", "activation"), FORMS)
def test_a_shared_expert_is_cut_into_experts(
    kind: Any, activation: ActivationName, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = experts(kind, activation)
    mlp, gate_up, down = shared_mlp(kind, monkeypatch, activation=activation)
    joined = add_shared(layer, mlp)
    assert joined.router == replace(layer.router, always=SHARED)
    both: list[tuple[torch.Tensor, Weight]] = []
    for mine, routed in ((joined.gate_up, layer.gate_up), (joined.down, layer.down)):
        values = decode(mine)
        assert torch.equal(values[:COUNT], decode(routed))
        both.append((values[COUNT:], mine))
    x = torch.randn(3, WIDTH, dtype=torch.float64)
    parts = [mlp_of(x, both[0][0][at], both[1][0][at], activation) for at in range(SHARED)]
    torch.testing.assert_close(sum(parts), mlp_of(x, decode(gate_up), decode(down), activation))


@each_row(
    ("kind", "change", "reason"),
    [
        ("bf16", {}, "its shared expert is not quantized, the others are NvFp4"),
        ("nvfp4", {"act_fn": nn.GELU()}, "another activation"),
        ("nvfp4", {"act_fn": ReLUSquaredActivation()}, "another activation"),
        ("nvfp4", {"width": 48}, "is 48 wide, and the others are 32"),
        ("nvfp4", {"down_proj": SimpleNamespace(name="down", bias=1)}, "has a bias"),
    ],
)
def test_another_shared_expert_is_refused(
    kind: Any, change: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = dict(change)
    width = change.pop("width", SHARED * INNER)
    mlp, _, _ = shared_mlp(kind, monkeypatch, width)
    vars(mlp).update(change)
    with pytest.raises(KernelError, match=reason):
        add_shared(experts("nvfp4"), mlp)


def test_bf16_experts_are_not_copied_for_a_shared_one(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = experts("bf16")
    joined = add_shared(layer, shared_mlp("bf16", monkeypatch)[0])
    packed = pack_experts(joined.gate_up, joined.down, None, None, joined.activation)
    assert packed.apart == COUNT
    assert packed.count == COUNT + SHARED
    for part, routed in ((packed.gate_up, layer.gate_up), (packed.down, layer.down)):
        assert isinstance(routed, torch.Tensor)
        assert part.weights.data_ptr() == routed.data_ptr()
        assert part.scales.nbytes == routed.nbytes // COUNT * SHARED
    gate = LinearLayer("", "router", torch.zeros(COUNT, WIDTH).bfloat16())
    norm = NormLayer("", torch.ones(WIDTH), 1e-5)
    built = build_kept(NormedExpertsLayer("", norm, gate, None, joined), insist=True)
    copied = packed.gate_up.scales.nbytes + packed.down.scales.nbytes
    assert copied <= built.bytes < copied + 4096


def test_stacks_that_do_not_go_together_are_refused() -> None:
    one = torch.zeros(2, 16, 16).bfloat16()
    with pytest.raises(KernelError, match="have one shape"):
        TwoStacks(one, torch.zeros(1, 16, 32).bfloat16())
    with pytest.raises(KernelError, match="others lie apart"):
        pack_experts(
            TwoStacks(torch.zeros(2, 32, 16).bfloat16(), torch.zeros(1, 32, 16).bfloat16()),
            TwoStacks(one[:1], one), None, None, Activation("silu"),
        )  # fmt: skip


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler: kernels do not run")
@each_row(("kind", "activation"), FORMS)
@each_row("gated", [False, True])
def test_a_shared_expert_is_added_to_the_chosen_ones(
    kind: Any, activation: ActivationName, gated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own definition: an MLP beside the experts, whose scale is not its own."""
    numbers = torch.Generator().manual_seed(2)
    layer = experts(kind, activation)
    mlp, gate_up, down = shared_mlp(kind, monkeypatch, activation=activation)
    gate = torch.randn(COUNT, WIDTH, generator=numbers).bfloat16()
    shared_gate = torch.randn(WIDTH, generator=numbers).bfloat16() / 8 if gated else None
    norm = NormLayer("", torch.linspace(0.5, 1.5, WIDTH), 1e-5)
    x, residual = (torch.randn(3, WIDTH, generator=numbers).bfloat16() for _ in range(2))
    posed = NormedExpertsLayer("", norm, LinearLayer("", "router", gate), None, layer)
    routed, total = normed_experts_oracle(x, residual, posed)
    size = (total.value.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    normed = (total.value * size * norm.weight).bfloat16().double()
    weight = torch.sigmoid(normed @ shared_gate.double())[:, None] if shared_gate is not None else 1
    expected = routed.value + weight * mlp_of(normed, decode(gate_up), decode(down), activation)
    built = build_kept(
        replace(posed, experts=add_shared(layer, mlp), shared_gate=shared_gate), insist=True
    )
    y, _ = built.run(x, residual)
    assert float((y.double() - expected).norm() / expected.norm()) < 2.0**-7


class DeepseekV2DecoderLayer(nn.Module):
    """A layer whose attention is another: a norm, and behind it the experts."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()
        self.mlp = nn.Module()
        self.mlp.gate = Matrix(4, HIDDEN)
        self.mlp.experts = nn.Module()
        self.mlp.experts.routed_experts = None
        self.mlp.experts.moe_config = SimpleNamespace(is_lora_enabled=False, tp_size=1)
        self.mlp.forward = lambda x: x * 3  # type: ignore[assignment]
        self.self_attn = nn.Module()
        self.self_attn.kv_a_proj_with_mqa = Matrix(48, HIDDEN)
        self.self_attn.q_proj = Matrix(HIDDEN, HIDDEN)

    def forward(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None,
        llama_4_scaling: torch.Tensor | None = None,
    ) -> Any:  # fmt: skip
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states.clone())
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        latent = self.self_attn.kv_a_proj_with_mqa(hidden_states)[0]
        query = self.self_attn.q_proj(hidden_states)[0].view(len(hidden_states), -1)
        hidden_states = query + latent.sum(-1, keepdim=True) + positions[:, None]
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual


class NemotronHMoEDecoderLayer(nn.Module):
    """A layer of nothing but a norm and experts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()
        self.mixer = DeepseekV2DecoderLayer().mlp

    def forward(
        self, _positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None
    ) -> Any:
        if residual is None:
            residual = hidden_states
            hidden_states = self.norm(hidden_states.clone())
        else:
            hidden_states, residual = self.norm(hidden_states, residual)
        return self.mixer(hidden_states), residual


@pytest.mark.parametrize(
    ("kind", "expected_path"),
    [(DeepseekV2DecoderLayer, "mlp.experts"), (NemotronHMoEDecoderLayer, "mixer.experts")],
)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kernel", [True, False])
def test_norm_and_experts_are_put_in_the_norm_s_place(
    kind: type[nn.Module], expected_path: str, first: bool, kernel: bool
) -> None:
    layer, seen = kind(), []
    norm: Any = getattr(layer, "norm", None) or layer.post_attention_layernorm
    given = (torch.arange(3), rows(3, 1), None if first else rows(3, 2))

    def run(x: torch.Tensor, residual: torch.Tensor | None) -> Any:
        seen.append(len(x))
        total = x if residual is None else x + residual
        size = (total.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        return total * size * norm.weight * 3, total

    def copied() -> tuple[Any, ...]:
        return tuple(None if each is None else each.clone() for each in given)

    expected = layer(*copied())
    SIDES.names, SIDES.active = ("a", "b"), "b"
    guarded = GuardedReplacement("experts", "own", Replacement(run, 16, "kept"))
    part, path = list(parts_of("layers.0", layer))[-1]
    assert (part, path) == ("normed experts", f"layers.0.{expected_path}")
    body = part_body(layer, part, {"b": guarded} if kernel else {})
    swap_layer(layer, {part: body}, compiled=False)
    try:
        result = layer(*copied())
    finally:
        SIDES.names, SIDES.active = ("a",), "a"
    assert seen == ([3] if kernel else [])
    for mine, right in zip(result, expected, strict=True):
        torch.testing.assert_close(mine, right)


@pytest.mark.parametrize("exact", [True, False])
def test_a_router_in_float32_is_taken_where_its_values_are_bfloat16_s(
    exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_prof.swaps import decoder_layer

    layer = NemotronHMoEDecoderLayer()
    weight = torch.randn(COUNT, WIDTH, generator=torch.Generator().manual_seed(7))
    weight = weight.bfloat16().float() if exact else weight
    monkeypatch.setattr(decoder_layer, "read_experts", lambda *_: experts("nvfp4"))
    monkeypatch.setattr(decoder_layer, "read_norm", lambda *_: NormLayer("", torch.ones(64), 1e-5))
    monkeypatch.setattr(decoder_layer, "read_linear", lambda *_: LinearLayer("", "router", weight))
    layer.mixer.gate.bias = None
    layer.mixer.gate.out_dtype = torch.float32
    part = read_part("layer", layer, "normed experts")
    assert isinstance(part, NormedExpertsLayer)
    assert isinstance(part.gate.weight, torch.Tensor)
    assert torch.equal(part.gate.weight.float(), weight)
    assert part.float_logits
    assert part.gate_is_copy == exact
    if exact:
        built = build_kept(part, insist=True)
        held = build_kept(replace(part, gate_is_copy=False), insist=True)
        assert built.bytes - held.bytes == part.gate.weight.nbytes
    else:
        with pytest.raises(KernelError, match="router's matrix"):
            build_kept(part, insist=True)


def test_experts_of_fewer_features_than_the_stream_are_refused() -> None:
    layer = NemotronHMoEDecoderLayer()
    layer.mixer.use_latent_moe = True
    with pytest.raises(KernelError, match="fewer features"):
        read_part("layer", layer, "normed experts")


def test_layers_with_another_attention_are_insisted_on() -> None:
    model = nn.Module()
    model.layers = nn.ModuleList([DeepseekV2DecoderLayer()])
    places = build_all(model, {"b": (Swap("layer", "spark_prof"),)})
    assert [place.point.kind for place in places] == ["normed matrix", "normed experts"]
    for place in places:
        assert "attention is vLLM's own was not measured" in place.choices["b"].why
    for place in build_all(model, {"b": (Swap("layer", "spark_prof!"),)}):
        assert "measured" not in place.choices["b"].why


@pytest.mark.parametrize("fits", [True, False])
def test_what_a_layer_replaces_is_not_built_once_more(
    fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it leaves to vLLM is: o of another attention, experts that it does not fit."""
    layer = DeepseekV2DecoderLayer()
    layer.self_attn.o_proj = Matrix(HIDDEN, HIDDEN)
    layer.mlp.shared_experts = nn.Module()
    layer.mlp.shared_experts.gate_up_proj = Matrix(8, HIDDEN)
    other = Matrix(8, HIDDEN)
    attention, mlp = layer.self_attn, layer.mlp
    points = [
        SwapPoint("layer", "layers.1.self_attn.kv_a_proj_with_mqa", layer, "normed matrix"),
        SwapPoint("layer", "layers.1.mlp.experts", layer, "normed experts"),
        SwapPoint("qkv", "layers.1.self_attn.q_proj", attention.q_proj, "matrix"),
        SwapPoint(
            "qkv", "layers.1.self_attn.kv_a_proj_with_mqa", attention.kv_a_proj_with_mqa, "matrix"
        ),
        SwapPoint("o", "layers.1.self_attn.o_proj", attention.o_proj, "matrix"),
        SwapPoint(
            "mlp", "layers.1.mlp.shared_experts.gate_up_proj", mlp.shared_experts.gate_up_proj,
            "matrix",
        ),
        SwapPoint("mlp", "layers.10.mlp.gate_up_proj", other, "matrix"),
        SwapPoint("router", "layers.1.mlp.gate", mlp.gate, "matrix"),
        SwapPoint("moe", "layers.1.mlp.experts", mlp.experts, "experts"),
    ]  # fmt: skip

    def built(point: SwapPoint, swap: Swap) -> GuardedReplacement:
        there = fits or point.slot != "layer"
        replacement = Replacement(lambda *_: None, 16, "kept") if there else None
        return GuardedReplacement(point.name, swap.kernel, replacement)

    monkeypatch.setattr(build, "find_points", lambda _: iter(points))
    monkeypatch.setattr(build, "_built", built)
    swaps = tuple(Swap(slot, "spark_prof") for slot in dict.fromkeys(p.slot for p in points))
    without = tuple(swap for swap in swaps if swap.slot != "layer")
    places = build_all(None, {"a": without, "b": swaps})
    assert [place.point for place in places] == points
    left = [points[4], points[6]] if fits else points[2:]
    assert [place.point for place in places if "a" in place.choices] == points[2:]
    assert [place.point for place in places if "b" in place.choices] == points[:2] + left
    inside = [[point for side, point, _ in place.inside if side == "b"] for place in places[:2]]
    assert inside == ([points[2:4], [points[5], *points[7:]]] if fits else [[], []])


def test_a_shared_expert_that_each_rank_has_whole_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from spark_prof.swaps import decoder_layer

    layer = DeepseekV2DecoderLayer()
    monkeypatch.setattr(decoder_layer, "read_experts", lambda *_: experts("nvfp4"))
    layer.mlp.shared_experts = nn.Module()
    for reduces, size in ((True, 1), (False, 2)):
        projection = SimpleNamespace(reduce_results=reduces, tp_size=size)
        layer.mlp.shared_experts.down_proj = projection
        with pytest.raises(KernelError, match="do not share its shared expert"):
            read_part("layer", layer, "normed experts")
