"""What a kernel is built from, what it is, and what `check` proves and `bench` times: a candidate.

A builder takes one of the layers below and returns a `Replacement`, or None where it has none for
that layer. The package's kernels and somebody's own have the same interface. To add a kernel to the
list: a CUDA source, and a module like `dense.py`, whose `LISTED` the registry reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from spark_prof.kernels.formats import GlobalScale, QuantizedWeight, TwoStacks
from spark_prof.kernels.kernel_error import KernelError, MissingInstructionError

Format = Literal["nvfp4", "mxfp4", "fp8", "fp8_blocks", "int4", "bf16"]

Bits = Literal["kept", "changed"]
"""Whether a replacement computes with the weights' own bits, or with others."""

Scoring = Literal["softmax", "sigmoid"]
ActivationName = Literal["silu", "swiglu", "relu2"]


@dataclass(frozen=True)
class Activation:
    """What joins gate and up, or what lies between up and down where there is no gate."""

    # `silu`: gate * sigmoid(gate) * up. `swiglu`, of gpt-oss: gate is at most `limit`, up lies
    # within it, and the result is gate * sigmoid(alpha * gate) * (up + 1). `relu2`, of Nemotron,
    # has no gate: the square of what of up is above 0.
    name: ActivationName
    alpha: float = 1.702
    limit: float = 7.0

    @property
    def halves(self) -> int:
        """2 where there is a gate beside up, else 1."""
        return 1 if self.name == "relu2" else 2


@dataclass(frozen=True, eq=False)
class LinearLayer:
    """A matrix of this rank: slots qkv, o, mlp, lm_head, and router for the one before a choice."""

    name: str  # the module's path, such as ``model.layers.3.self_attn.qkv_proj``
    slot: str  # which it is
    # [N, K], the checkpoint's bits before vLLM lays them out anew; bfloat16 where it is not
    # quantized. Fused matrices (qkv, gate and up) are one, in vLLM's order of rows.
    weight: QuantizedWeight | torch.Tensor
    # The checkpoint's scale of NVFP4 activations, one or one for each fused matrix; None where its
    # recipe leaves activations alone, and of layers of a live vLLM, where it is not read.
    input_scale: GlobalScale | None = None


@dataclass(frozen=True)
class RouterLayer:
    """How tokens choose their experts by the router's logits: slot router."""

    name: str  # the module's path
    experts: int  # E
    top_k: int  # experts of a token
    renormalize: bool  # the weights of a token are divided by their sum
    scoring: Scoring  # what becomes of a logit
    correction: torch.Tensor | None  # float32 [E] added to the scores for the choice only, or None
    scale: float  # what all weights are multiplied with
    # Experts that every token takes besides, with a weight that the scale is not in. Their weights
    # are stacked behind those of the others.
    always: int = 0


@dataclass(frozen=True, eq=False)
class ExpertsLayer:
    """The experts of this rank, with the router's choice: slot moe."""

    name: str  # the module's path
    # [E, 2I, H], the rows of gate before those of up; [E, I, H] where there is no gate.
    gate_up: QuantizedWeight | torch.Tensor | TwoStacks
    down: QuantizedWeight | torch.Tensor | TwoStacks  # [E, H, I]
    gate_up_bias: torch.Tensor | None  # bfloat16 [E, 2I] or [E, I] in the same order, or None
    down_bias: torch.Tensor | None  # bfloat16 [E, H], or None
    activation: Activation  # what joins gate and up
    router: RouterLayer  # how tokens choose
    # Whether the engine goes on to read weights that are bfloat16 where they are now, so that a
    # kernel may too; for others it means nothing.
    stays: bool = True


@dataclass(frozen=True, eq=False)
class NormLayer:
    """An RMS norm: slot norm."""

    name: str  # the module's path
    weight: torch.Tensor  # [H]
    epsilon: float  # added to the mean of squares


@dataclass(frozen=True, eq=False)
class NormedLinearLayer:
    """The norm of the residual stream and the matrix behind it: slot layer."""

    name: str  # the path of the model's layer
    norm: NormLayer
    linear: LinearLayer
    is_copy: bool = False  # whether the model has the matrix in several


@dataclass(frozen=True, eq=False)
class NormedExpertsLayer:
    """The norm of the residual stream, the router's matrix and the experts: slot layer."""

    name: str  # the path of the model's layer
    norm: NormLayer
    gate: LinearLayer  # the router's matrix
    gate_bias: torch.Tensor | None  # bfloat16 [E], or None
    experts: ExpertsLayer
    # bfloat16 [H], of whose product with a token experts that everybody takes have the sigmoid as
    # their weight; None where that is 1.
    shared_gate: torch.Tensor | None = None
    float_logits: bool = False  # the choice goes by logits in float32, else rounded to bfloat16
    gate_is_copy: bool = False  # of a matrix that the model has in float32


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """Attention of one new token of each request, from qkv on: slot layer."""

    name: str  # the module's path
    heads: int  # of queries, H
    kv_heads: int  # of keys and of values, G; divides `heads`
    size: int  # features of a head, D
    scale: float  # what products of queries and keys are multiplied with
    window: int  # the latest tokens that a token sees, itself included; 0 for all
    sinks: torch.Tensor | None  # [H], a logit of each head beside those of its keys, or None
    cos_sin: torch.Tensor  # [positions, R]: R/2 cosines, then R/2 sines
    halves: bool  # feature i is rotated with i + R/2 (NeoX), else 2i with 2i + 1
    q_norm: NormLayer | None  # of each head by itself, before it is rotated
    k_norm: NormLayer | None
    # What E4M3 codes of cached keys and values are multiplied with; None for a bfloat16 cache.
    fp8_scales: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class NormedMlpLayer:
    """The norm of the residual stream, gate and up, SiLU and down: slot layer of dense models."""

    name: str  # the path of the model's layer
    norm: NormLayer
    gate_up: LinearLayer  # [2I, H], the rows of gate before those of up
    down: LinearLayer  # [H, I]


