"""What the cases are made of: weights, activations, logits, layers; tensors amid poison.

Weights are made of codes and scales and not by quantizing, so that all occur.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import torch

from spark_prof.kernels.candidate import (
    Activation,
    ActivationName,
    ExpertsLayer,
    Format,
    RouterLayer,
)
from spark_prof.kernels.formats import (
    FP8_BLOCK,
    Fp8Blocks,
    Fp8Rows,
    GlobalScale,
    Int4Groups,
    MxFp4,
    NvFp4,
    QuantizedWeight,
    TwoStacks,
    pack_nibbles,
)

BAND = 512
"""Elements before and behind; a multiple of what any alignment asks for."""
_POISON = {torch.bfloat16: 0x7FA5, torch.float32: 0x7FA5A5A5, torch.int32: 0x7FA5A5A5}
"""NaNs that no arithmetic makes."""


class GuardedResult:
    """A result to be written: poisoned, with poison before and behind."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
        self._bits = torch.int16 if dtype == torch.bfloat16 else torch.int32
        self._poison = _POISON[dtype]
        size = int(torch.Size(shape).numel())
        self._whole = torch.full(
            (size + 2 * BAND,), self._poison, dtype=self._bits, device=device
        ).view(dtype)
        self.tensor = self._whole[BAND : BAND + size].view(shape)

    def problem(self) -> str:
        """What was written beside the result, or left out of it; empty if nothing."""
        poisoned = self._whole.view(self._bits) == self._poison
        beside = int((~poisoned[:BAND]).sum() + (~poisoned[-BAND:]).sum())
        if beside:
            return f"{beside} elements written outside of the result"
        left = int(poisoned[BAND:-BAND].sum())
        return f"{left} of {self.tensor.numel()} elements not written" if left else ""


