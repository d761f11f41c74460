"""The package's own kernels as replacements: which run, for how many tokens, and what they say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from spark_prof.kernels import dispatch
from spark_prof.kernels.candidate import Activation, Format
from spark_prof.kernels.check.inputs import make_weight
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.tuning import Tuned, TunedShape, TuningRun
from spark_prof.swaps.builders import BUILDERS
from spark_prof.swaps.layers import ExpertsLayer, LinearLayer, NormLayer, RouterLayer
from tests.emulator.compiler import compiler
from tests.kernels.check.plain import some
from tests.rows import each_row

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler: kernels do not run")

SHAPE = (48, 448)
ROUTER = RouterLayer("m", 8, 3, True, "softmax", None, 1.0)


def matrix(kind: Format = "nvfp4") -> LinearLayer:
    weight = make_weight(kind, "plain", SHAPE, 1, "cpu")
    return LinearLayer("model.q", "qkv", weight)


def mixture(**fields: object) -> ExpertsLayer:
    gate_up = make_weight("mxfp4", "plain", (8, 192, 192), 1, "cpu")
    down = make_weight("mxfp4", "plain", (8, 192, 96), 2, "cpu")
    layer = ExpertsLayer("m", gate_up, down, None, None, Activation("silu"), ROUTER)  # type: ignore[arg-type]
    return replace(layer, **fields)  # type: ignore[arg-type]


def plain_mixture(**fields: object) -> ExpertsLayer:
    shapes = {"gate_up": (8, 192, 192), "down": (8, 192, 96)}
    weights = {name: torch.randn(shapes[name]).bfloat16() for name in shapes}
    return mixture(**weights | fields)


def measured(monkeypatch: pytest.MonkeyPatch, **times: tuple[float, float]) -> None:
    """Numbers of tokens as `t1`, with our time and that of the others, measured on this CPU."""
    rows = tuple(
        Tuned(TunedShape("dense", "nvfp4", *SHAPE, int(name[1:])), {}, us, "other", other)
        for name, (us, other) in times.items()
    )
    run = TuningRun("cpu", "this CPU", "2026-01-01", "", {}, rows)
    monkeypatch.setattr(dispatch, "known_runs", lambda: (run,))


SLOT_CASES = (
    ("qkv", "48 x 448", "tokens, 48"),
    ("moe", "3 of 8 experts, 192 x 96", "4 tokens"),
    ("router", "of 32 experts", ""),
)


@pytest.mark.slow
@pytest.mark.parametrize(("slot", "words", "also"), SLOT_CASES)
def test_what_is_insisted_on_passes_the_check(slot: str, words: str, also: str) -> None:
    found = some(slot, BUILDERS["spark_prof!"], lambda label: words in label and also in label)
    assert [(v.case, v.detail) for v in found if v.status == "failed"] == []
    assert sum(v.status == "passed" for v in found) >= 5
    skipped = {v.detail for v in found if v.status == "skipped"}
    assert all("it does not take" in why for why in skipped)


@pytest.mark.parametrize("kind", ["mxfp4", "fp8"])
def test_what_is_quantized_says_what_is_lost(kind: str) -> None:
    replacement = BUILDERS[kind](matrix("bf16"))
    assert replacement is not None
    assert replacement.bits == "changed"
    assert "relative error of the weight" in replacement.line
    assert f"bf16 to {kind}" in replacement.line
    assert all(replacement.takes(tokens) for tokens in range(1, 17))
    assert not replacement.takes(17)
    x = torch.randn(3, SHAPE[1]).bfloat16()
    exact = x.double() @ matrix("bf16").weight.double().T  # type: ignore[union-attr]
    off = float((replacement.run(x, None).double() - exact).norm() / exact.norm())
    assert 0.005 < off < 0.25


def test_it_runs_where_it_was_measured_to_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, t1=(1.0, 2.0), t4=(1.0, 2.0), t8=(1.0, 0.5))
    replacement = BUILDERS["spark_prof"](matrix())
    taken = [tokens for tokens in range(1, 20) if replacement.takes(tokens)]
    assert taken == [1, 2, 3, 4]
    assert "1 to 4 tokens" in replacement.line
    assert replacement.bits == "kept"
    assert replacement.bytes > 0


def test_experts_in_bf16_are_read_where_they_are() -> None:
    layer = plain_mixture()
    replacement = BUILDERS["spark_prof!"](layer)
    assert replacement.bytes == 0
    assert "bf16 8 experts, 192 x 192" in replacement.line
    x, logits = torch.randn(3, 192).bfloat16(), torch.randn(3, 8)
    before = replacement.run(x, logits).clone()
    layer.down.mul_(2)  # type: ignore[union-attr]
    assert torch.equal(replacement.run(x, logits), before * 2)


def test_it_says_where_else_it_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, t1=(1.0, 2.0), t2=(1.0, 0.9), t3=(1.0, 1.5), t5=(1.0, 2.0))
    assert "1 and 3 to 5 tokens" in BUILDERS["spark_prof"](matrix()).line


def test_what_was_measured_to_be_slower_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, t1=(1.0, 0.5), t16=(1.0, 0.5))
    with pytest.raises(KernelError, match="other is faster"):
        BUILDERS["spark_prof"](matrix())
    with pytest.raises(KernelError, match="other is faster"):
        BUILDERS["spark_prof!"](matrix())


def test_where_nobody_measured_it_does_not_run_by_itself() -> None:
    for layer in (matrix(), mixture()):
        with pytest.raises(KernelError, match=r"nothing was measured on cpu; spark_prof! runs it"):
            BUILDERS["spark_prof"](layer)


@each_row(
    ("kernel", "layer", "said"),
    [
        ("spark_prof", NormLayer("n", torch.ones(8), 1e-6), "no kernel for a norm alone"),
        ("mxfp4", NormLayer("n", torch.ones(8), 1e-6), "which this layer is not"),
        ("fp8", matrix(), "is quantized already; give spark_prof"),
        ("mxfp4", LinearLayer("q", "qkv", torch.full((16, 32), torch.nan).bfloat16()), "NaN"),
        ("mxfp4", LinearLayer("q", "qkv", torch.ones(16, 32)), "only bfloat16"),
        ("mxfp4", LinearLayer("q", "qkv", torch.ones(16, 16).bfloat16()), "32"),
        ("spark_prof!", replace(ROUTER, top_k=17, experts=32), "cannot choose 17 of 32"),
        ("spark_prof!", replace(ROUTER, experts=513), "512 experts"),
        ("spark_prof!", replace(ROUTER, correction=torch.zeros(8)), "sigmoid"),
        ("spark_prof!", mixture(router=replace(ROUTER, top_k=9)), "cannot choose 9 of 8"),
        ("spark_prof!", mixture(gate_up=torch.ones(8, 192, 192)), "in the same format"),
        ("spark_prof!", plain_mixture(stays=False), "lays the BF16 experts of this layer out anew"),
    ],
)
def test_what_cannot_be_is_one_line(kernel: str, layer: object, said: str) -> None:
    with pytest.raises(KernelError, match=said) as caught:
        BUILDERS[kernel](layer)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_vllm_may_lay_its_weights_out_anew_afterwards() -> None:
    """What was packed is not read again; BF16 weights are, where they are."""
    layer = mixture(
        gate_up_bias=torch.randn(8, 192).bfloat16(), down_bias=torch.randn(8, 192).bfloat16()
    )
    # What `make_weight` made is shared between tests.
    gate_up, down = (
        replace(w, packed=w.packed.clone(), scales=w.scales.clone())  # type: ignore[union-attr]
        for w in (layer.gate_up, layer.down)
    )
    layer = replace(layer, gate_up=gate_up, down=down)
    replacement = BUILDERS["spark_prof!"](layer)
    assert replacement is not None
    x, logits = torch.randn(2, 192).bfloat16(), torch.randn(2, 8).bfloat16()
    before = replacement.run(x, logits)
    for tensor in (gate_up.packed, gate_up.scales, down.packed, down.scales):
        tensor.zero_()
    for bias in (layer.gate_up_bias, layer.down_bias):
        assert bias is not None
        bias.zero_()
    assert torch.equal(replacement.run(x, logits), before)


def test_the_scale_and_the_scoring_of_a_router_count() -> None:
    logits = torch.randn(2, 8).bfloat16()
    correction = torch.linspace(0.4, -0.4, 8)
    router = RouterLayer("r", 8, 3, False, "sigmoid", correction, 2.5)
    replacement = BUILDERS["spark_prof"](router)
    assert replacement is not None
    weights, experts = replacement.run(logits)
    scores = logits.double().sigmoid()
    expected = (scores + correction).topk(3).indices
    assert torch.equal(experts.long(), expected)
    torch.testing.assert_close(weights.double(), scores.gather(1, expected) * 2.5)
