"""What computes the parts of a decoder layer, side by side with vLLM's own, and how it is put in.

A compiled model sees each part as one opaque operator, so that side a would lose what torch.compile
fuses there: such sides are compared with two engines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from spark_prof.swaps.decoder_layer import PARTS, LayerModules, Part, arguments_of
from spark_prof.swaps.guard import NOT_TAKEN, GuardedReplacement
from spark_prof.swaps.swap_settings import SIDES, plain_side
from spark_prof.swaps.tensor_parallel import all_reduced

Choices = Mapping[str, GuardedReplacement]


class SwappablePart(ABC):
    """One part of a layer: the replacement of the active side, or what vLLM has."""

    def __init__(self, modules: LayerModules, choices: Choices, opaque: bool = True) -> None:
        self.modules = modules
        self.choices = choices
        self.opaque = opaque  # whether a compiler sees nothing of what it does

    @abstractmethod
    def stock(self, *arguments: Any) -> Any:
        """What vLLM's modules make of the arguments, none of which is written to."""

    def arguments(self, *inputs: Any) -> tuple[Any, ...] | None:
        """What the replacement gets; None where vLLM's own has to run."""
        return inputs

    def call(self, x: torch.Tensor, *further: Any) -> Any:
        """The part's result on the active side."""
        guarded = self.choices.get(plain_side(SIDES.active))
        if guarded is not None and x.ndim == 2 and guarded.takes(len(x)):
            arguments = self.arguments(x.contiguous(), *further)
            if arguments is not None:
                result = self.run(guarded, *arguments)
                if result is not NOT_TAKEN:
                    return self.completed(result)
        return self.stock(x, *further)

    def completed(self, result: Any) -> Any:
        """The part's result, of what the replacement has computed on this rank."""
        return result

    def run(self, guarded: GuardedReplacement, *arguments: Any) -> Any:
        """The replacement's result; a method, so that the recorder can mark its calls."""
        return guarded.run(SIDES.active, *arguments)