def surrounded(values: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides between bands of NaN; what lies between its rows is NaN too."""
    steps = zip(values.shape, values.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in steps)
    whole = torch.full((extent + 2 * BAND,), torch.nan, dtype=values.dtype, device=values.device)
    copy = whole.as_strided(values.shape, values.stride(), BAND)
    copy.copy_(values)
    return copy


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of the memory that a tensor is part of."""
    raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return raw.set_(tensor.untyped_storage())


def copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same tensors in a copy of their memory, which they share as before."""
    memory = {tensor.untyped_storage().data_ptr(): memory_of(tensor) for tensor in tensors}
    copied = {address: whole.clone().untyped_storage() for address, whole in memory.items()}
    return [
        torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
            copied[tensor.untyped_storage().data_ptr()],
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
        )
        for tensor in tensors
    ]


Tokens = Literal["plain", "NaN and infinity", "apart", "zeros", "with a common offset"]
"""What the rows hold: normal numbers; some NaN and infinities; magnitudes from 2^-60 to 2^60; a row
of zeros between others; numbers of which few cancel."""
Layout = Literal["contiguous", "rows apart", "columns apart", "transposed"]


def make_activations(
    kind: Tokens, tokens: int, columns: int, seed: int, device: str, layout: Layout = "contiguous"
) -> torch.Tensor:
    """A bfloat16 tensor [tokens, columns]; the same for the same arguments."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(tokens, columns, generator=generator)
    if kind == "NaN and infinity":
        values[0, columns // 3] = torch.nan
        values[tokens // 2, columns - 1] = torch.inf
        values[-1, 0] = -torch.inf
    elif kind == "apart":
        values *= torch.exp2(torch.linspace(-60, 60, tokens))[:, None]
    elif kind == "zeros":
        values[tokens // 2] = 0.0
        values[:, 1::3] = -0.0
    elif kind == "with a common offset":
        values += 3.0
    return _laid_out(values.to(torch.bfloat16).to(device), layout)


def _laid_out(values: torch.Tensor, layout: Layout) -> torch.Tensor:
    if layout == "rows apart":
        return torch.cat([values, values.flip(0)], dim=1)[:, : values.shape[1]]
    if layout == "columns apart":
        return values.repeat_interleave(2, dim=1)[:, ::2]
    if layout == "transposed":
        return values.T.contiguous().T
    return values


Weight: TypeAlias = QuantizedWeight | torch.Tensor | TwoStacks
"""A matrix [N, K] or a stack of matrices; a tensor is one in bfloat16."""


def decode(weight: Weight, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The values of a weight."""
    return weight.to(dtype) if isinstance(weight, torch.Tensor) else weight.decode(dtype)


Recipe = Literal[
    "plain",
    "zero blocks",
    "one element a row",
    "scales apart by row",
    "scales apart in a row",
    "negative scales",
    "NaN scales",
    "a global scale for each shard",
    "a global scale that multiplies",
]
"""`plain` has all codes and scales such as checkpoints have; see `EDGES` for the others."""

_BLOCK = {"nvfp4": 16, "mxfp4": 32, "fp8": 1}
_NVFP4_EDGES = (0x00, 0x01, 0x07, 0x08, 0x38, 0x7E)
"""E4M3: 0, the smallest and the largest subnormal, the smallest normal, 1 and 448."""
_MXFP4_EDGES = (0, 1, 3, 64, 127, 160, 200)
"""E8M0: 2^-127, which is subnormal in bfloat16, to 2^73."""


@lru_cache(maxsize=2)
def make_weight(
    kind: Format, recipe: Recipe, shape: tuple[int, ...], seed: int, device: str
) -> Weight:
    """A weight [..., N, K] in that format; the same for the same arguments.

    The last two are kept, as large ones take longer to make than to check: do not change them.
    """
    if kind == "bf16":
        return decode(make_weight("nvfp4", recipe, shape, seed, device), torch.bfloat16)
    if kind == "fp8_blocks":
        rows = make_weight("fp8", recipe, shape, seed, device)
        assert isinstance(rows, Fp8Rows)
        return _in_blocks(rows, recipe)
    if kind == "int4":
        return _int4(recipe, shape, seed, device)
    generator = torch.Generator().manual_seed(seed)
    codes = _bytes(generator, (*shape[:-1], shape[-1] // (1 if kind == "fp8" else 2)), 0, 256)
    low, high = {"nvfp4": (0x30, 0x48), "mxfp4": (119, 126), "fp8": (1, 2)}[kind]
    scales = _bytes(generator, (*shape[:-1], shape[-1] // _BLOCK[kind]), low, high)
    if kind == "fp8":
        codes = torch.where((codes & 0x7F) == 0x7F, 0x38, codes).to(torch.uint8)
    if recipe in EDGES:
        EDGES[recipe](_Raw(kind, codes, scales))
    return _weight(kind, recipe, codes.to(device), scales.to(device))


@dataclass(frozen=True)
class _Raw:
    """The bytes of a weight, to be changed in place."""

    kind: Format
    codes: torch.Tensor
    scales: torch.Tensor


def part_of(weight: Weight, part: slice | int) -> Weight:
    """Some rows of a matrix, or a matrix of a stack by its number."""
    if isinstance(weight, torch.Tensor):
        return weight[part]
    if isinstance(weight, TwoStacks):
        assert isinstance(part, int), "rows are of one matrix"
        return weight.matrix(part)
    if isinstance(weight, Fp8Rows):
        return Fp8Rows(weight.values[part], weight.scales[part])
    if isinstance(weight, Fp8Blocks):
        if isinstance(part, int):
            return Fp8Blocks(weight.values[part], weight.scales[part], weight.rows)
        return Fp8Blocks(weight.values[part], weight.scales_of(1)[part], rows=1)
    if isinstance(weight, Int4Groups):
        raws = (weight.packed[part], weight.scales[part], weight.zeros[part])
        return Int4Groups(*raws, group=weight.group)
    if isinstance(weight, MxFp4):
        return MxFp4(weight.packed[part], weight.scales[part])
    value = weight.global_scale.value
    value = value[part] if value.ndim == weight.packed.ndim else value
    scale = GlobalScale(value, weight.global_scale.convention)
    return NvFp4(weight.packed[part], weight.scales[part], scale)


def _zero_blocks(raw: _Raw) -> None:
    """Every second block is 0 or -0, and the last row is 0 throughout."""
    block = 16 if raw.kind == "fp8" else _BLOCK[raw.kind] // 2
    blocks = raw.codes.unflatten(-1, (-1, block))
    blocks[..., 0::4, :] = 0
    blocks[..., 2::4, :] = 0x80 if raw.kind == "fp8" else 0x88
    raw.codes[..., -1, :] = 0


def _one_element(raw: _Raw) -> None:
    """Each row has one element that is not 0, at another column: a wrong place shows fully."""
    rows = torch.arange(raw.codes.shape[-2])
    per_byte = 1 if raw.kind == "fp8" else 2
    columns = rows * 11 % (raw.codes.shape[-1] * per_byte)
    nonzero = raw.codes[..., rows, columns // per_byte]
    if raw.kind == "fp8":
        nonzero = nonzero & 0xBF | 0x08
    else:
        nonzero = (nonzero | 0x11) & torch.where(columns % 2 == 1, 0xF0, 0x0F).to(torch.uint8)
    raw.codes.zero_()
    raw.codes[..., rows, columns // per_byte] = nonzero


def _apart_by_row(raw: _Raw) -> None:
    """All scales of a row are one edge of the format."""
    if raw.kind == "fp8":
        raw.codes[..., 0::2, :] &= 0x87
        return
    edges = torch.tensor(_NVFP4_EDGES if raw.kind == "nvfp4" else _MXFP4_EDGES, dtype=torch.uint8)
    raw.scales[:] = edges[torch.arange(raw.scales.shape[-2]) % len(edges)][:, None]


def _apart_in_row(raw: _Raw) -> None:
    """Large scales beside small ones; in every second row the large blocks are 0."""
    if raw.kind == "fp8":
        raw.codes[..., 1::2] &= 0x87
        return
    low, high = (0x01, 0x7E) if raw.kind == "nvfp4" else (64, 160)
    raw.scales[..., 0::2], raw.scales[..., 1::2] = high, low
    raw.codes.unflatten(-1, (-1, _BLOCK[raw.kind] // 2))[..., 1::2, 0::2, :] = 0


def _negative(raw: _Raw) -> None:
    """Every third block's scale is negative, which only E4M3 can be."""
    raw.scales[..., 1::3] |= 0x80


def _nan(raw: _Raw) -> None:
    """The second row, of experts only the first one's, holds a NaN; other rows have none."""
    if raw.kind == "fp8":
        first = raw.codes if raw.codes.ndim == 2 else raw.codes[0]
        first[1, 5] = 0x7F
    else:
        scales = raw.scales if raw.scales.ndim == 2 else raw.scales[0]
        scales[1, 1] = 0x7F if raw.kind == "nvfp4" else 0xFF


EDGES: dict[str, Callable[[_Raw], None]] = {
    "zero blocks": _zero_blocks,
    "one element a row": _one_element,
    "scales apart by row": _apart_by_row,
    "scales apart in a row": _apart_in_row,
    "negative scales": _negative,
    "NaN scales": _nan,
}
"""What changes codes and scales, in place; the docstrings say how."""


def _weight(kind: Format, recipe: Recipe, codes: torch.Tensor, scales: torch.Tensor) -> Weight:
    if kind == "mxfp4":
        return MxFp4(codes, scales)
    if kind == "nvfp4":
        return NvFp4(codes, scales.view(torch.float8_e4m3fn), _global_scale(recipe, codes))
    rows = torch.arange(codes.shape[:-1].numel(), device=codes.device).reshape(codes.shape[:-1])
    spread = 40 if recipe == "scales apart by row" else 3
    row_scales = torch.exp2(rows % spread - spread / 2).to(torch.float32) * 0.0127
    if codes.ndim == 3:
        row_scales = row_scales / 128  # gates of some 5 then
    return Fp8Rows(codes.view(torch.float8_e4m3fn), row_scales)


def _in_blocks(weight: Fp8Rows, recipe: Recipe) -> Fp8Blocks:
    """The same elements, their scales those of some rows and no two of a row the same."""
    columns = -(-weight.shape[-1] // FP8_BLOCK)
    of_rows = weight.scales[..., ::FP8_BLOCK, None]
    apart = 12 if recipe == "scales apart in a row" else 0.3
    steps = torch.arange(columns, device=weight.device) % 3 - 1
    factors = torch.exp2(apart * steps)
    numbers = torch.arange(of_rows.shape[-2], device=weight.device)[:, None]
    return Fp8Blocks(weight.values, (of_rows * factors * (1 + numbers % 5 / 8)).to(torch.float32))


def _int4(recipe: Recipe, shape: tuple[int, ...], seed: int, device: str) -> Int4Groups:
    """Groups of 128 columns with zero points of their own."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = shape
    codes = _bytes(generator, shape, 0, 16)
    zeros = _bytes(generator, (rows, -(-columns // 128)), 0, 16)
    scales = (1 + _bytes(generator, tuple(zeros.shape), 0, 128) / 128) / 128
    nothing = zeros.repeat_interleave(128, 1)[:, :columns]
    if recipe == "zero blocks":
        blocks = torch.arange(columns) // 16 % 2 == 0
        codes = torch.where(blocks, nothing, codes)
        codes[-1] = nothing[-1]
    elif recipe == "one element a row":
        one = torch.arange(columns) == (torch.arange(rows) * 11 % columns)[:, None]
        codes = torch.where(one, nothing ^ 8, nothing)
    elif recipe == "scales apart by row":
        scales *= torch.exp2(torch.arange(rows) % 40 - 20.0)[:, None]
    elif recipe == "scales apart in a row":
        scales[:, ::2] *= 2.0**-30
    elif recipe == "NaN scales":
        scales[1, -1] = torch.nan
    parts = (pack_nibbles(codes), scales.to(torch.bfloat16), zeros)
    return Int4Groups(*(part.to(device) for part in parts))


def _global_scale(recipe: Recipe, codes: torch.Tensor) -> GlobalScale:
    """One for all, one for each of three shards, or one for each expert.

    Those of experts make gates of some 5, so that SwiGLU's limit of 7 tells.
    """
    if recipe == "a global scale for each shard":
        rows = codes.shape[-2]
        shards = (rows - 2 * (rows // 4), rows // 4, rows // 4)
        values = torch.tensor([310.0, 41.5, 2500.0], device=codes.device)
        if codes.ndim == 3:
            values = values.expand(codes.shape[0], 3) / 30
        return GlobalScale.of_shards(values, shards, "divides")
    if recipe == "a global scale that multiplies":
        return GlobalScale(torch.tensor(0.00317, device=codes.device), "multiplies")
    if codes.ndim == 2:
        return GlobalScale(torch.tensor(310.0, device=codes.device), "divides")
    experts = torch.arange(codes.shape[0], device=codes.device).to(torch.float32)
    return GlobalScale((10 + experts % 5)[:, None, None], "divides")


def _bytes(generator: torch.Generator, shape: tuple[int, ...], low: int, high: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=generator, dtype=torch.uint8)


Logits = Literal[
    "plain", "the same experts", "ties", "far apart", "masked", "NaN", "every expert in turn"
]
"""Normal numbers; all tokens alike; few different values; from -300 to 300; -infinity for half of
the experts; a NaN in the first token, which may then take any experts that there are; each token
another share of all experts."""


def make_logits(
    kind: Logits, tokens: int, experts: int, dtype: torch.dtype, device: str
) -> torch.Tensor:
    """Logits [tokens, experts]; the same for the same arguments."""
    generator = torch.Generator().manual_seed(experts)
    values = torch.randn(tokens, experts, generator=generator) * 2
    if kind == "the same experts":
        values = values[:1].repeat(tokens, 1)
    elif kind == "ties":
        values = values.round().clamp(-1, 1)
    elif kind == "far apart":
        values *= 75
    elif kind == "masked":
        values[:, 1::2] = -torch.inf
    elif kind == "every expert in turn":
        share = -(-experts // tokens)
        values += 16 * (torch.arange(experts) // share == torch.arange(tokens)[:, None])
    elif kind == "NaN":
        values[0, experts // 2] = torch.nan
    return values.to(dtype).to(device)


@dataclass(frozen=True)
class Sizes:
    """Of a layer: experts, how many a token takes, its width H and the width I within an expert."""

    experts: int
    top_k: int
    hidden: int
    inner: int


def make_layer(
    kind: Format,
    sizes: Sizes,
    activation: ActivationName,
    device: str,
    recipe: Recipe = "plain",
) -> ExpertsLayer:
    """A layer of that format; the same for the same arguments. SwiGLU has biases."""
    joins = Activation(activation)
    rows = joins.halves * sizes.inner
    up_shape = (sizes.experts, rows, sizes.hidden)
    down_shape = (sizes.experts, sizes.hidden, sizes.inner)
    gate_up = make_weight(kind, recipe, up_shape, 1, device)
    down = make_weight(kind, recipe, down_shape, 2, device)
    up_bias, down_bias = (
        make_activations("plain", sizes.experts, width, 3, device)
        if activation == "swiglu"
        else None
        for width in (rows, sizes.hidden)
    )
    name = "model.layers.0.mlp"
    router = RouterLayer(name, sizes.experts, sizes.top_k, True, "softmax", None, 1.0)
    return ExpertsLayer(name, gate_up, down, up_bias, down_bias, joins, router)
