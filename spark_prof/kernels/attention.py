"""Attention of new tokens, up to 16 in all, with all that is between qkv and o."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from spark_prof.kernels.candidate import AttentionLayer, Layer, NormLayer, Replacement
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.operands import LARGEST_BATCH, check_tokens, multiprocessors
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import launch, prepare

LISTED = (
    {
        "names": ("layer-attention",),
        "layer": "attention",
        "does": "from qkv to o: norms, rotation, KV cache, attention of 1 to 8 new tokens each",
        "formats": ("bf16", "fp8"),
        "shapes": "heads of 16 n features, up to 256; up to 16 for the same keys; pages of 16 n",
        "operation": "attend",
        "reference": "attention_oracle:attention_oracle",
        "bytes": "keys and values that are seen, qkv and the result",
        "tolerance": "what q, k and weights of tokens in bf16 may change of an element",
        "check": "attention",
    },
)
"""For `registry.py`."""

LARGEST_SIZE = 256
WIDEST = 8
"""New tokens of a request, as steps have them that verify drafts."""
_SHARED_BYTES = 48 * 1024
"""Of a block's shared memory, on all GPUs, where nobody asks for more."""
MOST_HEADS = 16
"""Of queries, for each head of keys and values."""
_UNIT = 16
"""Tokens that a warp takes at a time: they lie in one page."""
_TOGETHER = 8
"""Features that are read with one load."""
_MOST = 2**31
"""Neither strides nor slots reach it."""


