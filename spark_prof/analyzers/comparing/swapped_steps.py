"""The decode steps of one side, and what each of their kernels is charged.

A step begins where the one before it ends on the device and lasts until its own last kernel ends,
so that steps after one another add up to the time that they took together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.comparing.kernel_time import charge
from spark_prof.analyzers.comparing.swap_attribution import FOR_THE_HOST, Untraced
from spark_prof.analyzers.comparing.typical_step import Middle, middle_of
from spark_prof.analyzers.lookup import positions
from spark_prof.analyzers.placement import place_kernels
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle

Floats = npt.NDArray[np.float64]


def tracing_cost(gaps: npt.NDArray[np.int64], excess: float) -> float:
    """The ns that, taken off every gap, make up the excess; no gap loses more than it has.

    Args:
        gaps: all gaps of some steps, in ns.
        excess: by how much these steps together took longer than without tracing, in ns.

    Returns:
        0 without an excess; the longest gap where all gaps together are no more than it.
    """
    lengths = np.sort(gaps[gaps > 0]).astype(np.float64)
    if excess <= 0 or not len(lengths):
        return 0.0
    # With the n shortest gaps gone, the others have lost as much each as the n-th.
    gone = np.append(0.0, np.cumsum(lengths))[:-1]
    left = len(lengths) - np.arange(len(lengths))
    number = int(np.searchsorted(gone + left * lengths, excess))
    if number == len(lengths):
        return float(lengths[-1])
    return float((excess - gone[number]) / left[number])


def without_tracing(gaps: npt.NDArray[np.int64], cost: float) -> Floats:
    """The gaps in ns with that cost taken off, none below 0."""
    if not math.isfinite(cost) or cost < 0:
        raise ValueError(f"{cost} ns is no cost")
    left: Floats = np.maximum(gaps - cost, 0.0)
    return left


Int64s = npt.NDArray[np.int64]

_LAUNCH_NS = 5000
"""A longer gap before what the host launches by itself is a wait for the host."""

_MOST_STEPS = 1000
"""More say nothing more, and each has a thousand kernels."""

_TIMES = (-(1 << 61), 1 << 61)
"""No two such times are further apart than a number of ns can tell."""


def usual_batch_size(bundle: Bundle, rank: int) -> int:
    """How many requests decode in most of the watched decode steps.

    Raises:
        CommandError: the bundle has no such rank, or it no such step.
    """
    steps = _decode_steps(bundle, rank)
    if steps.empty:
        raise CommandError(f"{bundle.path} has no decode step of rank {rank}; record more steps")
    return int(steps["decode_requests"].mode().iloc[0])


@dataclass(frozen=True, eq=False)
class Side:
    """What is known of one side.

    Attributes:
        rows: one each kernel or copy, and one each wait for the host, whose component is
            `FOR_THE_HOST`: `at` (its step among the chosen ones), `name`, `component`, `layer`
            (-1 for none), `call` (1, or 0 for an operator's later stretch and a gap), `took_ns`,
            `busy_ns` and `gap_ns`.
        steps: how many steps.
        middle: of them.
        context_tokens: mean over the steps.
    """

    rows: pd.DataFrame
    steps: int
    middle: Middle
    context_tokens: float

    @property
    def middle_rows(self) -> pd.DataFrame:
        """The rows of the middle steps."""
        return self.rows[np.isin(self.rows["at"], self.middle.steps)]

    @property
    def traced_us(self) -> float:
        """Mean time of a middle step."""
        rows = self.middle_rows
        return float((rows["busy_ns"] + rows["gap_ns"]).sum()) / (1e3 * len(self.middle.steps))

    @property
    def waits_us(self) -> float:
        """What of it the device waits for the host."""
        rows = self.middle_rows
        gaps = rows["gap_ns"].to_numpy()[rows["component"].to_numpy() == FOR_THE_HOST]
        return float(gaps.sum()) / (1e3 * len(self.middle.steps))

    @classmethod
    def read(cls, bundle: Bundle, rank: int, batch_size: int) -> Side:
        """The first thousand steps that decode so many requests and follow one that does, too.

        Raises:
            CommandError: the bundle has no such rank, or no such steps; or it holds no times.
        """
        steps = _decode_steps(bundle, rank)
        steps = steps[steps["decode_requests"] == batch_size]
        placed = place_kernels(bundle, rank, ("graph_node", "correlation"))
        number, piece = steps["step"].to_numpy(np.int64), steps["piece"].to_numpy()
        ran = np.isin(number, placed["step"].to_numpy())
        follows = np.append(False, (np.diff(number) == 1) & (np.diff(piece) == 0) & ran[:-1])
        chosen = steps[follows & ran][:_MOST_STEPS]
        if chosen.empty:
            raise CommandError(
                f"{bundle.path} has no two decode steps of {batch_size} requests after one "
                f"another with kernels in rank {rank}; record more steps"
            )
        rows = _charged_rows(placed, chosen["step"].to_numpy(np.int64))
        length = np.bincount(rows["at"], rows["busy_ns"] + rows["gap_ns"], len(chosen))
        return cls(
            rows=rows,
            steps=len(chosen),
            middle=middle_of(length.astype(np.float64)),
            context_tokens=float(chosen["context_tokens"].mean()),
        )


def _decode_steps(bundle: Bundle, rank: int) -> pd.DataFrame:
    """The watched decode steps of a rank, in order."""
    if rank not in bundle.ranks:
        ranks = ", ".join(map(str, bundle.ranks)) or "none"
        raise CommandError(f"{bundle.path} has no rank {rank}; it has {ranks}")
    if bundle.meta.settings.get("summed"):
        raise CommandError(f"{bundle.path} holds sums without times; record both sides")
    columns = ["step", "phase", "decode_requests", "context_tokens", "piece", "watched"]
    steps = bundle.frame("steps", rank, columns).sort_values("step")
    if not steps["step"].is_unique:
        raise CommandError(f"{bundle.path} has two steps of one number; it is damaged")
    return steps[steps["watched"] & (steps["phase"] == "decode")]


def _charged_rows(placed: pd.DataFrame, chosen: Int64s) -> pd.DataFrame:
    """The rows of `Side` of the chosen steps, from kernels in order of start."""
    start, end = (np.clip(placed[name].to_numpy(), *_TIMES) for name in ("start_ns", "end_ns"))
    charged = charge(start, end)
    step = _next_known(placed["step"].to_numpy(np.int64))
    first = np.zeros(len(placed), bool)
    first[np.unique(step, return_index=True)[1]] = True
    at = positions(chosen, step)
    # Between two steps, or the host had not launched yet what the device was ready for.
    waited = first | (_launched(placed) & (charged.gap > _LAUNCH_NS))
    found = pd.DataFrame(
        {
            "at": at,
            "name": placed["name"].astype(str).to_numpy(object),
            "component": placed["component"].astype(str).to_numpy(object),
            "layer": placed["layer"].to_numpy(np.int64),
            "call": (placed["part"].to_numpy() == 0).astype(np.int64),
            "took_ns": np.maximum(end - start, 0),
            "busy_ns": charged.busy,
            "gap_ns": np.where(waited, 0, charged.gap),
        }
    )
    waits = pd.DataFrame({"at": at[waited], "gap_ns": charged.gap[waited]}).assign(
        name="", component=FOR_THE_HOST, layer=-1, call=0, took_ns=0, busy_ns=0
    )
    both = pd.concat([found, waits[found.columns]], ignore_index=True)
    return both[both["at"] >= 0]


def _launched(placed: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether the host launched a row by itself, or a graph that begins with it."""
    launched: npt.NDArray[np.bool_] = placed["graph_node"].to_numpy() == 0
    within = np.flatnonzero(~launched)
    correlation = placed["correlation"].to_numpy()[within]
    launched[within[np.unique(correlation, return_index=True)[1]]] = True
    return launched


def _next_known(step: Int64s) -> Int64s:
    """The steps, where one is unknown the next known one: what ran delayed that."""
    known = np.flatnonzero(step >= 0)
    if not len(known):
        return step
    following = np.searchsorted(known, np.arange(len(step)))
    return np.where(following < len(known), step[known[np.minimum(following, len(known) - 1)]], -1)


_SHARE = 0.02
"""From this share of a recorded step on the waits matter."""


def is_host_bound(sides: tuple[Side, Side]) -> bool:
    """Whether the device of either side waits for the host while it is recorded."""
    return any(side.waits_us > _SHARE * side.traced_us for side in sides)


def with_measured_waits(
    table: pd.DataFrame, sides: tuple[Side, Side], untraced: Untraced, cost: float
) -> pd.DataFrame:
    """A table of `tables.beside` in which the waits fill the measured step; never below 0.

    Args:
        table: with a column `component`.
        sides: a and b.
        untraced: times of a step without recording.
        cost: what tracing adds to a gap, in ns.
    """
    found = table.copy()
    rows = found["component"] == FOR_THE_HOST
    for name, side, measured in (("a", sides[0], untraced.a_us), ("b", sides[1], untraced.b_us)):
        waits = max(0.0, measured - _device_us(side, cost))
        found.loc[rows, [f"{name}_us", f"gap_{name}_us"]] = waits
    found.loc[rows, "saved_us"] = found["a_us"] - found["b_us"]
    return found


def without_waits(table: pd.DataFrame) -> pd.DataFrame:
    """The table where the host was ahead: the device waited because it was recorded."""
    found = table.copy()
    rows = found["component"] == FOR_THE_HOST
    found.loc[rows, ["a_us", "gap_a_us", "b_us", "gap_b_us", "saved_us", "noise_us"]] = 0.0
    return found


def _device_us(side: Side, cost: float) -> float:
    """The device's own time of a step."""
    rows = side.middle_rows[side.middle_rows["component"] != FOR_THE_HOST]
    gaps = without_tracing(rows["gap_ns"].to_numpy(), cost)
    return float(rows["busy_ns"].sum() + gaps.sum()) / (1e3 * len(side.middle.steps))
