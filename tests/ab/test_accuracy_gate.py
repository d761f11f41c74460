"""The gate, on models that round as vLLM does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import astuple, replace
from functools import cache

import pytest

from spark_prof.ab.accuracy_gate import (
    Bits,
    Depth,
    LayerError,
    Position,
    judge,
    judge_layer,
    rounding_deviation,
)

torch = pytest.importorskip("torch")

from spark_prof.swaps.swap_settings import Rounded, element_bound, layer_bound  # noqa: E402
from spark_prof.swaps.tap import compare_logits  # noqa: E402
from tests.ab.small_model import (  # noqa: E402
    OTHER,
    VOCABULARY,
    Change,
    Model,
    Order,
    attention,
    block,
    doubled_output,
    doubled_scale,
    dropped_bias,
    make_model,
    norm,
    rounded,
    swapped_experts,
)
from tests.rows import each_row  # noqa: E402

POSITIONS = 64
DENSE = Depth(24, routed=False)
ROUTED = Depth(12, routed=True)
AGREEING = Position(0, 0, 5, 5, 1.0, 1e-5, 0.02, 1.0)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other take most of the time of products this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tokens(seed: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (POSITIONS,), generator=torch.Generator().manual_seed(seed))


@cache
def model(layers: int, experts: int = 0, seed: int = 0) -> Model:
    return make_model(layers, experts, seed)


@cache
def stock(layers: int, experts: int = 0, seed: int = 0) -> torch.Tensor:
    return model(layers, experts, seed).logits(tokens(seed))


def against(a: torch.Tensor, b: torch.Tensor) -> list[Position]:
    return [Position(step, 0, *astuple(found)) for step, found in enumerate(compare_logits(a, b))]


@cache
def floor(seed: int = 0) -> tuple[Position, ...]:
    """Of the model with experts, disturbed."""
    disturbed = model(12, 16, seed).disturbed().logits(tokens(seed))
    return tuple(against(stock(12, 16, seed), disturbed))


@each_row(("layers", "seed"), [(2, 0), (24, 0), (24, 1), (48, 2)])
def test_sums_in_another_order_pass(layers: int, seed: int) -> None:
    """Rounding is what the derivation says, within a factor of two."""
    a, b = stock(layers, 0, seed), model(layers, 0, seed).logits(tokens(seed), OTHER)
    found = against(a, b)
    verdict = judge(found, "kept", depth=Depth(layers, routed=False))
    assert verdict.passed, verdict.reasons
    assert any(position.kl_nats > 0 for position in found)
    if layers > 2:
        deviation = float(((b - a).std(-1) / a.std(-1)).square().mean().sqrt())
        assert 0.5 < deviation / rounding_deviation(layers) < 2


@each_row(
    ("change", "only"),
    [
        *((change, only) for change in (doubled_output, doubled_scale) for only in (None, 0, 23)),
        (dropped_bias, None),
        (dropped_bias, 0),
    ],
)
def test_what_is_wrong_fails(change: Change, only: int | None) -> None:
    """In all layers, or in one of them."""
    wrong = model(24).changed(change, only).logits(tokens(0), OTHER)
    verdict = judge(against(stock(24), wrong), "kept", depth=DENSE)
    assert not verdict.passed
    assert any("KL divergence" in reason for reason in verdict.reasons)


def test_a_wrong_row_of_the_lm_head_fails() -> None:
    """One logit of 2048 is wrong, which changes the distribution little."""
    right = model(24)
    head = right.head.clone()
    head[77] = -head[77]
    wrong = replace(right, head=head).logits(tokens(0), OTHER)
    verdict = judge(against(stock(24), wrong), "kept", depth=DENSE)
    assert any("worst logit" in reason for reason in verdict.reasons)


@pytest.mark.slow
@each_row("seed", [0, 1])
def test_experts_may_be_exchanged_and_wrong_ones_fail(seed: int) -> None:
    other = against(stock(12, 16, seed), model(12, 16, seed).logits(tokens(seed), OTHER))
    assert judge(other, "kept", floor(seed), depth=ROUTED).passed
    assert judge(other, "kept", depth=ROUTED).passed
    assert judge(other, "kept").passed
    for change in (swapped_experts, doubled_scale, doubled_output):
        wrong = model(12, 16, seed).changed(change).logits(tokens(seed), OTHER)
        found = against(stock(12, 16, seed), wrong)
        assert not judge(found, "kept", floor(seed), depth=ROUTED).passed, change
    if seed == 0:  # why a model with experts needs bounds of its own
        assert not judge(other, "kept", depth=Depth(12, routed=False)).passed


def layer_error(change: Change | None, experts: int) -> float:
    """Relative error of one layer's attention and block, alone, whichever is larger."""
    right = model(12, experts).layers[3]
    wrong = right if change is None else change(dict(right))
    x = norm(torch.randn(POSITIONS, 128, generator=torch.Generator().manual_seed(5)))
    return max(
        float((part(wrong, x, OTHER) - exact).norm() / exact.norm())
        for part in (attention, block)
        for exact in [part(right, x, Order())]
    )


