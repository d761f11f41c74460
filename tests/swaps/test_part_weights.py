"""Slots beside `layer` take what a part of it has packed and gave up on trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels.candidate import (
    LinearLayer,
    NormedExpertsLayer,
    NormedLinearLayer,
    NormLayer,
)
from spark_prof.kernels.check.inputs import decode, make_weight
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.swaps import install, part_weights, trial
from spark_prof.swaps.build import BuiltReplacement, SwapPoint
from spark_prof.swaps.builders import build_kept, build_quantized
from spark_prof.swaps.decoder_layer import Part
from spark_prof.swaps.guard import GuardedReplacement, ReplacementError
from spark_prof.swaps.install import Installed
from spark_prof.swaps.joined_weights import add_shared
from spark_prof.swaps.layers import Replacement
from spark_prof.swaps.part_weights import built_of_failed, of_part, packed_parts
from spark_prof.swaps.swap_settings import Swap, SwapSettings, parse_swaps
from tests.emulator.compiler import compiler
from tests.rows import each_row
from tests.swaps.test_shared_in_layer import COUNT, WIDTH, experts, shared_mlp

ROWS = 48
LAYER, QKV, MOE, ROUTER = (Swap(slot, "spark_prof!") for slot in ("layer", "qkv", "moe", "router"))
MATRIX = SwapPoint(
    "qkv", "layers.0.self_attn.qkv_proj", SimpleNamespace(output_size=ROWS), "matrix"
)
EXPERTS = SwapPoint("moe", "layers.0.mlp.experts", None, "experts")
runs_kernels = pytest.mark.skipif(compiler() is None, reason="no C++ compiler: kernels do not run")


def normed_matrix(kind: Any) -> tuple[NormedLinearLayer, torch.Tensor]:
    """A norm and a matrix, and the matrix's values."""
    weight = make_weight(kind, "plain", (ROWS, WIDTH), 7, "cpu")
    norm = NormLayer("", torch.linspace(0.5, 1.5, WIDTH), 1e-5)
    return NormedLinearLayer("", norm, LinearLayer("", "qkv", weight)), decode(weight)


def tokens(count: int = 3) -> torch.Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(4)).bfloat16()


def off(result: torch.Tensor, expected: torch.Tensor) -> float:
    return float((result.double() - expected).norm() / expected.norm())


@runs_kernels
@each_row("kind", ["nvfp4", "fp8", "bf16"])
def test_qkv_runs_with_the_weights_of_the_part(kind: Any) -> None:
    layer, values = normed_matrix(kind)
    part = build_kept(layer, insist=True)
    built = of_part(part, LAYER, MATRIX, QKV)
    assert built.parts[0] is part.parts[0]  # nothing is packed once more
    assert built.bits == "kept"
    assert built.bytes <= part.bytes
    assert off(built.run(tokens(), None), tokens().double() @ values.T) < 2.0**-7


@runs_kernels
def test_of_several_matrices_in_one_part_none_is_built() -> None:
    part = build_kept(normed_matrix("bf16")[0], insist=True)
    other = replace(MATRIX, module=SimpleNamespace(output_size=ROWS - 16))
    with pytest.raises(KernelError, match="several matrices as one"):
        of_part(part, LAYER, other, QKV)


@runs_kernels
def test_what_was_quantized_here_stays_so() -> None:
    layer, values = normed_matrix("bf16")
    part = build_quantized(layer, "mxfp4")
    of = Swap("layer", "mxfp4")
    built = of_part(part, of, MATRIX, Swap("qkv", "mxfp4"))
    assert (built.bits, built.line) == ("changed", part.line)
    assert 0.02 < off(built.run(tokens(), None), tokens().double() @ values.T) < 0.3
    for kernel in ("spark_prof", "fp8"):  # which would be other weights
        with pytest.raises(KernelError, match="otherwise than qkv="):
            of_part(part, of, MATRIX, Swap("qkv", kernel))


