"""A norm and the matrices behind it as one part, where attention is vLLM's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from spark_prof.kernels.candidate import LinearLayer, NormedLinearLayer, NormLayer
from spark_prof.kernels.check.inputs import Weight, decode, make_weight
from spark_prof.kernels.check.oracles import normed_linear_oracle
from spark_prof.kernels.check.verdict import judge
from spark_prof.kernels.formats import GlobalScale, NvFp4
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.profiler.fence import Fence
from spark_prof.profiler.ranges import CallMarker
from spark_prof.profiler.targets import choose_targets
from spark_prof.rules.components import role_of
from spark_prof.swaps import decoder_layer, joined_weights, layer_parts
from spark_prof.swaps.builders import build_kept
from spark_prof.swaps.decoder_layer import LayerModules, parts_of, read_part
from spark_prof.swaps.guard import GuardedReplacement
from spark_prof.swaps.joined_weights import joined_matrix
from spark_prof.swaps.layer_dispatch import register_ops
from spark_prof.swaps.layer_parts import part_body, swap_layer
from spark_prof.swaps.layers import Replacement
from spark_prof.swaps.swap_settings import SIDES
from tests.emulator.compiler import compiler
from tests.rows import each_row
from tests.swaps.test_decoder_layer import HIDDEN, Matrix, Norm, rows
from tests.swaps.test_shared_in_layer import DeepseekV2DecoderLayer


class NemotronHMambaDecoderLayer(nn.Module):
    """A layer of nothing but a norm and what is no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mixer = Norm(), nn.Module()
        self.mixer.in_proj = Matrix(2 * HIDDEN, HIDDEN)

    def forward(
        self, _positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None
    ) -> Any:
        if residual is None:
            residual = hidden_states
            hidden_states = self.norm(hidden_states.clone())
        else:
            hidden_states, residual = self.norm(hidden_states, residual)
        value, gate = self.mixer.in_proj(hidden_states)[0].chunk(2, -1)
        return value * torch.sigmoid(gate), residual


KINDS = [
    (DeepseekV2DecoderLayer, "self_attn.kv_a_proj_with_mqa"),
    (NemotronHMambaDecoderLayer, "mixer.in_proj"),
]


