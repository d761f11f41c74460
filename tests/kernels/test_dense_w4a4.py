"""Matrices in W4A4: shapes, configurations, how activations are rounded, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels import dense_w4a4
from spark_prof.kernels.candidate import Layer, LinearLayer, Replacement
from spark_prof.kernels.check.cases import DenseCase
from spark_prof.kernels.check.inputs import make_activations, make_weight
from spark_prof.kernels.check.runner import check
from spark_prof.kernels.check.w4a4_cases import W4a4Case
from spark_prof.kernels.dense_w4a4 import (
    LISTED,
    W4a4Config,
    build,
    linear_w4a4,
    pack_w4a4,
    quantize_code,
)
from spark_prof.kernels.formats import GlobalScale, NvFp4, quantize_nvfp4
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.registry import by_check
from spark_prof.kernels.runtime.compiler import FP4_PRODUCTS
from spark_prof.kernels.runtime.launch import launch
from tests.kernels.check.plain import kept, said
from tests.rows import each_row

SCALE = GlobalScale(torch.tensor(2688 / 4.0), "divides")
CONFIGURED = [
    (W4a4Config(warps=1, split=1, depth=1, min_blocks=1), 32),
    (W4a4Config(warps=4, split=2, depth=3, min_blocks=1), 17),
    (W4a4Config(warps=8, split=4, depth=2, min_blocks=2), 9),
    (W4a4Config(warps=16, split=8, depth=1, min_blocks=1), 8),
    (W4a4Config(warps=8, split=1, depth=4, min_blocks=1), 25),
]


@pytest.fixture
def fp4_device(device: str) -> str:
    """Where the kernel runs."""
    if dense_w4a4.architecture(torch.device(device)) not in ("cpu", *FP4_PRODUCTS):
        pytest.skip("this GPU has no FP4 products by mma.sync")
    return device


def a_weight(device: str = "cpu", shape: tuple[int, int] = (48, 448)) -> NvFp4:
    weight = make_weight("nvfp4", "plain", shape, 1, device)
    assert isinstance(weight, NvFp4)
    return weight


def a_layer(weight: object) -> LinearLayer:
    return LinearLayer("model.layers.0.o", "o", weight, SCALE)  # type: ignore[arg-type]


@pytest.mark.slow
@each_row(("config", "tokens"), CONFIGURED)
def test_a_configuration(config: W4a4Config, tokens: int, fp4_device: str) -> None:
    def configured(layer: Layer) -> Replacement:
        run = build(layer).run
        return kept(lambda x, bias, out: run(x, bias, out, config))

    for columns in (448, 1104):  # four units, the last half; nine, the last of 80 columns
        case = W4a4Case(DenseCase("nvfp4", (136, columns), tokens, bias=True))
        assert said(case, configured, fp4_device) == ""


def quantized(x: torch.Tensor, above: float) -> tuple[torch.Tensor, torch.Tensor]:
    """What quantize_fp4.cu makes of x: codes in the order of columns, and scales."""
    tokens, columns = x.shape
    units, padded = -(-columns // 128), -(-tokens // 8) * 8
    codes = torch.full((padded, units * 64), 255, dtype=torch.uint8, device=x.device)
    scales = torch.full((padded, units * 8), 255, dtype=torch.uint8, device=x.device)
    grid = (-(-16 * units // 128), padded, 1)
    launch(quantize_code(columns), grid, 128, (x, codes, scales, tokens, columns, above))
    # A token's words: unit, member, tile, half.
    ordered = codes.reshape(padded, units, 4, 2, 2, 4).permute(0, 1, 3, 4, 2, 5)
    return ordered.reshape(padded, units * 64), scales


@each_row("above", [672.0, 1.0, 2.0**-20, 2.0**30, 3.7e4])
def test_activations_are_rounded_bit_for_bit(above: float, fp4_device: str) -> None:
    spread = torch.linspace(-30, 12, 11)[:, None].exp2()
    x = make_activations("plain", 11, 336, 4, fp4_device).float() * spread.to(fp4_device)
    x = x.to(torch.bfloat16)
    x[3, 16:32] = torch.nan
    x[4, 5], x[4, 40], x[5, 300] = torch.nan, torch.inf, -torch.inf
    x[6] = -0.0
    codes, scales = quantized(x, above)
    expected = quantize_nvfp4(x, GlobalScale(torch.tensor(above, device=fp4_device), "divides"))
    assert torch.equal(codes[:11, :168], expected.packed)
    assert torch.equal(scales[:11, :21], expected.scales.view(torch.uint8))
    for beyond in (codes[:11, 168:], scales[:11, 21:], codes[11:], scales[11:]):
        assert not beyond.any(), "what is beside x has to be zeros"


def test_activations_are_rounded_as_by_vllm() -> None:
    """Their reference takes reciprocals, so that a value next to a tie may go the other way."""
    pytest.importorskip("vllm", minversion="0.32", reason="vLLM 0.32 or newer is not installed")
    from vllm.model_executor.layers.quantization.utils.nvfp4_emulation_utils import ref_nvfp4_quant

    x = make_activations("plain", 16, 2048, 4, "cpu")
    values, scales = ref_nvfp4_quant(x, SCALE.value, 16)
    found = quantize_nvfp4(x, SCALE)
    assert torch.equal(found.scales.float(), scales)
    theirs = values.reshape(16, -1, 16) * scales.unsqueeze(-1) / SCALE.value
    same = found.decode(torch.float32) == theirs.flatten(1)
    assert same.float().mean() > 0.999


def test_a_result_of_its_own(fp4_device: str) -> None:
    packed = pack_w4a4(a_weight(fp4_device), SCALE)
    x = make_activations("plain", 3, 448, 2, fp4_device)
    out = torch.empty(3, 48, dtype=torch.bfloat16, device=fp4_device)
    assert linear_w4a4(x, packed, out=out) is out
    assert torch.equal(linear_w4a4(x, packed), out)


@each_row("layer", [
    replace(a_layer(a_weight()), input_scale=None),
    a_layer(make_weight("mxfp4", "plain", (48, 448), 1, "cpu")),
    a_layer(torch.zeros(48, 448, dtype=torch.bfloat16)),
])  # fmt: skip
def test_a_recipe_that_is_not_w4a4_is_refused(layer: LinearLayer) -> None:
    with pytest.raises(KernelError, match="its recipe is not W4A4"):
        build(layer)


@each_row("value", [0.0, -1.0, torch.inf, torch.nan])
def test_an_input_scale_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(KernelError, match="not above zero and finite"):
        pack_w4a4(a_weight(), GlobalScale(torch.tensor(value), "divides"))


def test_33_tokens_are_refused() -> None:
    x = make_activations("plain", 33, 448, 2, "cpu")
    with pytest.raises(KernelError, match="1 to 32 tokens"):
        linear_w4a4(x, pack_w4a4(a_weight(), SCALE))


@each_row("target", ["sm_90a", "sm_100f", "sm_89"])
def test_a_gpu_without_the_instruction_is_refused(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, before anything is compiled; its cases are skipped, not failed."""
    packed = pack_w4a4(a_weight(), SCALE)
    monkeypatch.setattr(dense_w4a4, "architecture", lambda _device: target)
    with pytest.raises(KernelError, match=f"sm_121a, .* this GPU is {target}$") as caught:
        linear_w4a4(make_activations("plain", 3, 448, 2, "cpu"), packed)
    assert "\n" not in str(caught.value)
    verdicts = list(check(by_check()["w4a4"].candidate(), "cpu", lambda label: "3 tokens" in label))
    assert {(verdict.status, verdict.detail) for verdict in verdicts} == {
        ("skipped", str(caught.value))
    }


def test_the_list_names_the_targets_that_have_it() -> None:
    assert LISTED[0]["targets"] == FP4_PRODUCTS
