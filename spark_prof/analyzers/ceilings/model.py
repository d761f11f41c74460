"""What is known of a model's weights, what one decode step streams, and the ceilings from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Module:
    """The weights of one module, or of one projection of all experts of a layer.

    Attributes:
        path: with `*` for the number of an expert.
        parameters: elements of its matrices, unpacked.
        bytes: with scales, zero points and biases.
        matrix: whether it is a matrix large enough to have a format of its own.
        copies: experts that it holds, 1 for what is no expert.
    """

    path: str
    parameters: int
    bytes: float
    format: str
    matrix: bool
    copies: int = 1


ROLES = ("decoder", "drafter", "encoder")
"""What weights are for: every decode step, drafting tokens (MTP, EAGLE), or images and sound."""


@dataclass(frozen=True)
class State:
    """What each sequence keeps between steps, for layers of one kind.

    Attributes:
        layers: how many layers keep it.
        kind: kv (grows with the context), window (a sliding window of it), latent (MLA) or
            recurrent (of one size, read and written in every step).
        elements: values per token of context and layer; of a recurrent state, per layer.
        heads: key-value heads that tensor parallelism can share out; 0 where it cannot.
        window: tokens of context that are read at most, 0 for all.
        operations: arithmetic per generated token, token of context and layer.
        bytes_per_element: where the configuration says it, 0 for the type of the KV cache.
    """

    layers: int
    kind: str
    elements: int
    heads: int = 0
    window: int = 0
    operations: int = 0
    bytes_per_element: float = 0


@dataclass(frozen=True)
class Architecture:
    """What config.json says that the weights do not.

    Attributes:
        layers: decoder layers; layers beyond them draft.
        experts: routed experts of a layer, 0 for a dense model.
        experts_per_token: how many of them each token takes, 0 if unknown.
        vocabulary: rows of the embedding, 0 if unknown.
    """

    name: str
    layers: int
    hidden: int
    experts: int
    experts_per_token: int
    vocabulary: int
    states: tuple[State, ...]


@dataclass(frozen=True)
class Weights:
    """All weights of one component in one format.

    Attributes:
        component: a word of the vocabulary; `other` for tensors that no rule places.
        format: bf16, fp16, fp32, fp8, mxfp8, int8, nvfp4, mxfp4, int4, or the tensor's own type.
        role: one of ROLES.
        parameters: elements of the matrices, unpacked.
        bytes: as stored, with scales, zero points and biases.
        matrix: whether they are matrices that a token is multiplied with.
    """

    component: str
    format: str
    role: str
    parameters: int
    bytes: float
    modules: int
    matrix: bool


@dataclass(frozen=True)
class WeightsOfModel:
    """The weights and what says how they are used.

    Attributes:
        seen: whether tensors were seen; else the shapes are derived from the configuration.
        unplaced: names of tensors that no rule places, with their bytes.
    """

    architecture: Architecture
    weights: tuple[Weights, ...]
    seen: bool
    unplaced: tuple[tuple[str, int], ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Question:
    """For which use the ceilings are.

    Attributes:
        batch: sequences that decode at a time.
        context: tokens that each has in the KV cache; 0 asks for the weights alone, without any
            cache or state.
        scheduled: tokens of each sequence in a step: 1, and one for each drafted token.
        accepted: tokens that a step yields a sequence, at most `scheduled`.
        ranks: GPUs of tensor parallelism.
        kv_bytes: bytes of one element of the KV cache: 2 for BF16, 1 for FP8; 0 for what the
            checkpoint was made for.
    """

    batch: int = 1
    context: int = 0
    scheduled: int = 1
    accepted: float = 1.0
    ranks: int = 1
    kv_bytes: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens that a step computes."""
        return self.batch * self.scheduled


@dataclass(frozen=True)
class Row:
    """What one component streams in a step, on one GPU.

    Attributes:
        component: a word of the vocabulary; `attention` holds the KV cache too.
        format: of its weights, `kv` for the KV cache, `state` for a recurrent state.
        stored: bytes of all of it.
        operations: arithmetic of the step, a multiply-add counted as two.
    """

    component: str
    format: str
    stored: float
    read: float
    operations: float


@dataclass(frozen=True)
class Step:
    """One decode step on each GPU: what it must move and calculate.

    Attributes:
        experts_hit: routed experts of a layer that are read, expected; None without a figure.
    """

    question: Question
    experts_hit: float | None
    read: float
    rows: tuple[Row, ...]

    @property
    def operations(self) -> Mapping[str, float]:
        """Arithmetic by the format of the weights."""
        found: dict[str, float] = {}
        for row in self.rows:
            found[row.format] = found.get(row.format, 0.0) + row.operations
        return found


@dataclass(frozen=True)
class Ceiling:
    """The most that a GPU can do by one bandwidth.

    Attributes:
        bandwidth: bytes per second that it stands on.
        basis: data sheet, or what the GPU's table says of a reading kernel.
        step_us: the shortest step.
        total_tokens_per_s: of all sequences.
        limit: memory or arithmetic.
    """

    bandwidth: float
    basis: str
    step_us: float
    tokens_per_s: float
    total_tokens_per_s: float
    limit: str


@dataclass(frozen=True)
class GpuCeilings:
    """What one GPU can do at most: by its data sheet and, where known, as a kernel reads.

    Attributes:
        needed: GPUs of that memory that the weights and the cache take.
    """

    gpu: str
    needed: int
    data_sheet: Ceiling
    read: Ceiling | None

    @property
    def nearest(self) -> Ceiling:
        """The one that is nearer to what the GPU can do."""
        return self.read or self.data_sheet


@dataclass(frozen=True)
class Choice:
    """The model with some of its weights in another format.

    Attributes:
        title: what is changed, as a person would say it.
        step: what its decode step streams.
    """

    id: str
    title: str
    step: Step
    gpus: tuple[GpuCeilings, ...]


@dataclass(frozen=True)
class Ceilings:
    """Everything that a checkpoint says about how fast it can decode.

    Attributes:
        choices: the model as it is first, then what if.
        batches: the model as it is, for more sequences at a time, on each GPU.
        contexts: the model as it is, with more tokens in the KV cache.
        drafts: the model as it is, with more drafted tokens, all of them accepted.
        left_out: weights that no decode step streams, such as an image encoder.
    """

    folder: str
    model: WeightsOfModel
    question: Question
    choices: tuple[Choice, ...]
    batches: tuple[Choice, ...]
    contexts: tuple[Choice, ...]
    drafts: tuple[Choice, ...]
    left_out: tuple[Weights, ...]
