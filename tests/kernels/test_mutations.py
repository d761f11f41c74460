"""The gate sees what it is there for: kernels and packed weights with one thing wrong each fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels import (
    attention,
    dense,
    dense_w4a4,
    moe,
    normed_experts,
    normed_linear,
    normed_mlp,
    routing,
)
from spark_prof.kernels.candidate import Activation, ActivationName, ExpertsLayer, Format
from spark_prof.kernels.check.attention_cases import AttentionCase
from spark_prof.kernels.check.cases import DenseCase, MoeCase
from spark_prof.kernels.check.inputs import Sizes, Weight
from spark_prof.kernels.check.normed_cases import NormedCase
from spark_prof.kernels.check.normed_experts_cases import NormedExpertsCase
from spark_prof.kernels.check.normed_mlp_cases import NormedMlpCase
from spark_prof.kernels.check.w4a4_cases import W4a4Case
from spark_prof.kernels.dense import linear
from spark_prof.kernels.formats import Fp8Rows, GlobalScale, NvFp4
from spark_prof.kernels.pack import PackedLinear, pack_linear
from spark_prof.kernels.runtime.code import SOURCES, KernelCode
from spark_prof.kernels.runtime.launch import launch
from tests.emulator import compiler as emulator
from tests.kernels.check.plain import kept, said
from tests.rows import each_row

FORMATS: tuple[Format, ...] = ("nvfp4", "mxfp4", "fp8")
SHAPE = (48, 448)
EXPERTS = Sizes(8, 3, 192, 96)
LONG = Sizes(4, 2, 1664, 640)
"""Of more units than a warp has in flight."""
ROUTED = Sizes(66, 3, 768, 32)

Edit = Callable[[torch.Tensor], object]


def edited(values: torch.Tensor, edit: Edit) -> torch.Tensor:
    """A copy of the bytes with something done to them."""
    raw = values.clone().view(torch.uint8)
    edit(raw)
    return raw.view(values.dtype)


def with_codes(weight: Weight, edit: Edit) -> Weight:
    if isinstance(weight, Fp8Rows):
        return replace(weight, values=edited(weight.values, edit))
    return replace(weight, packed=edited(weight.packed, edit))


def with_scales(weight: Weight, edit: Edit) -> Weight:
    if isinstance(weight, Fp8Rows):
        scales = weight.scales.clone()
        edit(scales.view(-1, 1))
        return replace(weight, scales=scales)
    return replace(weight, scales=edited(weight.scales, edit))


def doubled(scales: torch.Tensor) -> None:
    """Twice one scale: an exponent bit more in E4M3, one more in E8M0."""
    if scales.dtype == torch.float32:
        scales[5, 0] *= 2
    else:
        scales[5, 1] += 1 if int(scales.max()) > 0x50 else 8


def copied(to: Any, source: Any) -> Edit:
    """What copies one place to another."""

    def edit(values: torch.Tensor) -> None:
        values[to] = values[source].clone()

    return edit


WRONG_WEIGHTS: dict[str, Callable[[Weight], Weight]] = {
    "a scale doubled": lambda w: with_scales(w, doubled),
    "nibbles or neighbours swapped": lambda w: with_codes(
        w, lambda raw: raw.copy_(raw.flip(-1) if isinstance(w, Fp8Rows) else raw << 4 | raw >> 4)
    ),
    "one code's sign": lambda w: with_codes(w, lambda raw: raw[7, 3:4].bitwise_xor_(0x80)),
    "one code's last bit": lambda w: with_codes(w, lambda raw: raw[47, 222:223].bitwise_xor_(0x10)),
    "two rows swapped": lambda w: with_codes(
        w, lambda raw: raw[:16].copy_(raw[[1, 0, *range(2, 16)]])
    ),
    "rows of a stack transposed": lambda w: with_codes(
        w, lambda raw: raw[:16].copy_(raw[:16].reshape(2, 8, -1).transpose(0, 1).reshape(16, -1))
    ),
    "scales a row further": lambda w: with_scales(w, lambda raw: raw.copy_(raw.roll(1, 0))),
}
"""What is done to a weight before it is packed; the oracle knows the right one."""


@each_row("kind", FORMATS)
@each_row("what", WRONG_WEIGHTS)
def test_wrong_weights_fail(what: str, kind: Format, device: str) -> None:
    def mutated(layer: Any) -> Any:
        return dense.build(replace(layer, weight=WRONG_WEIGHTS[what](layer.weight)))

    assert "wrong" in said(DenseCase(kind, SHAPE, 3), mutated, device)


@each_row("convention", ["divides", "multiplies"])
def test_a_global_scale_the_other_way_round_fails(convention: str, device: str) -> None:
    recipe = "plain" if convention == "divides" else "a global scale that multiplies"

    def mutated(layer: Any) -> Any:
        weight = layer.weight
        assert isinstance(weight, NvFp4)
        assert weight.global_scale.convention == convention
        other = "multiplies" if convention == "divides" else "divides"
        scale = GlobalScale(weight.global_scale.value, other)  # type: ignore[arg-type]
        return dense.build(replace(layer, weight=replace(weight, global_scale=scale)))

    case = DenseCase("nvfp4", SHAPE, 3, recipe)  # type: ignore[arg-type]
    assert "wrong" in said(case, mutated, device)


WRONG_PACKING: dict[str, Callable[[PackedLinear], PackedLinear]] = {
    "two words swapped": lambda p: replace(
        p, weights=edited(p.weights, lambda raw: raw[:8].copy_(raw[[4, 5, 6, 7, 0, 1, 2, 3]]))
    ),
    "two stacks swapped": lambda p: replace(
        p, weights=p.weights.reshape(3, -1).roll(1, 0).flatten()
    ),
    "two lanes swapped": lambda p: replace(
        p, weights=edited(p.weights, lambda raw: raw[:32].copy_(raw[:32].roll(16)))
    ),
    "one row's scale": lambda p: replace(
        p,
        row_scale=torch.where(torch.arange(48, device=p.row_scale.device) == 40, 1.01, 1.0)
        * p.row_scale,
    ),
}
"""What is done to a packed weight."""


@each_row("kind", FORMATS)
@each_row("what", WRONG_PACKING)
def test_wrong_packing_fails(what: str, kind: Format, device: str) -> None:
    def mutated(layer: Any) -> Any:
        packed = WRONG_PACKING[what](pack_linear(layer.weight))
        return kept(lambda x, bias, out: linear(x, packed, bias, out))

    assert "wrong" in said(DenseCase(kind, SHAPE, 3), mutated, device)


def halves_swapped(layer: ExpertsLayer) -> ExpertsLayer:
    """Gate where up should be, and up where gate should be."""

    def swapped(rows: torch.Tensor) -> torch.Tensor:
        return edited(rows, lambda raw: raw.copy_(raw.roll(raw.shape[1] // 2, 1)))

    gate_up = replace(
        layer.gate_up, packed=swapped(layer.gate_up.packed), scales=swapped(layer.gate_up.scales)
    )
    return replace(layer, gate_up=gate_up)


WRONG_LAYERS: dict[str, Callable[[ExpertsLayer], ExpertsLayer]] = {
    "gate and up swapped": halves_swapped,
    "the bias of gate and up dropped": lambda layer: replace(layer, gate_up_bias=None),
    "the bias of down dropped": lambda layer: replace(layer, down_bias=None),
    "SiLU for SwiGLU": lambda layer: replace(layer, activation=Activation("silu")),
    "the next expert's weights": lambda layer: replace(
        layer, down=replace(layer.down, packed=layer.down.packed.roll(1, 0))
    ),
}


@each_row("kind", ["nvfp4", "mxfp4"])
@each_row("what", WRONG_LAYERS)
def test_wrong_layers_fail(what: str, kind: Any, device: str) -> None:
    case = MoeCase(kind, EXPERTS, 5, "swiglu")
    assert "wrong" in said(case, lambda layer: moe.build(WRONG_LAYERS[what](layer)), device)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Mutant:
    """One change to a kernel's source: of a pattern, where it is found first."""

    does: str  # what the kernel then does wrong
    file: str
    pattern: str
    by: str
    seen: str = "elements wrong"  # what the gate says
    kind: Format = "nvfp4"  # of the weights
    activation: ActivationName = "swiglu"  # that experts are tried with
    first: str = ""  # of the gate's cases, the one that sees it


