"""What a gain is made of, as plain data.

Times are us of a decode step. Those of the rows are without what tracing cost; they are means over
the middle half of the steps, so that rows add up to the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FOR_THE_HOST = "waiting for the host"
"""The row of the time in which nothing runs because the host has launched nothing: between steps,
and before a kernel or graph that comes more than 5 us after the one before it."""

Ran = Literal["ran", "did not run", "not told"]
"""Whether a replacement ran in a layer; "not told" where its kernels look like the other side's."""


@dataclass(frozen=True)
class Swapped:
    """One module whose kernel was swapped on one side.

    Attributes:
        side: a or b; others are passed over.
        slot: a word of swaps.spec.SLOTS.
        name: the module's path, such as ``model.layers.3.mlp.experts``.
        kernel: what runs there.
    """

    side: str
    slot: str
    name: str
    kernel: str


@dataclass(frozen=True)
class Untraced:
    """Time of a decode step of each side while nothing is recorded, in us.

    Attributes:
        a_us: of side a.
        b_us: of side b.
        host_ahead: the device was seen not to wait for the host, on neither side.
    """

    a_us: float
    b_us: float
    host_ahead: bool = False


@dataclass(frozen=True)
class SideSteps:
    """The recorded steps of one side.

    Attributes:
        steps: decode steps of the batch size that follow one another.
        traced_us: their time while recorded, from the end of one on the device to that of the next.
        corrected_us: the same without what tracing cost: the sum of the side's rows.
        untraced_us: what was measured without recording; None where it was not.
        kernels: a step, copies included.
        gaps: moments of a step in which nothing runs.
        overlap_us: time in which several run at once, which is counted once.
        context_tokens: mean of what is in the KV cache, all requests.
    """

    steps: int
    traced_us: float
    corrected_us: float
    untraced_us: float | None
    kernels: float
    gaps: float
    overlap_us: float
    context_tokens: float


@dataclass(frozen=True)
class ComponentGain:
    """One component, or `FOR_THE_HOST`.

    Attributes:
        component: its name.
        a_us: its time on side a, the gaps before its kernels included.
        b_us: the same on side b.
        saved_us: a less b.
        noise_us: 95 % half-width of `saved_us`, from how far the steps scatter.
        gap_a_us: what of `a_us` is gaps.
        gap_b_us: the same on side b.
        kernels_a: a step.
        kernels_b: a step.
        touched: whether a swap changes it.
    """

    component: str
    a_us: float
    b_us: float
    saved_us: float
    noise_us: float
    gap_a_us: float
    gap_b_us: float
    kernels_a: float
    kernels_b: float
    touched: bool


@dataclass(frozen=True)
class LayerGain:
    """One component of a layer, None outside of the layers. Else as `ComponentGain`."""

    layer: int | None
    component: str
    a_us: float
    b_us: float
    saved_us: float
    noise_us: float
    kernels_a: float
    kernels_b: float
    touched: bool


@dataclass(frozen=True)
class KernelGain:
    """Kernels of one name in one component; `calls` are of a step. Else as `ComponentGain`."""

    name: str
    component: str
    calls_a: float
    calls_b: float
    a_us: float
    b_us: float
    saved_us: float
    noise_us: float
    touched: bool


@dataclass(frozen=True)
class LayerProof:
    """Whether a replacement ran where it claims to.

    Attributes:
        side: which is swapped.
        slot: of the swap.
        layer: the decoder layer, None outside of the layers.
        component: where its kernels were looked for.
        modules: how many are swapped there.
        ran: the answer.
        new: names of kernels that only the swapped side has there.
        left: names of the other side's kernels that it should have replaced, and did not.
        why: one line where it did not run or nothing tells; else empty.
    """

    side: str
    slot: str
    layer: int | None
    component: str
    modules: int
    ran: Ran
    new: tuple[str, ...]
    left: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Attribution:
    """Where the gain of side b over side a came from.

    Attributes:
        batch_size: requests that decode in each step.
        a: the steps of side a.
        b: those of side b.
        tracing_us: what tracing adds to a gap, from side a alone; 0 where nothing tells.
        gain_us: a less b as measured without recording; None where it was not.
        explained_us: the sum of what the components save.
        residual_us: `gain_us` less `explained_us`; None without `gain_us`.
        residual_share: `residual_us` over `gain_us`; None where the gain is below 1 % of the step.
        components: in the order in which a decoder runs them, then `FOR_THE_HOST`.
        layers: in the model's order.
        kernels: the largest changes first.
        proofs: one each swapped layer and slot.
        moved: components that no swap touches and that changed by 1 % of the step or more, and by
            more than their steps scatter.
        appeared: kernels of untouched components that only side b has.
        vanished: kernels of untouched components that only side a has.
        notes: what to know before using the figures, one line each.
    """

    batch_size: int
    a: SideSteps
    b: SideSteps
    tracing_us: float
    gain_us: float | None
    explained_us: float
    residual_us: float | None
    residual_share: float | None
    components: tuple[ComponentGain, ...]
    layers: tuple[LayerGain, ...]
    kernels: tuple[KernelGain, ...]
    proofs: tuple[LayerProof, ...]
    moved: tuple[ComponentGain, ...]
    appeared: tuple[KernelGain, ...]
    vanished: tuple[KernelGain, ...]
    notes: tuple[str, ...]

    @property
    def adds_up(self) -> bool | None:
        """Whether the components add up to the gain within 3 %; None where nothing tells."""
        return None if self.residual_share is None else abs(self.residual_share) <= 0.03

    @property
    def ran_everywhere(self) -> bool:
        """Whether every replacement ran in every layer that it claims."""
        return all(proof.ran == "ran" for proof in self.proofs)

    @property
    def nothing_else_moved(self) -> bool:
        """Whether every component that no swap touches kept its time within 1 % of the step."""
        return not self.moved
