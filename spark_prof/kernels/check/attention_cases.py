"""The cases of attention over a paged cache: what is cached where, what is new, what must come out.

All of the cache that a request may not read is NaN: what is beyond its length or before its window,
and where its new tokens go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch

from spark_prof.kernels.candidate import AttentionLayer, KernelCandidate, NormLayer
from spark_prof.kernels.check.attention_oracle import attention_oracle, coded, stored
from spark_prof.kernels.check.cases import Posed, Results
from spark_prof.kernels.check.inputs import make_activations, memory_of, surrounded
from spark_prof.kernels.check.oracles import Expected
from spark_prof.kernels.check.verdict import Judge, Judgement

_POSITIONS = 96  # rows of the table
_EPSILON = 1e-6
_SCALES = (0.037, 0.11)  # the smaller lets the largest keys be cut off
_POISON = 0x7F  # a code that is NaN
_SPARE = 3  # pages that nobody's blocks name

Lay = Literal["tokens first", "heads first", "apart"]
"""How a page lies: keys beside values, tokens or heads outermost; keys and values by themselves."""


@dataclass(frozen=True)
class AttentionCase:
    """A layer and the requests that it gets."""

    heads: int
    kv_heads: int
    size: int
    lengths: tuple[int, ...]
    window: int = 0
    sinks: bool = False
    normed: bool = False
    halves: bool = True
    rotated: int = -1  # features that are rotated; -1 for all
    page: int = 16
    lay: Lay = "tokens first"
    scale: float = 0.0  # 0 for 1 / sqrt(size)
    float_table: bool = False
    padding: tuple[int, ...] = ()  # requests without a slot, as those of length 0
    elsewhere: bool = False  # slots are not the next places of their requests' pages
    fp8: bool = False  # a cache of E4M3 codes
    codes: float = 60.0  # their standard deviation
    nan: bool = False  # among what the first request reads
    width: int = 1  # new tokens of each request, counted in its length
    may_refuse: bool = False

    @property
    def label(self) -> str:
        """For messages: `8 / 2 heads of 64, lengths 17 300, window 128, sinks`."""
        words = [f"{self.heads} / {self.kv_heads} heads of {self.size}"]
        words.append("lengths " + " ".join(map(str, self.lengths)))
        words += [f"{self.width} new tokens each"] * (self.width > 1)
        words += [f"window {self.window}"] * bool(self.window)
        words += [f"{self.rotated} rotated"] * (self.rotated >= 0)
        words += [f"pages of {self.page}"] * (self.page != 16)
        words += [f"scale {self.scale:g}"] * bool(self.scale)
        words += [self.lay] * (self.lay != "tokens first")
        words += (
            ["sinks"] * self.sinks
            + ["norms"] * self.normed
            + ["FP8"] * self.fp8
            + ["NaN"] * self.nan
        )
        words += ["neighbours rotated"] * (not self.halves) + ["float32 table"] * self.float_table
        words += ["padding"] * bool(self.padding) + ["slots elsewhere"] * self.elsewhere
        return ", ".join(words)

    def pose(self, _candidate: KernelCandidate, device: str) -> Posed:
        """The case on a device."""
        layer, (qkv, positions, *cache) = self.layer(device), self.arguments(device)
        shape = (len(self.lengths) * self.width, self.heads * self.size)
        arguments = (qkv, positions, *cache)
        return Posed(
            layer,
            arguments,
            ((shape, torch.bfloat16),),
            lambda results, judged: judge_attention(layer, arguments, results, judged),
            outputs=(2, 3),
        )

    def layer(self, device: str) -> AttentionLayer:
        """The layer; sinks are large enough to matter, and differ."""
        rotated = self.size if self.rotated < 0 else self.rotated
        steps = torch.arange(_POSITIONS)[:, None] * 0.37 ** torch.arange(rotated // 2)
        table = torch.cat([steps.cos(), steps.sin()], 1)
        dtype = torch.float32 if self.float_table else torch.bfloat16
        norms = [
            NormLayer(name, make_activations("plain", 1, self.size, seed, device)[0], _EPSILON)
            for name, seed in (("q_norm", 11), ("k_norm", 12))
        ]
        sinks = make_activations("with a common offset", 1, self.heads, 13, device)[0]
        return AttentionLayer(
            "model.layers.0.self_attn",
            self.heads,
            self.kv_heads,
            self.size,
            self.scale or self.size**-0.5,
            self.window,
            sinks if self.sinks else None,
            table.to(dtype).to(device),
            self.halves,
            norms[0] if self.normed else None,
            norms[1] if self.normed else None,
            _SCALES if self.fp8 else None,
        )

    def arguments(self, device: str) -> tuple[torch.Tensor, ...]:
        """What a call gets: pages in no order, and a cache of NaN but for what may be read."""
        requests, page, width = len(self.lengths), self.page, self.width
        generator = torch.Generator().manual_seed(sum(self.lengths))
        page_counts = [-(-length // page) for length in self.lengths]
        pages = sum(page_counts) + _SPARE
        order = torch.randperm(pages, generator=generator)
        poison, spare = int(order[0]), order[1:_SPARE].tolist()
        blocks = torch.full((requests, max(page_counts) + 2), poison, dtype=torch.int32)
        keys, values = self.cache(pages)
        slots = []
        next_page = _SPARE
        for request, length in enumerate(self.lengths):
            mine = order[next_page : next_page + page_counts[request]]
            next_page += page_counts[request]
            old = length - width
            first = max(0, old + 1 - self.window) if self.window else 0
            if request in self.padding or not length:
                slots += [-1] * width
                continue
            blocks[request, first // page : len(mine)] = mine[first // page :].int()
            cached = torch.arange(first, old)
            shape = (len(cached), self.kv_heads, self.size)
            for cache in (keys, values):
                numbers = torch.randn(shape, generator=generator)
                at = mine[cached // page], cached % page
                codes = coded(numbers * self.codes).view(torch.uint8)
                cache[at] = codes if self.fp8 else numbers.to(torch.bfloat16)
            if self.nan and request == 0:
                keys[mine[first // page], first % page, 0, self.size // 2] = torch.nan
                values[mine[first // page], first % page, -1, 1] = torch.nan
            for last in range(old, length):
                slot = int(mine[last // page]) * page + last % page
                elsewhere = spare[request % 2] * page + len(slots)
                slots.append(elsewhere if self.elsewhere else slot)
        features = (self.heads + 2 * self.kv_heads) * self.size
        positions = torch.tensor(self.lengths).repeat_interleave(width) * 5
        positions = (positions + torch.arange(width).repeat(requests)) % _POSITIONS
        return (
            surrounded(make_activations("plain", requests * width, features, 2, device)),
            positions.to(device),
            *_on(device, keys, values),
            blocks.to(device),
            torch.tensor(self.lengths, dtype=torch.int32, device=device),
            torch.tensor(slots, device=device),
        )

    def cache(self, pages: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [pages, tokens, G, D], all NaN."""
        heads, page, size = self.kv_heads, self.page, self.size
        dtype, poison = (torch.uint8, _POISON) if self.fp8 else (torch.bfloat16, torch.nan)
        if self.lay == "apart":
            whole = torch.full((2, pages, page, heads, size), poison, dtype=dtype)
            return whole[0], whole[1]
        shape = (page, heads) if self.lay == "tokens first" else (heads, page)
        both = torch.full((pages, *shape, 2 * size), poison, dtype=dtype)
        both = both if self.lay == "tokens first" else both.transpose(1, 2)
        return both[..., :size], both[..., size:]