@dataclass(frozen=True, eq=False)
class Attention:
    """A layer, ready to be launched, with the memory that its launches share."""

    layer: AttentionLayer
    code: KernelCode
    norms: tuple[torch.Tensor | None, torch.Tensor | None]  # of q and k, float32 [D]
    sinks: torch.Tensor | None  # float32 [H]
    partial: torch.Tensor  # float32, of each part of a context
    counters: torch.Tensor  # int32 [16, G], of parts that are done: 0 between launches

    @property
    def device(self) -> torch.device:
        """The device that it runs on."""
        return self.counters.device

    @property
    def widest(self) -> int:
        """The most new tokens of a request: as many as there is shared memory for."""
        layer = self.layer
        shared = layer.heads // layer.kv_heads
        tiled = 8 if shared <= 8 else 16
        size, warps = layer.size, _warps(layer.size, shared)
        base = 2 * tiled * size + 8 * warps * tiled * (size // 2 + 3) + 256
        new = size * (4 if layer.fp8_scales else 6)  # a key rotated and stored, and a value
        return min(WIDEST, (_SHARED_BYTES - base) // new)


def ready(layer: AttentionLayer) -> Attention:
    """Checks a layer, compiles its kernel and takes memory for it.

    Raises:
        KernelError: the layer has sizes, dtypes or devices that the kernel does not take.
    """
    heads, kv_heads, size = layer.heads, layer.kv_heads, layer.size
    if kv_heads < 1 or heads % kv_heads or not 1 <= heads // kv_heads <= MOST_HEADS:
        raise KernelError(
            f"{heads} heads of queries and {kv_heads} of keys; this kernel takes 1 to {MOST_HEADS}"
            " to each"
        )
    if size % 16 or not 16 <= size <= LARGEST_SIZE:
        raise KernelError(
            f"heads of {size} features; this kernel takes multiples of 16 up to {LARGEST_SIZE}"
        )
    if layer.window < 0:
        raise KernelError(f"a window of {layer.window} tokens")
    table = layer.cos_sin
    rotated = table.shape[1] if table.ndim == 2 else -1
    if (
        table.dtype not in (torch.bfloat16, torch.float32)
        or rotated % 2
        or rotated > size
        or not table.is_contiguous()
    ):
        raise KernelError(
            f"cos_sin is {table.dtype} {tuple(table.shape)}; it must be contiguous bfloat16 or"
            f" float32 [positions, R], R even and up to {size}"
        )
    norms = tuple(_copied(norm and norm.weight, size, table) for norm in _norms(layer))
    sinks = _copied(layer.sinks, heads, table)
    code = _code_of(layer, 1)
    prepare([code], table.device)
    most = max(_rows(layer, tokens, table.device) for tokens in range(1, LARGEST_BATCH + 1))
    partial = table.new_empty(most * (heads // kv_heads) * (size + 2), dtype=torch.float32)
    counters = table.new_zeros((LARGEST_BATCH, kv_heads), dtype=torch.int32)
    return Attention(layer, code, (norms[0], norms[1]), sinks, partial, counters)


def _code_of(layer: AttentionLayer, width: int) -> KernelCode:
    shared, fp8 = layer.heads // layer.kv_heads, layer.fp8_scales is not None
    return attention_code(layer.size, shared, fp8, width)


def _norms(layer: AttentionLayer) -> tuple[NormLayer | None, NormLayer | None]:
    return layer.q_norm, layer.k_norm


def _copied(values: torch.Tensor | None, size: int, table: torch.Tensor) -> torch.Tensor | None:
    """A float32 copy of a weight of the layer."""
    if values is None:
        return None
    if values.device != table.device or tuple(values.shape) != (size,):
        raise KernelError(
            f"a weight of shape {tuple(values.shape)} on {values.device}; it must have ({size},)"
            f" on {table.device}, as cos_sin"
        )
    return values.detach().to(torch.float32, copy=True).contiguous()


def _splits(layer: AttentionLayer, tokens: int, longest: int, device: torch.device) -> int:
    """Into how many parts contexts are split at most: so many that all multiprocessors have some.

    longest: the most tokens that there may be. The kernel takes fewer parts for shorter contexts.
    """
    heads = layer.heads // layer.kv_heads
    warps = _warps(layer.size, heads)
    units = -(-longest // _UNIT)
    if layer.window:
        units = min(units, (layer.window - 1) // _UNIT + 2)
    if units <= 2 * warps:
        return 1
    share = (
        _blocks(layer.size, layer.heads // layer.kv_heads)
        * multiprocessors(device)
        // (layer.kv_heads * tokens)
    )
    return max(2, min(share, -(-units // warps)))


def _rows(layer: AttentionLayer, tokens: int, device: torch.device) -> int:
    """How many parts there are at most, of all requests and heads; 0 if nothing is split."""
    splits = _splits(layer, tokens, _MOST, device)
    return tokens * layer.kv_heads * splits if splits > 1 else 0


def build(layer: Layer) -> Replacement:
    """The kernel for attention, as the registry's candidates have it."""
    assert isinstance(layer, AttentionLayer)
    attention = ready(layer)
    tensors = (attention.partial, attention.counters, attention.sinks, *attention.norms)
    memory = sum(tensor.nbytes for tensor in tensors if tensor is not None)
    return Replacement(
        partial(attend, attention), LARGEST_BATCH, "kept", memory, width=attention.widest
    )


def attend(
    attention: Attention,
    qkv: torch.Tensor,
    positions: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    blocks: torch.Tensor,
    lengths: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """Writes the new tokens' keys and values and returns what their heads see, bfloat16 [M, H D].

    A request whose length is 0, or whose slot is -1, is padding: its result is 0 and nothing of it
    is read or written. Lengths, blocks, slots, positions and the cached tokens are read while the
    kernel before may still run: that one must write none of them.

    Args:
        qkv: bfloat16 [M, (H + 2 G) D], M from 1 to 16, rows at multiples of 16 bytes.
        positions: int64 [M], rows of `cos_sin`.
        keys: bfloat16 [pages, tokens of a page, G, D], a page of a multiple of 16 tokens; any
            strides that are multiples of 8, the last being 1. With `fp8_scales` E4M3 or uint8.
        values: the same, with the strides of `keys`.
        blocks: int32 [R, B], contiguous rows, the numbers of a request's pages in order.
        lengths: int32 [R], tokens of a request with the new ones, up to B pages of them. M is R,
            or a multiple of it: then the new tokens of a request follow on each other.
        slots: int64 [M], page * tokens of a page + which in it.

    Raises:
        KernelError: a dtype, shape, stride or device does not fit.
    """
    layer, device = attention.layer, attention.device
    heads, kv_heads, size = layer.heads, layer.kv_heads, layer.size
    tokens = check_tokens(qkv, (heads + 2 * kv_heads) * size, device)
    requests = lengths.shape[0] if lengths.ndim == 1 else 0
    width = tokens // requests if requests and tokens % requests == 0 else 0
    if not 1 <= width <= attention.widest:
        raise KernelError(
            f"lengths of shape {tuple(lengths.shape)} for {tokens} new tokens; each request must"
            f" have as many, up to {attention.widest}"
        )
    for name, tensor, dtype in (
        ("positions", positions, torch.int64),
        ("lengths", lengths, torch.int32),
        ("slots", slots, torch.int64),
        ("blocks", blocks, torch.int32),
    ):
        count = requests if name in ("blocks", "lengths") else tokens
        shape = (count, *tensor.shape[1:]) if name == "blocks" else (count,)
        _check_numbers(name, tensor, dtype, shape, device)
    _check_cache(attention, keys, values)
    page = keys.shape[1]
    splits = _splits(layer, tokens, blocks.shape[1] * page, device)
    q_norm, k_norm = _norms(layer)
    k_scale, v_scale = layer.fp8_scales or (1.0, 1.0)
    out = qkv.new_empty((tokens, heads * size))
    launch(
        attention.code if width == 1 else _code_of(layer, width),
        (splits, kv_heads, tokens),
        dict(attention.code.defines)["WARPS"] * 32,
        (
            qkv,
            positions,
            keys,
            values,
            blocks,
            lengths,
            slots,
            layer.cos_sin,
            *attention.norms,
            attention.sinks,
            out,
            attention.partial,
            attention.counters,
            qkv.stride(0) if tokens > 1 else 0,
            heads // kv_heads,
            page,
            *(stride // _TOGETHER for stride in keys.stride()[:3]),
            blocks.stride(0) if requests > 1 else 0,
            layer.window,
            layer.cos_sin.shape[1],
            int(layer.halves),
            int(layer.cos_sin.dtype == torch.float32),
            float(layer.scale) * k_scale,
            q_norm.epsilon if q_norm else 0.0,
            k_norm.epsilon if k_norm else 0.0,
            k_scale,
            v_scale,
        ),
        dependent=True,
    )
    return out


def _check_numbers(
    name: str,
    tensor: torch.Tensor,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    device: torch.device,
) -> None:
    dimensions = 2 if name == "blocks" else 1
    if tensor.device != device:
        raise KernelError(f"{name} is on {tensor.device}, the layer is on {device}")
    if tensor.dtype != dtype or tuple(tensor.shape) != shape or tensor.ndim != dimensions:
        raise KernelError(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)}; it must be {dtype} of {shape[0]}"
            f" rows and {dimensions} dimension{'s' if dimensions > 1 else ''}"
        )
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise KernelError(f"{name} has strides {tensor.stride()}; rows must be contiguous")


def _check_cache(attention: Attention, keys: torch.Tensor, values: torch.Tensor) -> None:
    layer, device = attention.layer, attention.device
    bf16 = layer.fp8_scales is None
    types = (torch.bfloat16,) if bf16 else (torch.uint8, torch.float8_e4m3fn)
    for name, cache in (("keys", keys), ("values", values)):
        if cache.device != device or cache.dtype not in types:
            raise KernelError(
                f"{name} are {cache.dtype} on {cache.device}; they must be {types[-1]} on {device}"
            )
        shape, strides = tuple(cache.shape), cache.stride()
        row_shape = (layer.kv_heads, layer.size)
        if len(shape) != 4 or shape[2:] != row_shape or not shape[1] or shape[1] % _UNIT:
            raise KernelError(
                f"{name} have the shape {shape}; it must be pages, {_UNIT} n tokens of a page, and"
                f" {row_shape}"
            )
        unaligned = cache.data_ptr() % (_TOGETHER * cache.element_size())
        unaligned += sum(stride % _TOGETHER for stride in strides[:3])
        if strides[3] != 1 or unaligned or max(strides[0], shape[0] * shape[1]) >= _MOST:
            raise KernelError(
                f"{name} of shape {shape} have strides {strides} from address"
                f" {cache.data_ptr():#x}: features must be contiguous and begin at multiples of"
                f" {_TOGETHER} of them, strides and tokens be less than 2^31"
            )
    if keys.shape != values.shape or keys.stride() != values.stride():
        raise KernelError(
            f"keys have strides {keys.stride()} and values {values.stride()}; they must be equal"
        )


def codes() -> Sequence[KernelCode]:
    """What is compiled for typical models, from 64 features of 8 heads to 256 of 16."""
    sizes = ((64, 8), (128, 8), (128, 16), (80, 1), (256, 8), (256, 16))
    return [
        *(attention_code(size, heads, fp8=False) for size, heads in sizes),
        *(attention_code(size, heads, fp8=True) for size, heads in (*sizes[:2], *sizes[-2:])),
        *(
            attention_code(*sizes[which], fp8=False, width=width)
            for which in (0, 1)
            for width in (2, 8)
        ),
    ]


def _warps(size: int, heads: int) -> int:
    """Warps of a block: as many as have room in shared memory for their sums of all heads."""
    tiles = 1 if heads <= 8 else 2
    return next(warps for warps in (8, 4, 2) if warps * tiles * size <= 1024)


def _blocks(size: int, heads: int) -> int:
    """Blocks of a multiprocessor: 8 warps in all, or 16 where they take the fewest registers."""
    return (16 if size <= 64 and heads <= 8 else 8) // _warps(size, heads)


def attention_code(size: int, heads: int, fp8: bool, width: int = 1) -> KernelCode:
    """What is compiled for heads of that size, so many of queries to each of keys, and a cache.

    width: new tokens of a request.
    """
    tiles = 1 if heads <= 8 else 2
    defines: tuple[tuple[str, int], ...] = (
        ("SIZE", size),
        ("HEAD_TILES", tiles),
        ("WARPS", _warps(size, heads)),
        ("MIN_BLOCKS", _blocks(size, heads)),
        ("FP8", int(fp8)),
    )
    if width > 1:
        defines = (*defines, ("WIDTH", width))
    return KernelCode("attention.cu", "attention", defines)