Layer = (
    LinearLayer
    | ExpertsLayer
    | RouterLayer
    | NormLayer
    | NormedLinearLayer
    | NormedExpertsLayer
    | NormedMlpLayer
    | AttentionLayer
)


@dataclass(frozen=True)
class Replacement:
    """A kernel that takes the place of vLLM's in one layer.

    `run` takes contiguous tensors of the model's dtype and returns new ones:

    - linear: ``run(x [M, K], bias [N] or None) -> [M, N]``
    - experts: ``run(x [M, H], logits [M, E]) -> [M, H]``, this rank's share of the sum
    - router: ``run(logits [M, E]) -> (weights float32 [M, k], experts int32 [M, k])``
    - norm: ``run(x [M, H], None) -> [M, H]``, with a residual [M, H] ``-> (y, x + residual)``
    - normed linear: ``run(x [M, K], residual [M, K] or None, bias) -> (y [M, N], x + residual)``
    - normed experts: ``run(x [M, H], residual [M, H] or None) -> (y [M, H], x + residual)``
    - normed mlp: as of normed experts
    - attention: ``run(qkv [M, (H + 2 G) D], positions int64 [M], keys, values, blocks int32
      [R, B], lengths int32 [R], slots int64 [M]) -> [M, H D]``, M up to `width` times R. It writes
      the new tokens' keys and values, ``[pages, tokens of a page, G, D]``, to `slots`: page *
      tokens of a page + which, -1 for padding, of which the result is 0, as where a length is 0.
      `lengths` count the new tokens; a row of `blocks` has a request's pages in order

    It is called while a CUDA graph is captured: no synchronisation, no allocation that outlives
    the call, the current stream.
    """

    run: Callable[..., Any]  # the call
    tokens: int  # the largest M that it takes, 0 for any; vLLM's kernel runs beyond
    bits: Bits  # whether the weights keep their bits
    bytes: int = 0  # of memory that it holds beside vLLM's own weights
    line: str = ""  # one line for the log and the report, such as what quantizing lost
    # Whether it shall run for M tokens; None for all up to `tokens`.
    fits: Callable[[int], bool] | None = None
    width: int = 1  # of attention: the most new tokens of a request
    # Of the package's own: what it launches its kernels with, its configurations by the number of
    # tokens last.
    parts: tuple[Any, ...] = ()

    def takes(self, tokens: int) -> bool:
        """Whether it runs for that many tokens."""
        if self.tokens and tokens > self.tokens:
            return False
        return self.fits is None or self.fits(tokens)


Builder = Callable[[Layer], Replacement | None]


class Abstained(Exception):  # noqa: N818 - nothing is wrong
    """The builder has no kernel for a layer or a number of tokens; says why."""


class WrongResult(Exception):  # noqa: N818 - it names what is wrong, not an error of this code
    """A kernel breaks its contract, such as by a result of another shape; says how."""


@dataclass(frozen=True, eq=False)
class KernelCandidate:
    """A kernel that is checked and timed."""

    name: str  # what results call it
    slot: str  # qkv, o, mlp, lm_head (a matrix), router, moe or norm
    # Packs a layer. Somebody's own returns new tensors and may abstain from layers. The package's
    # refuse operands that do not fit. Those for a matrix or experts have two more arguments of
    # `run`: `out`, which they write to, and `config`, with which `bench` times them.
    builder: Builder
    # Of the weights that it is checked with; somebody's own with all.
    formats: tuple[Format, ...] = ()
    is_custom: bool = True  # whether it is somebody's own

    def build(self, layer: Layer) -> Replacement:
        """The replacement for a layer.

        Somebody's own that has none has abstained, and what the GPU lacks an instruction for.
        """
        try:
            replacement = self.builder(layer)
        except KernelError as error:
            if self.is_custom or isinstance(error, MissingInstructionError):
                raise Abstained(str(error)) from error
            raise
        if replacement is None:
            raise Abstained("it has none for this layer")
        return replacement


def check_taken(replacement: Replacement, tokens: int) -> None:
    """Raises Abstained where it does not run for that many tokens."""
    if not replacement.takes(tokens):
        raise Abstained(f"it does not take {tokens} token{'' if tokens == 1 else 's'}")