@runs_kernels
@each_row("kind", ["nvfp4", "bf16"])
@each_row("shared", [False, True])
def test_experts_run_with_the_weights_of_the_part(
    kind: Any, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the shared expert, which vLLM then computes, and its choice unscaled by the part."""
    layer = replace(experts(kind), stays=True)
    posed = layer
    if shared:
        posed = add_shared(layer, shared_mlp(kind, monkeypatch)[0])
        monkeypatch.undo()
    gate = LinearLayer("", "router", torch.randn(COUNT, WIDTH).bfloat16())
    norm = NormLayer("", torch.ones(WIDTH), 1e-5)
    part = build_kept(NormedExpertsLayer("", norm, gate, None, posed), insist=True)
    router = replace(layer.router, scale=1.0)
    monkeypatch.setattr(part_weights, "read_router", lambda *_: router)
    built = of_part(part, LAYER, EXPERTS, MOE)
    right = build_kept(replace(layer, router=router), insist=True)
    logits = torch.randn(3, COUNT, generator=torch.Generator().manual_seed(5)).bfloat16()
    assert torch.equal(built.run(tokens(), logits), right.run(tokens(), logits))
    assert built.bytes <= part.bytes
    choice = of_part(part, LAYER, SwapPoint("router", EXPERTS.name, None, "choice"), ROUTER)
    weights, chosen = choice.run(logits)
    assert torch.equal(chosen.long(), logits.float().topk(2).indices)
    assert weights.shape == (3, 2)


@runs_kernels
def test_a_router_s_matrix_is_read_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = torch.randn(16, WIDTH).bfloat16()
    read = LinearLayer("", "router", gate)
    monkeypatch.setattr(part_weights, "read_linear", lambda *_, **__: read)
    point = SwapPoint("router", "layers.0.mlp.gate", None, "matrix")
    built = of_part(Replacement(lambda: None, 16, "kept"), LAYER, point, ROUTER)
    assert built.bytes == 0
    assert off(built.run(tokens(), None), tokens().double() @ gate.double().T) < 2.0**-7


@each_row(
    ("of", "slot", "kernel", "said"),
    [
        ("spark_prof", "qkv", "mine.py:build", "only the package's own"),
        ("mine.py:build", "qkv", "spark_prof", "only the package's own"),
        ("spark_prof", "qkv", "mxfp4", "otherwise than qkv=mxfp4"),
        ("spark_prof", "mlp", "spark_prof", "otherwise than mlp=spark_prof"),
        ("spark_prof", "router", "mxfp4", "otherwise than router=mxfp4"),
    ],
)
def test_what_the_part_has_otherwise_is_refused(of: str, slot: str, kernel: str, said: str) -> None:
    part = Replacement(lambda: None, 16, "kept")
    with pytest.raises(KernelError, match=said):
        of_part(part, Swap("layer", of), replace(MATRIX, slot=slot), Swap(slot, kernel))


def engine_of(
    monkeypatch: pytest.MonkeyPatch, fails: Callable[[SwapPoint], bool], *, serve: bool, wrong: bool
) -> tuple[Installed, list[str]]:
    """An engine with a layer's parts and qkv beside it, whose trials fail as is told."""
    swaps = parse_swaps("layer=spark_prof,qkv=spark_prof")
    tried: list[str] = []

    def try_all(places: list[BuiltReplacement], *_: Any) -> None:
        for place in places:
            tried.append(f"{place.point.slot} {place.point.name}")
            for guarded in dict.fromkeys(place.choices.values()):
                if not guarded.live or not fails(place.point):
                    continue
                if wrong:
                    guarded.error = ReplacementError(0.5, 1, "2 rows", beyond=True)
                else:
                    guarded.fail("on trial", quiet=True)

    monkeypatch.setattr(trial, "try_all", try_all)
    monkeypatch.setattr(install, "_let_layers_be_swapped", lambda _: None)
    monkeypatch.setattr(
        part_weights, "of_part", lambda part, *_: Replacement(part.run, 16, "kept", 7)
    )
    state = Installed(SwapSettings({"b": swaps, "c": swaps}, serve=serve))
    parts: list[Part] = ["normed matrix", "normed matrix"]
    for number, kind in enumerate(parts):
        path = f"layers.{number}.self_attn.qkv_proj"
        guarded = GuardedReplacement(path, "layer", Replacement(lambda: None, 16, "kept", 7))
        place = BuiltReplacement(
            SwapPoint("layer", path, None, kind), dict.fromkeys("bc", swaps[0]),
            dict.fromkeys("bc", guarded),
        )  # fmt: skip
        point = SwapPoint("qkv", path, None, "matrix")
        place.inside.extend((side, point, swaps[1]) for side in "bc")
        state.places.append(place)
    worker = SimpleNamespace(vllm_config=SimpleNamespace(compilation_config=None))
    install._try(worker, state)
    return state, tried


@pytest.mark.parametrize(("serve", "wrong"), [(True, True), (True, False), (False, False)])
def test_a_part_that_fails_leaves_its_layer_to_the_slot_beside_it(
    serve: bool, wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, tried = engine_of(
        monkeypatch, lambda p: p.slot == "layer" and "1" in p.name, serve=serve, wrong=wrong
    )
    first, second, qkv = state.places
    assert (qkv.point.slot, qkv.point.name) == ("qkv", "layers.1.self_attn.qkv_proj")
    assert tried[-1] == "qkv layers.1.self_attn.qkv_proj"
    assert len(tried) == 3  # each once
    assert first.choices["b"].live
    assert not second.choices["b"].live
    assert qkv.choices["b"].live
    assert qkv.choices["b"] is qkv.choices["c"]  # sides that ask for the same share it
    assert install.second_copy(state) == 14  # as before: what failed holds nothing


def test_what_fails_as_well_stays_vllm_s(monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = engine_of(monkeypatch, lambda p: "1" in p.name, serve=True, wrong=True)
    assert [p.choices["b"].live for p in state.places] == [True, False, False]
    assert "on trial row 1" in state.places[-1].choices["b"].why


def test_wrong_parts_run_where_a_gate_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ab` measures them and says so; then nothing takes their place."""
    state, _ = engine_of(monkeypatch, lambda _: True, serve=False, wrong=True)
    assert len(state.places) == 2


def test_what_was_never_built_is_not_built_of_it() -> None:
    guarded = GuardedReplacement("x", "layer", None)
    guarded.fail("its weights", quiet=True)
    place = BuiltReplacement(
        SwapPoint("layer", MATRIX.name, None, "normed matrix"), {"b": LAYER}, {"b": guarded}
    )
    place.inside.append(("b", MATRIX, QKV))
    packed = packed_parts([place])
    assert not packed
    assert built_of_failed([place], packed) == []


def test_what_cannot_be_built_says_why() -> None:
    guarded = GuardedReplacement("x", "layer", Replacement(lambda: None, 16, "kept"))
    place = BuiltReplacement(
        SwapPoint("layer", MATRIX.name, None, "normed matrix"), {"b": LAYER}, {"b": guarded}
    )
    place.inside.append(("b", MATRIX, Swap("qkv", "mxfp4")))
    packed = packed_parts([place])
    guarded.fail("on trial", quiet=True)
    [built] = built_of_failed([place], packed)
    assert not built.choices["b"].live
    assert "otherwise than qkv=mxfp4" in built.choices["b"].why