def _normed(
    norm: Any, x: torch.Tensor, residual: torch.Tensor | None, opaque: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """What vLLM's norm makes of copies, which it may write to: the normed rows, and the sum.

    Where no compiler sees it by a kernel that is written by hand: in a compiled model vLLM leaves
    what a norm runs to the compiler since 0.26, and else that is a kernel for each operation.
    """
    swapped = hasattr(norm, "spark_prof_body")  # by slot norm, on another side
    if swapped or not (opaque and norm.weight.is_cuda and type(norm).__name__ == "RMSNorm"):
        call = own_forward(norm)
        if residual is None:
            return call(x.clone()), x.clone()
        y, total = call(x.clone(), residual.clone())
        return y, total
    from vllm import _custom_ops as vllm_kernels

    weight, epsilon = norm.weight, norm.variance_epsilon
    if residual is None:
        y = torch.empty_like(x)
        vllm_kernels.rms_norm(y, x, weight, epsilon)
        return y, x.clone()
    y, total = x.clone(), residual.clone()
    vllm_kernels.fused_add_rms_norm(y, total, weight, epsilon)
    return y, total


class NormedMatrix(SwappablePart):
    """The norm of the residual stream, and qkv or what else reads it."""

    def stock(self, x: torch.Tensor, residual: torch.Tensor | None) -> Any:
        """The part as vLLM's own modules compute it, the products side by side."""
        y, total = _normed(self.modules.first_norm, x, residual, self.opaque)
        products = [product_of(own_forward(matrix)(y)) for matrix in self.modules.matrices]
        return products[0] if len(products) == 1 else torch.cat(products, dim=-1), total

    def arguments(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[Any, ...]:
        """The arguments of a replacement: also the matrix's bias, which may be None."""
        bias = getattr(self.modules.matrices[0], "bias", None)
        return x, None if residual is None else residual.contiguous(), bias


class AttentionPart(SwappablePart):
    """From qkv on: norms of heads, rotation, KV cache, attention."""

    def stock(self, qkv: torch.Tensor, positions: torch.Tensor) -> Any:
        """The part as vLLM's own modules compute it."""
        module = self.modules.attention
        widths = (module.q_size, module.kv_size, module.kv_size)
        q, k, v = (part.contiguous() for part in qkv.split(widths, dim=-1))
        for which in ("q_norm", "k_norm"):
            norm = getattr(module, which, None)
            if norm is not None:
                rows = q if which == "q_norm" else k
                heads = rows.view(-1, module.head_dim)
                normed = _normed(norm, heads, None, self.opaque)[0].view(rows.shape)
                q, k = (normed, k) if which == "q_norm" else (q, normed)
        q, k = module.rotary_emb(positions, q, k)
        return module.attn(q, k, v)

    def arguments(self, qkv: torch.Tensor, positions: torch.Tensor) -> tuple[Any, ...] | None:
        """With the KV cache and where it is read and written, where all requests are alike.

        That is a step that decodes, or one that verifies as many drafts of each.
        """
        from vllm.distributed.kv_transfer.kv_transfer_state import has_kv_transfer_group
        from vllm.model_executor.layers.attention.attention import get_attention_context

        if has_kv_transfer_group():  # which waits for each layer's cache, and sends it, there
            return None
        name = self.modules.attention.attn.layer_name
        metadata, _, cache, slots = get_attention_context(name)
        tokens = len(qkv)
        if metadata is None or slots is None or positions.ndim != 1 or cache.dim() != 4:
            return None
        width = int(metadata.max_query_len)
        if metadata.causal is not True or not self._takes(width, tokens, metadata):
            return None
        if getattr(metadata, "use_cascade", False):  # until 0.31
            return None
        blocks, lengths = metadata.block_table, metadata.seq_lens
        requests = tokens // width
        if min(len(blocks), len(lengths)) < requests or len(slots) < tokens:
            return None
        keys, values = cache.transpose(1, 2).chunk(2, dim=-1)
        return (
            *(qkv, positions[:tokens], keys, values),
            *(blocks[:requests], lengths[:requests], slots[:tokens]),
        )

    def _takes(self, width: int, tokens: int, metadata: Any) -> bool:
        """Whether the kernel is for steps of that many new tokens a request, and all have as many.

        They do where as many requests as there are lengths have no more, and together all tokens.
        """
        if width == 1:
            return True
        guarded = self.choices.get(plain_side(SIDES.active))
        if guarded is None or guarded.replacement is None or width > guarded.replacement.width:
            return False
        same = tokens == getattr(metadata, "num_actual_tokens", 0) == width * len(metadata.seq_lens)
        return same and width > 0


class NormedMlp(SwappablePart):
    """The norm of the residual stream, and router and experts or a dense MLP."""

    def stock(self, x: torch.Tensor, residual: torch.Tensor | None) -> Any:
        """The part as vLLM's own modules compute it."""
        y, total = _normed(self.modules.second_norm, x, residual, self.opaque)
        return own_forward(self.modules.mlp)(y), total

    def arguments(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[Any, ...]:
        """The arguments of a replacement, both contiguous."""
        return x, None if residual is None else residual.contiguous()

    def completed(self, result: Any) -> Any:
        """With the shares of the other ranks, as vLLM's own `forward` returns it."""
        if not self.modules.shared:
            return result
        share, total = result
        return all_reduced(share), total


_KINDS: Mapping[Part, type[SwappablePart]] = dict(
    zip(PARTS, (NormedMatrix, AttentionPart, NormedMlp, NormedMlp), strict=True)
)


def part_body(layer: Any, part: Part, choices: Choices) -> SwappablePart:
    """What computes a part of a decoder layer."""
    modules = LayerModules.of(layer)
    assert modules is not None
    return _KINDS[part](modules, choices)


def swap_layer(layer: Any, bodies: Mapping[Part, SwappablePart], compiled: bool) -> None:
    """Lets the parts of a decoder layer choose."""
    modules = LayerModules.of(layer)
    assert modules is not None
    calls: dict[Part, Callable[..., Any]] = {}
    for part, owner in modules.owners.items():
        body = bodies.get(part)
        if body is None:
            calls[part] = _KINDS[part](modules, {}, opaque=False).stock
            continue
        owner.spark_prof_body = body  # for the recorder
        calls[part] = _operator(layer, part, body) if compiled else body.call
    layer.spark_prof_parts = calls
    if modules.attention is None:
        if "normed matrix" in bodies:
            _swap_matrices(modules, calls["normed matrix"])
        if "normed experts" in bodies:
            _swap_mlp(modules, calls["normed experts"])
        return
    matrix, attention, mlp = calls.values()
    o_proj = modules.attention.o_proj
    names = arguments_of(layer)

    def forward(*arguments: Any, **named: Any) -> Any:
        inputs = dict(zip(names, arguments, strict=False)) | named
        qkv, residual = matrix(inputs["hidden_states"], inputs["residual"])
        attended = attention(qkv, inputs["positions"])
        return mlp(product_of(o_proj(attended)), residual)

    layer.forward = forward


def own_forward(module: Any) -> Callable[..., Any]:
    """What vLLM's module computes, whatever has been put in its place."""
    call: Callable[..., Any] = getattr(module, "spark_prof_stock", module)
    return call


def _swap_matrices(modules: LayerModules, call: Callable[..., Any]) -> None:
    """Puts a norm and matrices in the norm's place; each matrix then returns its columns of that.

    What else reads the norm's result asks for its rows, dtype and device alone.
    """
    _swap_norm(modules.first_norm, call)
    begin, several = 0, len(modules.matrices) > 1
    for matrix in modules.matrices:
        end = begin + output_rows(matrix)
        columns = (begin, end) if several else None
        matrix.spark_prof_stock = matrix.forward
        matrix.forward = partial(_columns_of, columns, getattr(matrix, "return_bias", True))
        begin = end


def _columns_of(
    columns: tuple[int, int] | None, returns_bias: bool, x: torch.Tensor
) -> torch.Tensor | tuple[torch.Tensor, None]:
    """What a linear layer returns whose product is in those columns of its input, None for all.

    Contiguous: kernels behind it may go by that.
    """
    y = x if columns is None else x[..., slice(*columns)].contiguous()
    return (y, None) if returns_bias else y


def _swap_mlp(modules: LayerModules, call: Callable[..., Any]) -> None:
    """Puts a norm and experts in the norm's place, behind which `mlp` returns what it is given."""
    _swap_norm(modules.second_norm, call)
    mlp = modules.mlp
    mlp.spark_prof_stock = mlp.forward

    def same(x: torch.Tensor) -> torch.Tensor:
        return x

    mlp.forward = same


def _swap_norm(norm: Any, call: Callable[..., Any]) -> None:
    """Lets a norm return what a part computes of its arguments."""
    norm.spark_prof_stock = norm.forward

    def forward(x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        y, total = call(x, residual)
        return y if residual is None else (y, total)

    norm.forward = forward


def output_rows(matrix: Any) -> int:
    """The rows of a linear layer's matrix, or of an embedding's, on this rank."""
    names = ("output_size_per_partition", "num_embeddings_per_partition", "output_size")
    return first_size(matrix, *names)


def first_size(layer: Any, *names: str) -> int:
    """The first of these sizes that a linear layer has on this rank."""
    for name in names:
        if isinstance(value := getattr(layer, name, None), int):
            return value
    raise AttributeError(f"{type(layer).__name__} has none of {', '.join(names)}")


_BODIES: dict[int, SwappablePart] = {}


def _operator(layer: Any, part: Part, body: SwappablePart) -> Callable[..., Any]:
    """A part as a compiled model calls it: by a tensor of the layer's own, see `layer_dispatch`."""
    device = next(layer.parameters()).device
    key = torch.zeros(16, dtype=torch.uint8, device=device)
    buffer = f"spark_prof_{part.replace(' ', '_')}"
    layer.register_buffer(buffer, key, persistent=False)
    _BODIES[key.data_ptr()] = body
    operators = torch.ops.spark_prof
    if part == "normed matrix":
        rows = sum(map(output_rows, body.modules.matrices))
        return lambda x, residual: operators.normed_matrix(
            x, residual, getattr(layer, buffer), rows
        )
    if part == "attention":
        width = int(body.modules.attention.q_size)
        return lambda qkv, positions: operators.attention(
            qkv, positions, getattr(layer, buffer), width
        )
    return lambda x, residual: operators.normed_mlp(x, residual, getattr(layer, buffer))


SPLITTING = "spark_prof::attention"
"""What vLLM has to keep out of the CUDA graphs of parts of a model, as its own attention."""

OPERATORS: tuple[tuple[str, Callable[..., Any], Callable[..., Any]], ...] = (
    (
        "normed_matrix(Tensor x, Tensor? residual, Tensor key, int rows) -> (Tensor, Tensor)",
        lambda x, residual, key, _: _BODIES[key.data_ptr()].call(x, residual),
        lambda x, _residual, _key, rows: (x.new_empty((x.shape[0], rows)), torch.empty_like(x)),
    ),
    (
        "attention(Tensor qkv, Tensor positions, Tensor key, int width) -> Tensor",
        lambda qkv, positions, key, _: _BODIES[key.data_ptr()].call(qkv, positions),
        lambda qkv, _positions, _key, width: qkv.new_empty((qkv.shape[0], width)),
    ),
    (
        "normed_mlp(Tensor x, Tensor? residual, Tensor key) -> (Tensor, Tensor)",
        lambda x, residual, key: _BODIES[key.data_ptr()].call(x, residual),
        lambda x, _residual, _key: (torch.empty_like(x), torch.empty_like(x)),
    ),
)
"""Schemas, bodies, and what tracing sees; `layer_dispatch.register_ops` registers them."""


def product_of(result: Any) -> Any:
    """A linear layer's product: some return it with their bias."""
    return result[0] if isinstance(result, tuple) else result