def _on(device: str, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Both on a device, as they lie in the memory that they share."""
    whole = memory_of(keys).to(device)
    return tuple(
        torch.empty(0, dtype=cache.dtype, device=device).set_(
            whole.untyped_storage(), cache.storage_offset(), cache.shape, cache.stride()
        )
        for cache in (keys, values)
    )


def judge_attention(
    layer: AttentionLayer, arguments: tuple[torch.Tensor, ...], results: Results, judged: Judge
) -> Judgement:
    """The result, the new keys and values at their slots, and the cache as before elsewhere."""
    qkv, positions, keys, values, blocks, lengths, slots = arguments
    out, new_keys, new_values = results
    expected, *of_cache = attention_oracle(
        layer, qkv, positions, keys, values, blocks, lengths, slots
    )
    judgement = judged(out, expected)
    real = (lengths.repeat_interleave(len(qkv) // len(lengths)) > 0) & (slots >= 0)
    at = slots[real] // keys.shape[1], slots[real] % keys.shape[1]
    for name, new, exact in zip(("keys", "values"), results[1:], of_cache, strict=True):
        rows = Expected(exact.value[real], exact.error[real])
        bits = new[at]
        cache_judgement = judged(stored(bits) if bits.dtype == torch.uint8 else bits, rows)
        if cache_judgement.detail and not judgement.detail:
            judgement = Judgement(cache_judgement.used, f"{name}: {cache_judgement.detail}")
    if judgement.detail:
        return judgement
    after, before = (new_keys, new_values), (keys, values)
    now = [cache[at].clone() for cache in after]
    for cache, was in zip(after, before, strict=True):
        cache[at] = was[at]
    same = all(
        torch.equal(memory_of(cache), memory_of(was))
        for cache, was in zip(after, before, strict=True)
    )
    for cache, features in zip(after, now, strict=True):
        cache[at] = features
    return judgement if same else Judgement(None, "the cache is written beside its slots")


def attention_cases(device: str) -> Iterator[AttentionCase]:
    """Each number of tokens, sizes of heads, lengths around every border, and each edge."""
    small = AttentionCase(4, 1, 64, (1, 2, 17))
    mixed = (1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 5, 100, 128, 130)
    for tokens in range(1, 17):
        yield AttentionCase(16, 2, 64, mixed[-tokens:], sinks=tokens % 2 == 0)
    # Splits begin with 257 tokens, and have another block from each 128 tokens on.
    for length in (255, 256, 257, 258, 272, 273, 384, 385, 400, 513, 700, 1030, 2500):
        yield AttentionCase(8, 1, 64, (length,), sinks=length % 2 == 1)
    yield AttentionCase(8, 1, 64, (640, 300), sinks=True)
    for heads, kv_heads, size in (
        (2, 2, 64), (8, 2, 64), (2, 2, 80), (3, 1, 80), (4, 1, 128), (16, 2, 128),
        (16, 1, 128), (13, 1, 128), (2, 1, 256), (8, 1, 256), (16, 1, 256),
    ):  # fmt: skip
        yield AttentionCase(heads, kv_heads, size, (1, 40), halves=size != 128)
        yield AttentionCase(heads, kv_heads, size, (35, 290), normed=True, rotated=size // 4)
    yield AttentionCase(8, 1, 128, (700,), normed=True)
    yield AttentionCase(16, 1, 256, (300,), window=280, sinks=True)
    for window, lengths in (
        (1, (1, 2, 33)), (20, (19, 20, 21, 70)), (128, (127, 128, 129, 144, 500)),
        (400, (399, 401, 900)),
    ):  # fmt: skip
        yield AttentionCase(8, 1, 64, lengths, window=window)
        yield AttentionCase(8, 1, 64, lengths, window=window, sinks=True, elsewhere=True)
    yield AttentionCase(8, 1, 64, (900,), window=600, sinks=True)
    for page in (32, 48, 256):
        yield replace(small, lengths=(1, 47, 49, 260), page=page)
    for lay in ("heads first", "apart"):
        yield AttentionCase(8, 2, 64, (5, 33), lay=lay)
        yield AttentionCase(8, 2, 128, (20, 33), lay=lay, normed=True, elsewhere=True)
    yield replace(small, halves=False, rotated=32)
    yield replace(small, rotated=32, float_table=True)
    yield replace(small, normed=True, float_table=True, elsewhere=True)
    yield replace(small, elsewhere=True)
    yield replace(small, lengths=(300, 40), scale=1.0, sinks=True)
    yield replace(small, lengths=(300, 40), scale=4.0)
    yield replace(small, lengths=(40, 18), nan=True)
    yield replace(small, lengths=(0, 3, 40, 0, 20, 0), padding=(2,))
    yield replace(small, lengths=(0,))
    for case in (
        AttentionCase(8, 1, 64, (1, 17, 300), sinks=True),
        AttentionCase(8, 2, 64, (33, 150), window=20, lay="heads first"),
        AttentionCase(16, 2, 128, (2, 40), normed=True, lay="apart"),
        AttentionCase(16, 1, 256, (20, 290), halves=False, elsewhere=True),
    ):
        yield replace(case, fp8=True)
    for width in (2, 3, 4, 5, 8):
        # New tokens on both sides of a unit's, a page's and a part's border.
        few = AttentionCase(8, 1, 64, (width, 17, 18, 40)[: 16 // width], width=width)
        yield replace(few, sinks=width % 2 == 0)
        yield replace(few, lengths=(386, 0), window=300, fp8=width == 4)
        border = width // 2
        yield AttentionCase(8, 2, 128, (16 + border, 256 + border), width=width, normed=True)
    yield AttentionCase(4, 1, 64, (19, 35), window=2, width=4, elsewhere=True)
    yield AttentionCase(16, 1, 128, (30, 258, 0, 20), width=3, padding=(3,), halves=False)
    yield AttentionCase(4, 1, 64, (1030,), width=7)
    if device == "cuda":
        for width in (2, 4, 8):
            some = tuple(700 + 100 * i for i in range(16 // width))
            yield AttentionCase(64, 8, 64, some, sinks=True, width=width)
            yield AttentionCase(32, 8, 128, some, width=width)
        for tokens in (1, 2, 4, 8, 16):
            request_lengths = tuple(100 + 1900 * (i + 1) // tokens for i in range(tokens))
            for window in (0, 128):
                yield AttentionCase(64, 8, 64, request_lengths, window=window, sinks=True)
            yield AttentionCase(32, 4, 128, request_lengths, normed=True)
        yield AttentionCase(64, 8, 64, (32768, 5), sinks=True)
        yield AttentionCase(32, 4, 128, (32768, 32767, 0), normed=True)