OUTSIDE = "outside of every tensor"
MUTANTS = [
    Mutant("no bias", "dense.cu", r"bf16_to_float\(bias\[row\]\)", "0.f"),
    Mutant("no scale of rows", "dense.cu", r"row_scale\[row\]", "1.f"),
    Mutant("no barrier", "dense.cu", r"sync_block\(\);", "", "a race"),
    Mutant("stores beyond", "dense.cu", r"row < rows && token < tokens", "true", OUTSIDE),
    Mutant("a row's scale for another's", "weights.cuh", r"\(pairs\[1\], lower",
           "(pairs[1], upper"),
    Mutant("a factor", "dense.cu", r"FORMAT == BF16 \? 1\.f", "FORMAT == BF16 ? 2.f", kind="bf16"),
    Mutant("the upper row twice", "weights.cuh", r"\(v & 1\) \* eighth", "0ll", kind="bf16"),
    Mutant("rows swapped", "weights.cuh", r"word_of\(below, 2 \* half\)",
           "word_of(above, 2 * half)", kind="bf16"),
    Mutant("another order of columns than the activations'", "weights.cuh",
           r"eighth \+ part \* 64", "eighth + (part ^ 1) * 64", kind="bf16"),
    Mutant("stacks too near", "weights.cuh", r"FORMAT == BF16 \? 32 \*", "FORMAT == BF16 ? 16 *",
           kind="bf16"),
    Mutant("columns beyond the last", "weights.cuh", r"< COLUMNS : part < 2",
           "< COLUMNS : part < 4", OUTSIDE, kind="bf16"),
    Mutant("no SiLU", "dense.cu", r"gate / \(1\.f \+ expf\(-gate\)\)", "gate", first="mlp"),
    Mutant("a row for another's", "dense.cu", r"\(row & 7\)", "(row & 3)", first="mlp"),
    Mutant("a scale for another's", "dense.cu", r"\* scale\[i\]\[UP\]", "* scale[i][0]", kind="fp8",
           first="mlp"),
    Mutant("up beside gate", "dense.cu", r"IN_PLACE \? stacks", "IN_PLACE ? 1", kind="bf16",
           first="mlp"),
    Mutant("stacks of gate alone", "dense.cu", r"WEIGHT_STRIDE / 2", "WEIGHT_STRIDE", OUTSIDE,
           "bf16", first="mlp"),
    Mutant("no residual", "rows.cuh", r"add\(own, before", "add(own, zeros()"),
    Mutant("epsilon outside of the root", "rows.cuh", r" \+ epsilon\)", ") + epsilon"),
    Mutant("no epsilon", "rows.cuh", r" \+ epsilon\)", ")"),
    Mutant("the mean of a padded row", "rows.cuh", r"1\.f / COLUMNS", "1.f / ROW_STRIDE"),
    Mutant("no weight of the norm", "rows.cuh", r" \* factors\[k\]", ""),
    Mutant("the first factors for all", "rows.cuh", r"if \(i\) load_floats", "if (0) load_floats"),
    Mutant("a warp's squares left out", "rows.cuh", r"warp < TEAM;", "warp < TEAM - 1;"),
    Mutant("the first row for all", "rows.cuh", r"row_of\[token\]\[8 \*", "row_of[0][8 *",
           "a race"),
    Mutant("another row's residual", "rows.cuh", r"residual \+ token", "residual + 0"),
    Mutant("one stream for all", "rows.cuh", r"stream \+ token", "stream + 0"),
    Mutant("no barrier", "rows.cuh", r"sync_block\(\);", "", "a race"),
    Mutant("sums written over", "dense.cu", r"first \+ step < stacks\) sync", "false) sync",
           "a race", first="normed"),
    Mutant("no scale of blocks", "weights.cuh", r"\* \(i < 2 \? upper : lower\)", "",
           kind="fp8_blocks"),
    Mutant("no zero points", "weights.cuh", r"0x5410u", "0x1010u", kind="int4"),
    Mutant("zero points in the scales", "weights.cuh", r"0xFFFF0000u : 0xFFFFFFFFu",
           "0xFFFFFFFFu : 0xFFFFFFFFu", kind="int4"),
    Mutant("another stack's scales", "gate_up.cu", r"scales \+ (1ll \* )?place \* SCALE_STRIDE",
           "scales + (place ^ 4) * SCALE_STRIDE", kind="fp8_blocks"),
    Mutant("no limit of gate", "gate_up.cu", r"gate > limit \? limit : gate", "gate"),
    Mutant("no lower limit of up", "gate_up.cu", r"up < -limit \? -limit : up", "up"),
    Mutant("no 1 beside up", "gate_up.cu", r"\(up \+ 1\.f\)", "up"),
    Mutant("no alpha", "gate_up.cu", r"-alpha \* gate", "-gate"),
    Mutant("up for gate", "gate_up.cu", r"activate\(gate, up,", "activate(up, gate,"),
    Mutant("another expert's first weights", "gate_up.cu", r"expert \* stacks \+ min", "min"),
    Mutant("no bound at 0", "gate_up.cu", r"up < 0\.f \? 0\.f : up", "up", activation="relu2"),
    Mutant("no square", "gate_up.cu", r"up \* up", "up", activation="relu2"),
    Mutant("no weights of choices", "down.cu", r"choice_weight\[\w+\];", "1.f;"),
    Mutant("no bias", "down.cu", r"\+ offset\[[01]\]", ""),
    Mutant("weights of earlier units", "weights.cuh", r"at\.weights \+= units \* UNIT_STEP;", "",
           first="long"),
    Mutant("scales of earlier units", "weights.cuh", r"at\.scales \+= units \* UNIT_SCALES;", "",
           first="long"),
    Mutant("x of earlier units", "dense.cu", r"now_x \+= RING \* UNIT_COLUMNS", "now_x += 0",
           first="long"),
    Mutant("x of earlier units", "gate_up.cu", r"ahead_x \+= RING \* UNIT_COLUMNS;", "",
           first="long"),
    Mutant("x of earlier units", "down.cu", r"ahead_x \+= UNIT_COLUMNS;", "", first="long"),
    Mutant("the first expert's alone", "gate_up.cu", r"\+\+task\.active;", "", first="long"),
    Mutant("a warp's sums left out", "down.cu", r"warp < WARPS;", "warp < WARPS - 1;"),
    Mutant("a warp's squares left out", "norm.cu", r"warp < THREADS / 32;", "warp < 1;"),
    Mutant("no residual", "norm.cu", r"residual \? load_16", "false ? load_16"),
    Mutant("no epsilon", "norm.cu", r" \+ epsilon\)", ")"),
    Mutant("a window one token too wide", "attention.cu", r"max\(0, length - window\)",
           "max(0, length - window - 1)"),
    Mutant("no sinks", "attention.cu", r"= sinks && threadIdx", "= false && threadIdx"),
    Mutant("a part without its last unit", "attention.cu", r"min\(units, \(split \+ 1\) \* each\)",
           "min(units, (split + 1) * each - 1)"),
    Mutant("a part that begins late", "attention.cu", r"split \* each \+ warp_id",
           "split * each + (split > 0) + warp_id"),
    Mutant("the last part left out", "attention.cu", r"i >= active\)", "i >= active - 1)"),
    Mutant("the value to the next slot", "attention.cu", r"values\[to", "values[to + token_stride",
           "values: "),
    Mutant("new tokens from the cache", "attention.cu", r"token < length - 1 - before;", "true;",
           first="drafts"),
    Mutant("new tokens as long", "attention.cu", r"- \(WIDTH - 1 - before\)", "", first="drafts"),
    Mutant("new keys rotated alike", "attention.cu", r"is_key && which < before", "false",
           first="drafts"),
    Mutant("one new value for all", "attention.cu", r"new_value\[new_at\([^]]+\]",
           "new_value[before]", first="drafts"),
    Mutant("a counter that stays", "attention.cu", r"counters\[pair\] = 0;", ";", "a second run"),
    Mutant("keys normed as queries", "attention.cu", r"is_key \? k_weights", "false ? k_weights"),
    Mutant("codes cut off", "cached.cuh", r"bits \+ 0x7FFFFu \+ \(bits >> 20 & 1u\)", "bits",
           "keys: ", kind="fp8"),
    Mutant("halves of codes swapped", "cached.cuh", "0x1404u", "0x0414u", kind="fp8"),
    Mutant("no scale of values", "attention.cu", r"factor = v_scale", "factor = 1.f", kind="fp8"),
    Mutant("rotated backwards", "heads.cuh", r"- head\.high\[j\]", "+ head.high[j]"),
    Mutant("no barrier", "attention.cu", r"sync_block\(\);", "", "a race"),
    Mutant("too early", "attention.cu", r"wait_for_previous_kernel\(\);\n    auto value_of",
           "auto value_of", "never waits"),
    Mutant("no bias", "router.cu", r"logit \+= offset;", ""),
    Mutant("logits not rounded", "router.cu", '#include "choice.cuh"',
           '#undef FLOAT_LOGITS\n#define FLOAT_LOGITS 1\n#include "choice.cuh"'),
    Mutant("a shared expert scaled", "choice.cuh", r"expf\(-gate\)\)", "expf(-gate)) * scale"),
    Mutant("no gate of a shared expert", "choice.cuh", r"expf\(-gate\)", "0.f"),
    Mutant("another expert for all", "choice.cuh", r"number = EXPERTS \+ lane", "number = lane"),
    Mutant("logits cut", "router.cu", r"float_to_bf16\(logit\)", "u16(bits_of_float(logit) >> 16)"),
    Mutant("the counter stays", "router.cu", r"\*finished = 0u;", ";", "does not run"),
    Mutant("no residual in the norm", "router.cu", r"(?<=add\(own\[t\], )held\[t\]", "none"),
    Mutant("no residual in what is written", "router.cu",
           r"(?s)(square\[t\] \+=.*?add\(own\[t\], )held\[t\]", r"\1none"),
    Mutant("no epsilon", "router.cu", r" \+ epsilon\)", ")"),
    Mutant("no weight of the norm", "router.cu", r"inverse \* float_of_bits\(bits\[k\]\)",
           "inverse"),
    Mutant("a warp's squares left out", "router.cu", r"warp < WARPS; \+\+warp\) total",
           "warp < 1; ++warp) total"),
    Mutant("squares written over", "router.cu", r"begin / TOGETHER & 1", "0", "a race"),
    Mutant("experts beyond the last", "router.cu", r"inside && first \+ i < EXPERTS", "inside",
           OUTSIDE),
    Mutant("the softmax of all", "choice.cuh", r"if \(renormalize\)", "if (false)"),
    Mutant("each choice the first", "choice.cuh", r"\+ choice_of\[\w+(\.x)?\]\[user\]", ""),
    Mutant("rows' scales swapped", "dense_w4a4.cu", r"unit\.scales\.y : unit\.scales\.x",
           "unit.scales.x : unit.scales.y"),
    Mutant("the first tile's scales for both", "dense_w4a4.cu", r"<1, 1>", "<0, 1>"),
    Mutant("the next tile's scales of tokens", "dense_w4a4.cu", r"<0, 0>", "<0, 1>"),
    Mutant("scales of tokens for one tile", "dense_w4a4.cu", r"\(member & 1\) \* 4", "0"),
    Mutant("halves of a tile swapped", "dense_w4a4.cu", r"codes\.x, codes\.y", "codes.y, codes.x"),
    Mutant("another unit's scales", "dense_w4a4.cu", r"\+ 8 \* index\)", "+ 8 * (index & ~1))"),
    Mutant("the first tokens for all", "dense_w4a4.cu", r"x \+ 8 \* tile \* X_ROW", "x"),
    Mutant("no unit behind the ring", "dense_w4a4.cu", r"if \(next < UNITS\)", "if (false)"),
    Mutant("no scale of rows", "dense_w4a4.cu", r"sum \* row_scale\[row\]", "sum"),
    Mutant("no bias", "dense_w4a4.cu", r"bf16_to_float\(bias\[row\]\)", "0.f"),
    Mutant("a warp's sums left out", "dense_w4a4.cu", r"part < SPLIT;", "part < SPLIT - 1;"),
    Mutant("no barrier", "dense_w4a4.cu", r"sync_block\(\);", "", "a race"),
    Mutant("stores beyond", "dense_w4a4.cu", r"row >= rows \|\| token >= tokens", "false", OUTSIDE),
    Mutant("too early", "dense_w4a4.cu", r"wait_for_previous_kernel\(\);", "", "never waits"),
    Mutant("half a block's maximum", "quantize_fp4.cu",
           r"fmaxf\(largest, shuffle_xor\(largest, 1u\)\)", "largest"),
    Mutant("a maximum with its sign", "quantize_fp4.cu", r"fabsf\(values\[k\]\)", "values[k]"),
    Mutant("5 as the largest code", "quantize_fp4.cu", r"largest / 6\.f", "largest / 5.f"),
    Mutant("a scale not rounded", "quantize_fp4.cu", r"e4m3_to_float\(scale\) / above",
           "largest / 6.f"),
    Mutant("neighbours swapped", "quantize_fp4.cu", r"\(values\[k\], values\[k \+ 1\]\)",
           "(values[k + 1], values[k])"),
    Mutant("members and halves swapped", "quantize_fp4.cu",
           r"member \* 4 \+ tile \* 2 \+ half", "member * 4 + half * 2 + tile"),
    Mutant("one scale for two blocks", "quantize_fp4.cu", r"eight / 2\]", "eight / 4 * 2]"),
    Mutant("columns beyond the last", "quantize_fp4.cu", r"8 \* eight < COLUMNS && ", "", OUTSIDE),
    Mutant("tokens beyond the last", "quantize_fp4.cu", r" && token < tokens", "", OUTSIDE),
]  # fmt: skip