def test_a_layer_alone() -> None:
    for experts in (0, 16):
        found = judge_layer("model.layers.3.mlp", "mlp", "kept", layer_error(None, experts))
        assert found.passed
        assert found.relative
    for change, experts in (
        (doubled_scale, 0), (doubled_output, 0), (doubled_scale, 16), (swapped_experts, 16),
    ):  # fmt: skip
        error = layer_error(change, experts)
        assert not judge_layer("x", "moe", "kept", error).passed
        assert not judge_layer("x", "moe", "changed", error).passed


@each_row(
    ("slot", "path", "measured"),
    [  # a trained model in FP8 on an H200, whose own kernels round activations to FP8
        ("qkv", "self_attn.qkv_proj", (0.03597, 0.02350, 0.02441, 0.02619)),
        ("o", "self_attn.o_proj", (0.02611, 0.02425, 0.02587, 0.02606)),
        ("moe", "mlp.experts", (0.03425, 0.06068, 0.04594, 0.04279)),
    ],
)
def test_a_layer_whose_activations_vllm_rounds(
    slot: str, path: str, measured: tuple[float, ...]
) -> None:
    for layer, relative in enumerate(measured):
        name = f"model.layers.{layer}.{path}"
        assert not judge_layer(name, slot, "kept", relative).passed
        found = judge_layer(name, slot, "kept", relative, rounded="fp8")
        assert (found.passed, found.bits, found.rounded) == (True, "kept", "fp8")
        assert not judge_layer(name, slot, "kept", 1.0, rounded="fp8").passed  # a doubled scale
        assert not judge_layer(name, slot, "kept", relative, beyond=True, rounded="fp8").passed
        verdict = judge([AGREEING] * 32, "changed", layers=[found], depth=ROUTED)
        assert verdict.passed
        assert verdict.notes[0] == (
            "vLLM rounds activations to FP8 in 1 layer; the kernels here do not"
        )


@each_row(
    ("slot", "rounded", "bound"),
    [("o", "fp8", 0.074), ("moe", "fp8", 0.1275), ("o", "fp4", 0.294), ("moe", "fp4", 0.3)],
)
def test_the_bounds_of_rounded_activations(slot: str, rounded: Rounded, bound: float) -> None:
    assert layer_bound("kept", slot, "x", rounded) == pytest.approx(bound, abs=5e-4)
    assert element_bound("kept", slot, "x", rounded) == pytest.approx(bound / 3, abs=5e-4)
    assert layer_bound("changed", slot, "x", rounded) == 0.3
    assert layer_bound("kept", slot, "x") == element_bound("kept", slot, "x") == 2.0**-6


def test_a_missing_bias_fails_alone() -> None:
    """In the last of 24 layers it is less than what rounding brings in all of them."""
    wrong = model(24).changed(dropped_bias, 23).logits(tokens(0), OTHER)
    assert judge(against(stock(24), wrong), "kept", depth=DENSE).passed
    assert not judge_layer("x", "o", "kept", layer_error(dropped_bias, 0)).passed


def test_layers_that_fail_fail_the_gate() -> None:
    right = judge_layer("model.layers.0.mlp", "mlp", "kept", 0.002)
    wrong = [judge_layer(f"model.layers.{each}.mlp", "mlp", "kept", 0.5) for each in range(20)]
    verdict = judge([AGREEING] * 32, "kept", layers=[right, *wrong], depth=DENSE)
    assert not verdict.passed
    assert len(verdict.reasons) == 9
    assert verdict.reasons[0] == (
        "model.layers.0.mlp (mlp) alone is 50.00% from vLLM's result; at most 1.56% is allowed"
    )
    assert verdict.reasons[-1] == "and 12 more layers"
    for relative in (None, math.nan, math.inf):
        found = judge_layer("x", "qkv", "changed", relative)
        assert found == LayerError("x", "qkv", "changed", None, 0.3, False)
        verdict = judge([AGREEING] * 32, "changed", layers=[found], depth=DENSE)
        assert verdict.reasons == ("x (qkv) alone is not finite",)


@each_row("bits", ["kept", "changed"])
@each_row("name", ["margin_a", "kl_nats", "worst", "scale"])
@each_row("value", [math.nan, math.inf, -math.inf])
def test_a_position_that_is_not_finite_fails(bits: Bits, name: str, value: float) -> None:
    broken = replace(AGREEING, **{name: value})
    verdict = judge([AGREEING] * 31 + [broken], bits, depth=DENSE)
    assert verdict.reasons[0].startswith("1 of 32 positions have logits that are NaN")
    assert verdict.figures is not None
    assert verdict.figures.not_finite == 1
    figures = astuple(verdict.figures)
    assert all(math.isfinite(each) for each in figures if each is not None)
    verdict = judge([broken] * 32, bits, depth=DENSE)
    assert (verdict.passed, verdict.figures, verdict.bounds) == (False, None, None)


