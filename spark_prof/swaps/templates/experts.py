"""Experts of your own, to begin with: routing, gate and up, the activation, down, the sum.

    spark-prof kernels check THIS_FILE.py:build --slot moe
    spark-prof kernels bench THIS_FILE.py:build --slot moe
    spark-prof ab --b moe=THIS_FILE.py:build -- MODEL

`build` is called once for each mixture of the model, in every process of the engine, with the
weights as the checkpoint has them. What it returns is called for each step instead of vLLM's
kernels, and while CUDA graphs are captured: it must not wait for the GPU, keep memory, use another
stream or write to its arguments. The check tells.

These kernels are right and short. They are not fast: tokens that share an expert read it again.
"""

from __future__ import annotations

import torch

from spark_prof.kernels.formats import MxFp4, NvFp4, e8m0_decode
from spark_prof.swaps.layers import ExpertsLayer, Layer, Replacement, RouterLayer, has_triton

try:
    import triton
    import triton.language as tl
except ImportError:  # then plain PyTorch computes
    triton = None

MOST_TOKENS = 16


def build(layer: Layer) -> Replacement | None:
    """The kernel for one mixture, or None to leave it to vLLM."""
    if not isinstance(layer, ExpertsLayer):
        return None
    if not isinstance(layer.gate_up, NvFp4 | MxFp4) or not isinstance(layer.down, NvFp4 | MxFp4):
        return None
    if not has_triton(layer.gate_up.packed):
        return _plain(layer, layer.gate_up.decode().float(), layer.down.decode().float())
    if layer.activation.name == "relu2":
        return None
    gate_up, down = _copied(layer.gate_up), _copied(layer.down)
    biases = layer.gate_up_bias, layer.down_bias
    gate_up_bias, down_bias = (None if bias is None else bias.clone() for bias in biases)
    router, activation = layer.router, layer.activation
    _, hidden, inner = layer.down.shape
    top_k, swiglu = router.top_k, activation.name == "swiglu"

    def run(x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        # x is contiguous [M, H] in the model's dtype, logits are [M, E]; the result is new, [M, H].
        weights, experts = _routed(logits, router)
        between = x.new_empty((len(x) * top_k, inner))
        y = torch.empty_like(x)
        _gate_up[(len(x) * top_k, triton.cdiv(inner, 32))](
            x,
            *gate_up,
            gate_up_bias,
            experts,
            between,
            activation.alpha,
            activation.limit,
            INNER=inner,
            COLUMNS=hidden,
            GROUP=hidden // gate_up[1].shape[-1],
            TOP_K=top_k,
            HAS_BIAS=gate_up_bias is not None,
            SWIGLU=swiglu,
            BLOCK_ROWS=32,
            BLOCK_BYTES=64,
        )
        _down[(len(x), triton.cdiv(hidden, 32))](
            between,
            *down,
            down_bias,
            experts,
            weights,
            y,
            ROWS=hidden,
            COLUMNS=inner,
            GROUP=inner // down[1].shape[-1],
            TOP_K=top_k,
            HAS_BIAS=down_bias is not None,
            BLOCK_ROWS=32,
            BLOCK_BYTES=64,
        )
        return y

    memory = sum(t.nbytes for t in (*gate_up, *down))
    # Beyond MOST_TOKENS vLLM's own kernels run.
    return Replacement(run, MOST_TOKENS, bits="kept", bytes=memory, line="my own experts")


def _routed(logits: torch.Tensor, router: RouterLayer) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights float32 and experts int64, [M, k]. Unlike topk, a stable sort breaks ties."""
    values = logits.float()
    if router.scoring == "sigmoid":
        scores = choice = values.sigmoid()
    else:
        scores, choice = values.softmax(-1), values
    if router.correction is not None:
        choice = choice + router.correction
    experts = choice.sort(dim=-1, descending=True, stable=True).indices[:, : router.top_k]
    experts = experts.contiguous()
    weights = scores.gather(1, experts)
    if router.renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * router.scale, experts


def _plain(layer: ExpertsLayer, gate_up: torch.Tensor, down: torch.Tensor) -> Replacement:
    activation = layer.activation

    def run(x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        weights, experts = _routed(logits, layer.router)
        both = torch.einsum("mh,mkih->mki", x.float(), gate_up[experts])
        if layer.gate_up_bias is not None:
            both = both + layer.gate_up_bias[experts]
        gate, up = both.chunk(2, -1)
        if activation.name == "relu2":
            between = both.relu().square()
        elif activation.name == "swiglu":
            gate, up = (
                gate.clamp(max=activation.limit),
                up.clamp(-activation.limit, activation.limit),
            )
            between = gate * torch.sigmoid(activation.alpha * gate) * (up + 1)
        else:
            between = gate * torch.sigmoid(gate) * up
        # What lies between two kernels is in the model's dtype.
        between = between.to(x.dtype).float()
        results = torch.einsum("mki,mkhi->mkh", between, down[experts])
        if layer.down_bias is not None:
            results = results + layer.down_bias[experts]
        return (results * weights[..., None]).sum(1).to(x.dtype)

    return Replacement(run, MOST_TOKENS, bits="kept", bytes=gate_up.nbytes + down.nbytes)


def _copied(weight: NvFp4 | MxFp4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, bfloat16 scales of blocks, which hold both formats' exactly, float32 ones of rows.

    A copy: vLLM lays its own out anew.
    """
    ones = torch.ones((*weight.packed.shape[:-1], 1), device=weight.packed.device)
    if isinstance(weight, MxFp4):
        scales = e8m0_decode(weight.scales).bfloat16()
    else:
        scales, ones = weight.scales.float().bfloat16(), weight.global_scale.apply(ones)
    return weight.packed.clone(), scales, ones.contiguous()


if triton is not None:

    @triton.jit
    def _value(code):  # type: ignore[no-untyped-def]
        # E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and the sign.
        exponent, mantissa = (code >> 1) & 3, code & 1
        size = tl.where(exponent == 0, mantissa * 0.5, (2 + mantissa) * (1 << exponent) * 0.25)
        return tl.where(code & 8 != 0, -size, size)

    @triton.jit  # type: ignore[untyped-decorator]
    def _products(  # type: ignore[no-untyped-def]
        x,
        codes,
        scales,
        row_scales,
        row,
        is_row,
        COLUMNS: tl.constexpr,  # noqa: N803
        GROUP: tl.constexpr,  # noqa: N803
        BLOCK_ROWS: tl.constexpr,  # noqa: N803
        BLOCK_BYTES: tl.constexpr,  # noqa: N803
    ):
        # x times each of these rows of the weight. A byte holds two columns, the even one low.
        start = row.to(tl.int64)[:, None]
        total = tl.zeros((BLOCK_ROWS,), tl.float32)
        for first in range(0, COLUMNS // 2, BLOCK_BYTES):
            byte = first + tl.arange(0, BLOCK_BYTES)
            is_byte = byte < COLUMNS // 2
            even = tl.load(x + 2 * byte, mask=is_byte, other=0.0).to(tl.float32)
            odd = tl.load(x + 2 * byte + 1, mask=is_byte, other=0.0).to(tl.float32)
            both = is_row[:, None] & is_byte[None, :]
            code = tl.load(codes + start * (COLUMNS // 2) + byte[None, :], mask=both, other=0)
            code = code.to(tl.int32)
            place = start * (COLUMNS // GROUP) + (2 * byte // GROUP)[None, :]
            scale = tl.load(scales + place, mask=both, other=0.0).to(tl.float32)
            product = _value(code & 15) * even[None, :] + _value(code >> 4) * odd[None, :]
            total += tl.sum(product * scale, 1)
        return total * tl.load(row_scales + row, mask=is_row, other=0.0)

    @triton.jit  # type: ignore[untyped-decorator]
    def _gate_up(  # type: ignore[no-untyped-def]
        x,
        codes,
        scales,
        row_scales,
        bias,
        experts,
        between,
        alpha,
        limit,
        INNER: tl.constexpr,  # noqa: N803
        COLUMNS: tl.constexpr,  # noqa: N803
        GROUP: tl.constexpr,  # noqa: N803
        TOP_K: tl.constexpr,  # noqa: N803
        HAS_BIAS: tl.constexpr,  # noqa: N803
        SWIGLU: tl.constexpr,  # noqa: N803
        BLOCK_ROWS: tl.constexpr,  # noqa: N803
        BLOCK_BYTES: tl.constexpr,  # noqa: N803
    ):
        # One program an expert of a token and BLOCK_ROWS rows of gate, with those of up.
        pair = tl.program_id(0)
        row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        is_row = row < INNER
        of_expert = tl.load(experts + pair) * (2 * INNER)
        x += pair // TOP_K * COLUMNS
        gate = _products(
            x, codes, scales, row_scales, of_expert + row, is_row,
            COLUMNS, GROUP, BLOCK_ROWS, BLOCK_BYTES,
        )  # fmt: skip
        up = _products(
            x, codes, scales, row_scales, of_expert + INNER + row, is_row,
            COLUMNS, GROUP, BLOCK_ROWS, BLOCK_BYTES,
        )  # fmt: skip
        if HAS_BIAS:
            gate += tl.load(bias + of_expert + row, mask=is_row, other=0.0).to(tl.float32)
            up += tl.load(bias + of_expert + INNER + row, mask=is_row, other=0.0).to(tl.float32)
        if SWIGLU:
            # By comparisons, as tl.minimum would lose a NaN.
            gate = tl.where(gate > limit, limit, gate)
            up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up)) + 1.0
            value = gate / (1.0 + tl.exp(-alpha * gate)) * up
        else:
            value = gate / (1.0 + tl.exp(-gate)) * up
        tl.store(between + pair * INNER + row, value.to(between.dtype.element_ty), mask=is_row)

    @triton.jit  # type: ignore[untyped-decorator]
    def _down(  # type: ignore[no-untyped-def]
        between,
        codes,
        scales,
        row_scales,
        bias,
        experts,
        weights,
        y,
        ROWS: tl.constexpr,  # noqa: N803
        COLUMNS: tl.constexpr,  # noqa: N803
        GROUP: tl.constexpr,  # noqa: N803
        TOP_K: tl.constexpr,  # noqa: N803
        HAS_BIAS: tl.constexpr,  # noqa: N803
        BLOCK_ROWS: tl.constexpr,  # noqa: N803
        BLOCK_BYTES: tl.constexpr,  # noqa: N803
    ):
        # One program a token and BLOCK_ROWS rows: it sums over the experts, in a fixed order.
        token = tl.program_id(0)
        row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        is_row = row < ROWS
        total = tl.zeros((BLOCK_ROWS,), tl.float32)
        for place in range(TOP_K):
            pair = token * TOP_K + place
            of_expert = tl.load(experts + pair) * ROWS
            result = _products(
                between + pair * COLUMNS, codes, scales, row_scales, of_expert + row, is_row,
                COLUMNS, GROUP, BLOCK_ROWS, BLOCK_BYTES,
            )  # fmt: skip
            if HAS_BIAS:
                result += tl.load(bias + of_expert + row, mask=is_row, other=0.0).to(tl.float32)
            total += result * tl.load(weights + pair)
        tl.store(y + token * ROWS + row, total.to(y.dtype.element_ty), mask=is_row)