ATTENTION = ("attention.cu", "heads.cuh", "cached.cuh")
ROUTING = ("router.cu", "choice.cuh")
FP4 = ("dense_w4a4.cu", "quantize_fp4.cu")


def gate(
    file: str, kind: Format = "nvfp4", activation: ActivationName = "swiglu", first: str = ""
) -> str:
    """The verdict on what is launched now, from the cases that the file matters to."""
    cases = dict(cases_of(file, kind, activation))
    first = first or ("normed" if file == "rows.cuh" else "")
    tried = (cases[name]() for name in sorted(cases, key=lambda name: name != first))
    return next(filter(None, tried), "")


def cases_of(
    file: str, kind: Format, activation: ActivationName
) -> Iterator[tuple[str, Callable[[], str]]]:
    if file == "norm.cu":
        normed = NormedCase(kind, (32, 512), 9, bias=True, epsilon=0.5)
        yield "normed", partial(said, normed, normed_linear.build)
    elif file in FP4:
        case = DenseCase(kind, (40, 3216), 11, bias=True)
        yield "matrix", partial(said, W4a4Case(case), dense_w4a4.build)
    elif file in ATTENTION:
        attended = AttentionCase(4, 1, 64, (330, 20), 310, sinks=True, normed=True)
        attended = replace(attended, fp8=kind == "fp8")
        yield "one token", partial(said, attended, attention.build)
        yield "drafts", partial(said, replace(attended, width=3), attention.build)
    elif file in ("dense.cu", "rows.cuh", "weights.cuh"):
        case = DenseCase(kind, (48 if kind == "bf16" else 40, 448), 3, bias=True)
        normed = NormedCase(kind, (224, 1600), 3, bias=True, epsilon=0.5)
        yield "matrix", partial(said, case, dense.build)
        yield "long", partial(said, DenseCase(kind, (32, 6400), 2), dense.build)
        yield "normed", partial(said, normed, normed_linear.build)
        if kind != "int4":
            yield "mlp", partial(said, NormedMlpCase(kind, (448, 32), 3), normed_mlp.build)
    else:
        if file in ROUTING:
            yield "routing", routing_gate
        if file != "router.cu":
            yield "experts", partial(said, MoeCase(kind, EXPERTS, 5, activation), moe.build)
            yield "long", partial(said, MoeCase(kind, LONG, 2, activation), moe.build)


