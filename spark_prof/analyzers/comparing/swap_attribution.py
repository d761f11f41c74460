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

NO_GAIN = 0.01
"""Below this share of the step a gain is too small to be shared out."""
WITHIN = 0.03
"""Components that are this near the gain add up to it, as a share of it."""

RanAnswer = Literal["ran", "did not run", "not told"]
"""Not told where the replacement's kernels look like the other side's."""


@dataclass(frozen=True)
class SwapOnSide:
    """One module whose kernel was swapped on one side."""

    side: str  # a or b; others are passed over
    slot: str  # a word of swaps.swap_settings.SLOTS
    name: str  # the module's path, such as ``model.layers.3.mlp.experts``
    kernel: str  # what runs there


@dataclass(frozen=True)
class Untraced:
    """Time of a decode step of each side while nothing is recorded, in us."""

    a_us: float
    b_us: float
    host_ahead: bool = False  # the device was seen not to wait for the host, on neither side
    # Of both sides what the device alone needs, measured while the host was ahead of it; else None.
    device_us: tuple[float, float] | None = None


@dataclass(frozen=True)
class SideSteps:
    """The recorded steps of one side."""

    steps: int  # decode steps of the batch size that follow one another
    traced_us: float  # while recorded, from the end of one on the device to that of the next
    corrected_us: float  # the same without what tracing cost: the sum of the side's rows
    untraced_us: float | None  # what was measured without recording; None where it was not
    kernels: float  # a step, copies included
    gaps: float  # moments of a step in which nothing runs
    overlap_us: float  # time in which several run at once, which is counted once
    context_tokens: float  # mean of what is in the KV cache, all requests


@dataclass(frozen=True)
class ComponentGain:
    """What one component, or `FOR_THE_HOST`, takes on both sides."""

    component: str
    a_us: float  # the gaps before its kernels included
    b_us: float
    saved_us: float  # a less b
    noise_us: float  # 95 % half-width of `saved_us`, from how far the steps scatter
    gap_a_us: float  # what of `a_us` is gaps
    gap_b_us: float
    kernels_a: float  # a step
    kernels_b: float  # a step
    touched: bool  # whether a swap changes it


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
    """Whether a replacement ran where it claims to."""

    side: str  # which is swapped
    slot: str  # of the swap
    layer: int | None  # the decoder layer, None outside of the layers
    component: str  # where its kernels were looked for
    modules: int  # how many are swapped there
    ran: RanAnswer  # the answer
    new: tuple[str, ...]  # names of kernels that only the swapped side has there
    left: tuple[str, ...]  # the other side's kernels that it should have replaced, and did not
    why: str  # one line where it did not run or nothing tells; else empty


@dataclass(frozen=True)
class Attribution:
    """Where the gain of side b over side a came from."""

    batch_size: int  # requests that decode in each step
    a: SideSteps
    b: SideSteps
    tracing_us: float  # what tracing adds to a gap, from side a alone; 0 where nothing tells
    gain_us: float | None  # a less b as measured without recording; None where it was not
    explained_us: float  # the sum of what the components save
    residual_us: float | None  # `gain_us` less `explained_us`; None without `gain_us`
    residual_share: float | None  # over `gain_us`; None where that is below 1 % of the step
    components: tuple[ComponentGain, ...]  # as a decoder runs them, then `FOR_THE_HOST`
    layers: tuple[LayerGain, ...]  # in the model's order
    kernels: tuple[KernelGain, ...]  # the largest changes first
    proofs: tuple[LayerProof, ...]  # one each swapped layer and slot
    moved: tuple[ComponentGain, ...]  # untouched, and changed by 1 % of the step, beyond scatter
    appeared: tuple[KernelGain, ...]  # kernels of untouched components that only side b has
    vanished: tuple[KernelGain, ...]  # kernels of untouched components that only side a has
    notes: tuple[str, ...]  # what to know before using the figures, one line each

    @property
    def device_gain_us(self) -> float | None:
        """What the device alone saves, where a side waits for the host and that was measured.

        None also where it is too small to be shared out.
        """
        waits = sum(row.saved_us for row in self.components if row.component == FOR_THE_HOST)
        if self.gain_us is None or self.residual_us is None or not waits:
            return None
        alone = self.gain_us - waits
        return alone if abs(alone) >= NO_GAIN * self.a.corrected_us else None

    @property
    def adds_up(self) -> bool | None:
        """Whether the components add up to the gain within 3 %; None where nothing tells."""
        return None if self.residual_share is None else abs(self.residual_share) <= WITHIN