@each_row(("kind", "expected_path"), KINDS)
@each_row("first", [True, False])
@each_row("taken", [True, False])
@each_row("compiled", [True, False])
def test_norm_and_matrices_are_put_in_the_norm_s_place(
    kind: type[nn.Module], expected_path: str, first: bool, taken: bool, compiled: bool
) -> None:
    """Where the kernel does not take the tokens vLLM's own modules run, and are the same."""
    layer, seen = kind(), []
    modules = LayerModules.of(layer)
    assert modules is not None
    weights = [matrix.weight for matrix in modules.matrices]
    given = (torch.arange(3), rows(3, 1), None if first else rows(3, 2))

    def run(x: torch.Tensor, residual: torch.Tensor | None, bias: None) -> Any:
        assert bias is None
        seen.append(len(x))
        total = x.clone() if residual is None else x + residual
        size = (total.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        return (total * size * modules.first_norm.weight) @ torch.cat(weights).T, total

    def copied() -> tuple[Any, ...]:
        return tuple(None if part is None else part.clone() for part in given)

    expected = layer(*copied())
    SIDES.names, SIDES.active = ("a", "b"), "b"
    guarded = GuardedReplacement("matrix", "own", Replacement(run, 16 if taken else 2, "kept"))
    part, path = next(parts_of("layers.0", layer))
    assert (part, path) == ("normed matrix", f"layers.0.{expected_path}")
    if compiled:
        register_ops()
    swap_layer(layer, {part: part_body(layer, part, {"b": guarded})}, compiled)
    try:
        result = layer(*copied())
    finally:
        SIDES.names, SIDES.active = ("a",), "a"
    assert seen == ([3] if taken else [])
    for mine, right in zip(result, expected, strict=True):
        torch.testing.assert_close(mine, right)


def matrices(monkeypatch: pytest.MonkeyPatch, *weights: Any) -> list[Any]:
    """Modules whose weights are those."""
    monkeypatch.setattr(
        joined_weights, "read_linear", lambda name, module, slot: LinearLayer(name, slot, module.w)
    )
    return [SimpleNamespace(w=weight) for weight in weights]


@each_row("kind", ["bf16", "fp8", "mxfp4", "nvfp4"])
def test_several_matrices_are_read_as_one(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [make_weight(kind, "plain", (count, 64), count, "cpu") for count in (16, 48, 32)]
    joined = joined_matrix("layers.0", matrices(monkeypatch, *weights), "qkv")
    assert (joined.name, joined.slot) == ("layers.0", "qkv")
    assert torch.equal(decode(joined.weight), torch.cat([decode(weight) for weight in weights]))


def test_a_single_matrix_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(16, 64).bfloat16()
    assert joined_matrix("", matrices(monkeypatch, weight), "qkv").weight is weight


def other_way_round(weight: Weight) -> Any:
    assert isinstance(weight, NvFp4)
    return NvFp4(weight.packed, weight.scales, GlobalScale(torch.tensor(3.0), "multiplies"))


@each_row(
    ("one", "other", "reason"),
    [
        ("bf16", "fp8", "is not quantized, another Fp8Rows"),
        ("fp8_blocks", "fp8_blocks", "not in Fp8Blocks"),
        ("nvfp4", other_way_round, "the other way round"),
        ("bf16", lambda weight: weight.float(), "is torch.bfloat16, another torch.float32"),
    ],
)
def test_matrices_that_do_not_go_together_are_refused(
    one: Any, other: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_weight(one, "plain", (128, 128), 1, "cpu")
    second = (
        make_weight(other, "plain", (128, 128), 1, "cpu")
        if isinstance(other, str)
        else other(first)
    )
    with pytest.raises(KernelError, match=reason):
        joined_matrix("", matrices(monkeypatch, first, second), "qkv")


@each_row(
    ("path", "value", "reason"),
    [
        ("self_attn.indexer", nn.Module(), "indexer reads"),
        ("use_sequence_parallel_moe", True, "spread over ranks"),
        ("self_attn.q_proj.gather_output", True, "ranks collect"),
        ("self_attn.q_proj.bias", torch.zeros(HIDDEN), "has a bias"),
    ],
)
def test_a_layer_whose_norm_has_other_readers_is_refused(
    path: str, value: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder_layer, "read_norm", lambda *_: NormLayer("", torch.ones(64), 1e-5))
    layer = DeepseekV2DecoderLayer()
    owner, _, name = path.rpartition(".")
    setattr(layer.get_submodule(owner), name, value)
    with pytest.raises(KernelError, match=reason):
        read_part("layer", layer, "normed matrix")


def test_attention_that_writes_to_memory_of_the_norm_s_size_is_refused() -> None:
    """As in vLLM 0.24 and 0.25: `linear_attn(hidden_states, output=empty_like(hidden_states))`."""

    class GatedDeltaNet(nn.Module):
        def forward(self, hidden_states: torch.Tensor, output: torch.Tensor) -> None:
            output[:] = self.in_proj_qkvz(hidden_states)[0] + self.in_proj_ba(hidden_states)[0]

    class Qwen3NextDecoderLayer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear_attn, self.input_layernorm = GatedDeltaNet(), Norm()
            self.linear_attn.in_proj_qkvz = Matrix(HIDDEN, HIDDEN)
            self.linear_attn.in_proj_ba = Matrix(HIDDEN, HIDDEN)

    with pytest.raises(KernelError, match="writes to memory that is as large as"):
        read_part("layer", Qwen3NextDecoderLayer(), "normed matrix")


def test_vllm_s_own_matrices_count_to_themselves_where_the_norm_calls_them() -> None:
    """In a step of more tokens than the kernel takes."""
    model, layer = nn.Module(), DeepseekV2DecoderLayer()
    model.layers = nn.ModuleList([layer])
    guarded = GuardedReplacement("matrix", "own", Replacement(lambda *_: None, 2, "kept"))
    choices = {SIDES.active: guarded}
    body = part_body(layer, "normed matrix", choices)
    swap_layer(layer, {"normed matrix": body}, compiled=False)
    targets, marker = choose_targets(model), CallMarker(Fence(), nvtx=False)
    marker.mark(targets)
    marker.start()
    layer(torch.arange(3), rows(3, 1), None)
    entered = [targets[code - 1] for code in marker.take_rows()["code"] if code > 0]
    assert [role_of(target.path) for target in entered if ".self_attn" in target.path] == [
        *("self_attn.kv_a_proj_with_mqa", "self_attn.q_proj"),  # inside the norm's
        *("self_attn.kv_a_proj_with_mqa", "self_attn.q_proj"),
    ]
    assert {target.component for target in entered if "_proj" in target.path} == {"qkv"}
    assert {target.layer for target in entered if "_proj" in target.path} == {0}


def test_a_norm_that_another_side_swaps_is_asked_itself() -> None:
    """Not vLLM's kernel in its place, as on a GPU else."""

    class RMSNorm:
        weight, spark_prof_body = SimpleNamespace(is_cuda=True), object()

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    x = rows(3, 1)
    y, total = layer_parts._normed(RMSNorm(), x, None, opaque=True)
    assert torch.equal(y, x + 1)
    assert torch.equal(total, x)


def test_of_deepseek_v3_the_fused_matrix_is_the_one() -> None:
    layer = DeepseekV2DecoderLayer()
    layer.self_attn.fused_qkv_a_proj = Matrix(16, HIDDEN)
    modules = LayerModules.of(layer)
    assert modules is not None
    assert modules.matrices == (layer.self_attn.fused_qkv_a_proj,)
    layer.self_attn.fused_qkv_a_proj = None  # as vLLM has it without
    modules = LayerModules.of(layer)
    assert modules is not None
    assert modules.matrices == (layer.self_attn.kv_a_proj_with_mqa, layer.self_attn.q_proj)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler: kernels do not run")
@each_row("kind", ["bf16", "fp8"])
def test_the_package_s_kernel_of_joined_matrices(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy is counted, of a weight in BF16 too."""
    weights = [make_weight(kind, "plain", (count, 64), count, "cpu") for count in (16, 48)]
    norm = NormLayer("", torch.linspace(0.5, 1.5, 64), 1e-5)
    linear = joined_matrix("", matrices(monkeypatch, *weights), "qkv")
    built = build_kept(NormedLinearLayer("", norm, linear, is_copy=True), insist=True)
    in_place = build_kept(NormedLinearLayer("", norm, linear), insist=True)
    copied = built.bytes - in_place.bytes
    assert copied == (2 * 64 * 64 if kind == "bf16" else 0)
    x, residual = (torch.randn(3, 64).bfloat16() for _ in range(2))
    y, total = built.run(x, residual, None)
    expected, stream = normed_linear_oracle(
        x, residual, norm.weight, norm.epsilon, decode(linear.weight), None
    )
    assert judge(y, expected).detail == ""
    assert judge(total, stream).detail == ""
