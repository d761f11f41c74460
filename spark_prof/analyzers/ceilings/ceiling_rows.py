"""What is known of a model's weights, what one decode step streams, and the ceilings from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Module:
    """The weights of one module, or of one projection of all experts of a layer."""

    path: str  # with `*` for the number of an expert
    parameters: int  # elements of its matrices, unpacked
    bytes: float  # with scales, zero points and biases
    format: str
    matrix: bool  # whether it is a matrix large enough to have a format of its own
    copies: int = 1  # experts that it holds, 1 for what is no expert


@dataclass(frozen=True)
class SequenceState:
    """What each sequence keeps between steps, for layers of one kind."""

    layers: int  # how many layers keep it
    # kv (grows with the context), window (of it), latent (MLA) or recurrent (of one size, read and
    # written in every step).
    kind: str
    elements: int  # values per token of context and layer; of a recurrent state, per layer
    heads: int = 0  # key-value heads that tensor parallelism can share out; 0 where it cannot
    window: int = 0  # tokens of context that are read at most, 0 for all
    operations: int = 0  # arithmetic per generated token, token of context and layer
    bytes_per_element: float = 0  # where the configuration says it, 0 for the type of the KV cache


@dataclass(frozen=True)
class Architecture:
    """What config.json says that the weights do not."""

    name: str
    layers: int  # decoder layers; layers beyond them draft
    hidden: int
    experts: int  # routed experts of a layer, 0 for a dense model
    experts_per_token: int  # how many of them each token takes, 0 if unknown
    vocabulary: int  # rows of the embedding, 0 if unknown
    states: tuple[SequenceState, ...]


@dataclass(frozen=True)
class FormatWeights:
    """All weights of one component in one format."""

    component: str  # a word of the vocabulary; `other` for tensors that no rule places
    format: str  # bf16, fp16, fp32, fp8, mxfp8, int8, nvfp4, mxfp4, int4, or the tensor's own type
    role: str  # decoder, drafter (MTP, EAGLE) or encoder (of images and sound)
    parameters: int  # elements of the matrices, unpacked
    bytes: float  # as stored, with scales, zero points and biases
    modules: int
    matrix: bool  # whether they are matrices that a token is multiplied with


@dataclass(frozen=True)
class WeightsOfModel:
    """The weights and what says how they are used."""

    architecture: Architecture
    weights: tuple[FormatWeights, ...]
    seen: bool  # whether tensors were seen; else the shapes are derived from the configuration
    # Names of tensors that no rule places, with their bytes.
    unplaced: tuple[tuple[str, int], ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Question:
    """For which use the ceilings are."""

    batch: int = 1  # sequences that decode at a time
    context: int = 0  # tokens that each has in the KV cache; 0 for the weights alone
    scheduled: int = 1  # tokens of each sequence in a step: 1, and one for each drafted token
    accepted: float = 1.0  # tokens that a step yields a sequence, at most `scheduled`
    ranks: int = 1  # GPUs of tensor parallelism
    kv_bytes: float = 0.0  # of one element of the KV cache; 0 for what the checkpoint was made for

    @property
    def tokens(self) -> int:
        """Tokens that a step computes."""
        return self.batch * self.scheduled


@dataclass(frozen=True)
class StreamedComponent:
    """What one component streams in a step, on one GPU."""

    component: str  # a word of the vocabulary; `attention` holds the KV cache too
    format: str  # of its weights, `kv` for the KV cache, `state` for a recurrent state
    stored: float  # bytes of all of it
    read: float
    operations: float  # arithmetic of the step, a multiply-add counted as two


@dataclass(frozen=True)
class CeilingStep:
    """One decode step on each GPU: what it must move and calculate."""

    question: Question
    experts_hit: float | None  # routed experts of a layer that are read, expected
    read: float
    rows: tuple[StreamedComponent, ...]

    @property
    def operations(self) -> Mapping[str, float]:
        """Arithmetic by the format of the weights."""
        by_format: dict[str, float] = {}
        for row in self.rows:
            by_format[row.format] = by_format.get(row.format, 0.0) + row.operations
        return by_format


@dataclass(frozen=True)
class Ceiling:
    """The most that a GPU can do by one bandwidth."""

    bandwidth: float  # bytes per second that it stands on
    basis: str  # data sheet, or what the GPU's table says of a reading kernel
    step_us: float  # the shortest step
    tokens_per_s: float
    total_tokens_per_s: float  # of all sequences
    limit: str  # memory or arithmetic


@dataclass(frozen=True)
class GpuCeilings:
    """What one GPU can do at most: by its data sheet and, where known, as a kernel reads."""

    gpu: str
    needed: int  # GPUs of that memory that the weights and the cache take
    data_sheet: Ceiling
    read: Ceiling | None

    @property
    def nearest(self) -> Ceiling:
        """The one that is nearer to what the GPU can do."""
        return self.read or self.data_sheet


@dataclass(frozen=True)
class FormatChoice:
    """The model with some of its weights in another format."""

    id: str
    title: str  # what is changed, as a person would say it
    step: CeilingStep  # what its decode step streams
    gpus: tuple[GpuCeilings, ...]


@dataclass(frozen=True)
class CheckpointCeilings:
    """Everything that a checkpoint says about how fast it can decode."""

    folder: str
    model: WeightsOfModel
    question: Question
    choices: tuple[FormatChoice, ...]  # the model as it is first, then what if
    batches: tuple[
        FormatChoice, ...
    ]  # the model as it is, for more sequences at a time, on each GPU
    contexts: tuple[FormatChoice, ...]  # the model as it is, with more tokens in the KV cache
    drafts: tuple[
        FormatChoice, ...
    ]  # the model as it is, with more drafted tokens, all of them accepted
    left_out: tuple[
        FormatWeights, ...
    ]  # weights that no decode step streams, such as an image encoder