def test_too_few_positions_and_logits_without_a_difference_fail() -> None:
    same = replace(AGREEING, margin_a=0.0, kl_nats=0.0, worst=0.0, scale=0.0)
    assert "all the same" in judge([same] * 32, "kept", depth=DENSE).reasons[0]
    for count in (0, 1, 7):
        verdict = judge([AGREEING] * count, "kept", depth=DENSE)
        assert verdict.reasons == (f"{count} positions were compared; 8 are needed",)
    assert judge([AGREEING] * 8, "kept", depth=DENSE).passed


@each_row("scale", [0.01, 1.0, 4.0])
@each_row("depth", [Depth(2, routed=False), DENSE, Depth(48, routed=False)])
def test_bounds_are_what_rounding_may_do_and_no_more(scale: float, depth: Depth) -> None:
    """In the derived deviation d of a logit, of which twice is allowed.

    The difference of two logits is off by sqrt(2) d: what three times that may turn over is a tie,
    and what eight times would is none. Of the worst position six times the allowed mean of the KL
    was seen in simulations, and of the worst of 2e8 logits 6.2 deviations, in positions that differ
    by a factor of two: both pass, and what is half as much again as the bound fails.
    """
    d = rounding_deviation(depth.layers)
    calm = replace(AGREEING, margin_a=scale, kl_nats=0.0, worst=0.0, scale=scale)
    mean = (2 * d * scale) ** 2 / 2

    def passes(**other: float | int) -> bool:
        one = replace(calm, **other)  # type: ignore[arg-type]
        return judge([calm] * 63 + [one], "kept", depth=depth).passed

    assert passes(token_b=6, margin_a=3 * math.sqrt(2) * d * scale)
    assert not passes(token_b=6, margin_a=8 * math.sqrt(2) * d * scale)
    assert passes(kl_nats=6 * mean)
    assert not passes(kl_nats=24 * mean)
    assert passes(worst=2 * 6.2 * d * scale)
    assert not passes(worst=24 * d * scale)
    assert judge([replace(calm, kl_nats=0.9 * mean)] * 64, "kept", depth=depth).passed
    assert not judge([replace(calm, kl_nats=1.1 * mean)] * 64, "kept", depth=depth).passed


def test_near_ties_are_no_error_and_other_tokens_elsewhere_are() -> None:
    tie = replace(AGREEING, token_b=6, margin_a=0.01)
    verdict = judge([AGREEING] * 24 + [tie] * 8, "kept", depth=DENSE)
    assert verdict.passed
    assert verdict.figures is not None
    figures = verdict.figures
    assert (figures.agreement, figures.near_ties, figures.clear_agreement) == (0.75, 8, 1)
    verdict = judge([AGREEING] * 63 + [replace(tie, margin_a=1.0)], "kept", depth=DENSE)
    assert verdict.reasons[0].startswith("the most likely token is the same at 98.4%")
    verdict = judge([replace(AGREEING, margin_a=0.01)] * 32, "kept", depth=DENSE)
    assert verdict.passed
    assert verdict.figures is not None
    assert verdict.figures.clear_agreement is None
    assert any("near ties" in note for note in verdict.notes)


def test_a_loss_is_stated_and_does_not_fail() -> None:
    """A side that quantizes fails only where nothing of the model is left."""
    lossy = [replace(AGREEING, token_b=6, kl_nats=0.2, worst=1.5)] * 8
    verdict = judge([AGREEING] * 24 + lossy, "changed", depth=DENSE)
    assert verdict.passed
    assert "25.0% of the most likely tokens are others" in verdict.notes[0]
    assert not judge([AGREEING] * 24 + lossy, "kept", depth=DENSE).passed

    def coarse(layer: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Weights with 4 bits of mantissa less."""
        return {name: rounded(value * 17) - rounded(value * 16) for name, value in layer.items()}

    other = against(stock(24), model(24).changed(coarse).logits(tokens(0)))
    assert not judge(other, "kept", depth=DENSE).passed
    assert judge(other, "changed", depth=DENSE).passed
    another = against(stock(24), model(24, 0, 1).logits(tokens(0)))
    assert not judge(another, "changed", depth=DENSE).passed


def test_a_text_that_costs_more_fails_and_its_perplexity_is_stated() -> None:
    """Beside a divergence that is allowed: side b is more often wrong, by as much as it changes."""
    right = [
        replace(AGREEING, step=step, loss_a=1.0, loss_b=1.0 + 0.01 * (-1) ** step)
        for step in range(256)
    ]
    found = judge(right, "kept", depth=DENSE, text=True)
    assert (found.passed, found.reasons) == (True, ())
    assert found.figures is not None
    assert found.figures.text is not None
    assert found.figures.text.perplexity_a == pytest.approx(math.e)
    assert abs(found.figures.text.extra_nats) < 1e-9
    assert any("perplexity of the text: 2.718 on side a" in line for line in found.notes)
    wrong = [replace(each, loss_b=each.loss_b + 0.2) for each in right]
    [reason] = judge(wrong, "kept", depth=DENSE, text=True).reasons
    assert "costs 0.2 nats more on side b (perplexity 2.718 to 3.32)" in reason
    assert judge(wrong, "changed", depth=DENSE, text=True).passed
    assert judge(wrong, "kept", depth=DENSE).passed  # without a text there is nothing to cost
