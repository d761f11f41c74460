"""The trained model: its loss, what quantizing costs, and that the gate tells faults by it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import astuple
from functools import cache

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import torch
from torch.nn import functional

from spark_prof.ab.accuracy_gate import Depth, GateVerdict, Position, judge
from spark_prof.kernels.candidate import Activation, RouterLayer
from spark_prof.kernels.formats import GlobalScale, MxFp4, NvFp4
from spark_prof.kernels.moe import PackedExperts, moe, pack_experts
from spark_prof.swaps.tap import compare_logits
from tests.emulator.compiler import compiler
from tests.rows import each_row
from tests.small_moe.model import (
    EXPERTS,
    FOLDER,
    HELD_OUT,
    LAYERS,
    TOP_K,
    Layer,
    Model,
    bits_per_byte,
    from_tensors,
    load,
    load_file,
    windows,
)

quantize = pytest.importorskip("tests.small_moe.quantize", reason="no compressed-tensors")

TEXT = windows(HELD_OUT.read_bytes())
SOME = TEXT[::8]
FEW = TEXT[::32]
MOST_MORE = {"nvfp4": 1.01, "mxfp4": 1.02, "fp8": 1.005}
"""Of the perplexity of a byte, times that of BF16."""

Change = Callable[[Layer], None]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Keeps torch to one thread: its threads wait longer for each other than small sums take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def stated() -> dict[str, tuple[float, float]]:
    """What README.md says of each checkpoint: all windows, and every eighth."""
    rows = re.findall(r"\| (\w+) \| ([\d.]+) \| ([\d.]+) \|", (FOLDER / "README.md").read_text())
    return {name: (float(every), float(some)) for name, every, some in rows}


@cache
def checkpoint(name: str) -> dict[str, torch.Tensor]:
    """The tensors of the model in BF16 or another format."""
    tensors = load_file(FOLDER / "model.safetensors")
    return tensors if name == "bf16" else quantize.quantized(tensors, name)


@cache
def weights(name: str) -> dict[str, torch.Tensor]:
    """Those of a checkpoint, float32."""
    found: dict[str, torch.Tensor] = quantize.decoded(checkpoint(name))
    return found


def decoded(name: str) -> Model:
    """The model of a checkpoint, float32."""
    return from_tensors(weights(name))


@cache
def loss(name: str) -> float:
    return bits_per_byte(decoded(name), SOME)


def test_bf16_is_stored() -> None:
    for tensor, other in zip(
        decoded("bf16").tensors(), load(FOLDER / "model.safetensors").tensors(), strict=True
    ):
        assert torch.equal(tensor, other)


@pytest.mark.slow
@each_row("name", ["bf16", *MOST_MORE])
def test_the_loss_is_what_is_stated(name: str) -> None:
    assert loss(name) == pytest.approx(stated()[name][1], abs=1e-3)


@pytest.mark.slow
@each_row("name", ["bf16", *MOST_MORE])
def test_the_loss_of_all_windows_is_what_is_stated(name: str) -> None:
    assert bits_per_byte(decoded(name), TEXT) == pytest.approx(stated()[name][0], abs=1e-3)


@each_row("name", MOST_MORE)
def test_quantizing_costs_little(name: str) -> None:
    assert 1 < 2 ** (loss(name) - loss("bf16")) < MOST_MORE[name]


@each_row("name", MOST_MORE)
def test_the_formats_say_what_the_library_says(name: str) -> None:
    scheme, stored = quantize.FORMATS[name]
    module = "model.layers.1.mlp.experts.3.down_proj"
    state = {
        key.removeprefix(f"{module}."): value
        for key, value in checkpoint(name).items()
        if key.startswith(module)
    }
    library = quantize.BaseCompressor.get_value_from_registry(stored)
    theirs = library.decompress(state, quantize.preset_name_to_scheme(scheme, ["Linear"]))["weight"]
    ours = decoded(name).layers[1].down[3]
    # It computes in BF16.
    torch.testing.assert_close(ours, theirs.float(), rtol=2.0**-7, atol=0)


def test_the_arithmetic_is_that_of_transformers() -> None:
    models = pytest.importorskip("transformers.models.qwen3_moe", reason="no transformers")
    theirs = models.Qwen3MoeForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    tokens = TEXT[:2, :96]
    with torch.no_grad():
        expected = theirs(tokens).logits
    torch.testing.assert_close(decoded("bf16").logits(tokens), expected, rtol=1e-3, atol=1e-3)


def positions(a: torch.Tensor, b: torch.Tensor) -> list[Position]:
    return [
        Position(step, row, *astuple(found))
        for row, tokens in enumerate(FEW)
        for step, found in enumerate(compare_logits(a[row], b[row], tokens[1:].tolist()))
    ]


@cache
def right() -> torch.Tensor:
    """The logits of NVFP4 in float32."""
    return decoded("nvfp4").logits(FEW[:, :-1])


@cache
def floor() -> tuple[Position, ...]:
    """The same model, its embeddings off by a rounding here and there, as `swaps.disturb` does."""
    model = decoded("nvfp4").to(torch.bfloat16)
    model.embedding.view(torch.int16).view(-1)[::17].bitwise_xor_(1)
    return tuple(positions(right(), model.to(torch.float32).logits(FEW[:, :-1])))


def verdict(logits: torch.Tensor) -> GateVerdict:
    """The gate's of logits that shall be the same as NVFP4's."""
    return judge(
        positions(right(), logits), "kept", floor(), depth=Depth(LAYERS, routed=True), text=True
    )


@pytest.mark.slow
def test_other_roundings_pass() -> None:
    found = verdict(decoded("nvfp4").to(torch.bfloat16).logits(FEW[:, :-1]))
    assert found.passed, found.reasons
    assert found.figures is not None
    assert found.figures.text is not None
    assert found.figures.agreement is not None
    assert 0.98 < found.figures.agreement < 1
    assert found.figures.near_ties < found.figures.positions / 4
    assert 0 < abs(found.figures.text.extra_nats) < 0.01


def doubled_scale(layer: Layer) -> None:
    layer.down = 2 * layer.down


def swapped_experts(layer: Layer) -> None:
    order = [1, 0, *range(2, EXPERTS)]
    layer.gate_up, layer.down = layer.gate_up[order], layer.down[order]


def swapped_choice(layer: Layer) -> None:
    layer.router = layer.router[[1, 0, *range(2, EXPERTS)]]


def swapped_gate_and_up(layer: Layer) -> None:
    layer.gate_up = torch.cat(layer.gate_up.chunk(2, 1)[::-1], 1)


def swapped_nibbles(layer: Layer) -> None:
    layer.down = layer.down.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


def neighbours_scale(layer: Layer) -> None:
    """Each block of 16 with the scale of the one before it."""
    blocks = layer.gate_up.unflatten(-1, (-1, 16))
    scales = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-9)
    layer.gate_up = (blocks / scales * scales.roll(1, -2)).flatten(-2)


def lost_expert(layer: Layer) -> None:
    layer.down = layer.down.clone()
    layer.down[5] = 0


def bare_keys(layer: Layer) -> None:
    """Keys normalized without a weight."""
    layer.k_norm = torch.ones_like(layer.k_norm)


FAULTS = (
    doubled_scale,
    swapped_experts,
    swapped_choice,
    swapped_gate_and_up,
    swapped_nibbles,
    neighbours_scale,
    lost_expert,
    bare_keys,
)


@pytest.mark.slow
@each_row("fault", FAULTS)
def test_every_planted_fault_fails_by_the_perplexity(fault: Change) -> None:
    model = decoded("nvfp4")
    for layer in model.layers:
        fault(layer)
    found = verdict(model.logits(FEW[:, :-1]))
    assert not found.passed
    assert any(line.startswith("a token of the text costs") for line in found.reasons)


@pytest.mark.slow
@each_row("fault", [doubled_scale, swapped_experts, swapped_choice, swapped_nibbles])
@each_row("number", [0, LAYERS - 1])
def test_a_fault_in_one_layer_fails(fault: Change, number: int) -> None:
    model = decoded("nvfp4")
    fault(model.layers[number])
    assert not verdict(model.logits(FEW[:, :-1])).passed


def stacked(name: str, number: int, *projections: str) -> NvFp4 | MxFp4:
    """The experts of a layer as the checkpoint has them."""
    named = checkpoint(name)

    def of_all(kind: str) -> torch.Tensor:
        return torch.stack(
            [
                torch.cat(
                    [
                        named[f"model.layers.{number}.mlp.experts.{expert}.{which}_proj.{kind}"]
                        for which in projections
                    ]
                )
                for expert in range(EXPERTS)
            ]
        )

    packed, scales = of_all("weight_packed"), of_all("weight_scale")
    if name == "mxfp4":
        return MxFp4(packed, scales)
    above = of_all("weight_global_scale")[:, :1, None]
    return NvFp4(packed, scales, GlobalScale(above, "divides"))


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler: kernels do not run on the CPU")
@each_row("name", ["nvfp4", "mxfp4"])
def test_the_kernels_on_the_cpu_say_the_same(name: str) -> None:
    model = decoded(name).to(torch.bfloat16)
    packed: dict[int, PackedExperts] = {
        id(layer): pack_experts(
            stacked(name, number, "gate", "up"),
            stacked(name, number, "down"),
            None,
            None,
            Activation("silu"),
        )
        for number, layer in enumerate(model.layers)
    }
    router = RouterLayer("", EXPERTS, TOP_K, True, "softmax", None, 1.0)

    def by_kernels(layer: Layer, x: torch.Tensor, of_expert: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, 1)
        logits = functional.linear(rows, layer.router).float()
        return moe(rows, logits, packed[id(layer)], router).view(x.shape)

    tokens = TEXT[5:6, :17]
    kernels, torchs = (model.logits(tokens[:, :-1], block) for block in (by_kernels, None))
    losses = [
        functional.cross_entropy(found.float()[0], tokens[0, 1:]).item()
        for found in (kernels, torchs)
    ]
    assert losses[0] == pytest.approx(losses[1], abs=0.02)
    assert 0 < (kernels - torchs).float().norm() < 0.01 * torchs.float().norm()