def routing_gate() -> str:
    """The verdict on a router before experts, of which every token takes one or none."""
    # What nobody writes is then no number of an expert, rather than the one from before.
    torch.use_deterministic_algorithms(True)
    try:
        case = NormedExpertsCase("nvfp4", ROUTED, 5, "swiglu", "ties", epsilon=0.5)
        shared = replace(ROUTED, experts=ROUTED.experts + 1)
        gated = NormedExpertsCase("nvfp4", shared, 5, always=1, gated=True)
        return said(case, normed_experts.build) or said(gated, normed_experts.build)
    finally:
        torch.use_deterministic_algorithms(False)


def launched_from(folder: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has operations take those sources from a folder that lie there.

    They are compiled without optimization, which takes half the time: each runs once. A router's
    sums over hundreds of columns would take longer than that saves.
    """

    def changed(code: KernelCode, *arguments: Any, **named: Any) -> None:
        source = folder / code.source
        launch(replace(code, source=str(source)) if source.is_file() else code, *arguments, **named)

    for module in (attention, dense, dense_w4a4, moe, normed_experts, normed_linear, routing):
        monkeypatch.setattr(module, "launch", changed)
    if file not in ROUTING:
        flags = (*emulator._FLAGS, "-O0")  # the last one counts
        monkeypatch.setattr(emulator, "_FLAGS", flags)


def copies(folder: Path, file: str) -> Sequence[Path]:
    """Copies of a source and of those through which a kernel includes it."""
    through: tuple[str, ...] = ("split.cuh", "rows.cuh", "dense.cu")
    through = ("attention.cu",) if file in ATTENTION else through
    through = ("routing.cu", "router.cu") if file == "choice.cuh" else through
    names = dict.fromkeys((file, *(() if file.endswith(".cu") else through)))
    for name in names:
        (folder / name).write_bytes((SOURCES / name).read_bytes())
    return [folder / name for name in names]


needs_compiler = pytest.mark.skipif(emulator.compiler() is None, reason="no C++ compiler")


@pytest.mark.slow
@needs_compiler
@each_row("mutant", MUTANTS)
def test_a_mutant_fails(mutant: Mutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = copies(tmp_path, mutant.file)[0]
    source = path.read_text(encoding="utf-8")
    changed, found = re.subn(mutant.pattern, mutant.by, source, count=1)
    assert found, "the source has changed: change the mutant with it"
    path.write_text(changed, encoding="utf-8")
    launched_from(tmp_path, mutant.file, monkeypatch)
    assert mutant.seen in gate(mutant.file, mutant.kind, mutant.activation, mutant.first)


@pytest.mark.slow
@needs_compiler
@each_row(("file", "kind"), sorted({(mutant.file, mutant.kind) for mutant in MUTANTS}))
def test_the_source_itself_passes(
    file: str, kind: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies(tmp_path, file)
    launched_from(tmp_path, file, monkeypatch)
    assert gate(file, kind) == ""
