"""The decode steps of one side, and what each of their kernels is charged.

A step begins where the one before it ends on the device and lasts until its own last kernel ends,
so that steps after one another add up to the time that they took together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.lookup import positions
from spark_prof.analyzers.placement import place_kernels
from spark_prof.analyzers.swap_gain.charging import charge_by_end
from spark_prof.analyzers.swap_gain.model import BETWEEN_STEPS
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle

__all__ = ["Side", "usual_batch_size"]

Int64s = npt.NDArray[np.int64]

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
        rows: one each kernel or copy, and one each gap between two steps, whose component is
            `BETWEEN_STEPS`: `at` (its step among the chosen ones), `name`, `component`, `layer`
            (-1 for none), `call` (1, or 0 for an operator's later stretch and a gap), `took_ns`,
            `busy_ns` and `gap_ns`.
        steps: how many steps.
        middle: which of them are of middle length.
        context_tokens: mean over the steps.
    """

    rows: pd.DataFrame
    steps: int
    middle: Int64s
    context_tokens: float

    @classmethod
    def read(cls, bundle: Bundle, rank: int, batch_size: int) -> Side:
        """The steps that decode exactly so many requests and follow one that does as well.

        Raises:
            CommandError: the bundle has no such rank, or no such steps; or it holds no times.
        """
        steps = _decode_steps(bundle, rank)
        steps = steps[steps["decode_requests"] == batch_size]
        placed = place_kernels(bundle, rank)
        number, piece = steps["step"].to_numpy(np.int64), steps["piece"].to_numpy()
        ran = np.isin(number, placed["step"].to_numpy())
        follows = np.append(False, (np.diff(number) == 1) & (np.diff(piece) == 0) & ran[:-1])
        chosen = steps[follows & ran]
        if chosen.empty:
            raise CommandError(
                f"{bundle.path} has no two decode steps of {batch_size} requests after one "
                f"another with kernels in rank {rank}; record more steps"
            )
        rows = _charged_rows(placed, chosen["step"].to_numpy(np.int64))
        total = np.bincount(rows["at"], rows["busy_ns"] + rows["gap_ns"], len(chosen))
        low, high = np.quantile(total, (0.25, 0.75))
        return cls(
            rows=rows,
            steps=len(chosen),
            middle=np.flatnonzero((total >= low) & (total <= high)),
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
    start, end = (np.clip(placed[name].to_numpy(), *_TIMES) for name in ("start_ns", "end_ns"))
    charged = charge_by_end(start, end)
    rows = placed.iloc[charged.order]
    step = _next_known(rows["step"].to_numpy(np.int64))
    first = np.zeros(len(rows), bool)
    first[np.unique(step, return_index=True)[1]] = True
    at = positions(chosen, step)
    found = pd.DataFrame(
        {
            "at": at,
            "name": rows["name"].astype(str).to_numpy(object),
            "component": rows["component"].astype(str).to_numpy(object),
            "layer": rows["layer"].to_numpy(np.int64),
            "call": (rows["part"].to_numpy() == 0).astype(np.int64),
            "took_ns": np.maximum(end - start, 0)[charged.order],
            "busy_ns": charged.busy,
            "gap_ns": np.where(first, 0, charged.gap),
        }
    )
    between = pd.DataFrame({"at": at[first], "gap_ns": charged.gap[first]}).assign(
        name="", component=BETWEEN_STEPS, layer=-1, call=0, took_ns=0, busy_ns=0
    )
    both = pd.concat([found, between[found.columns]], ignore_index=True)
    return both[both["at"] >= 0]


def _next_known(step: Int64s) -> Int64s:
    """The steps, where one is unknown the next known one: what ran delayed that."""
    known = np.flatnonzero(step >= 0)
    if not len(known):
        return step
    following = np.searchsorted(known, np.arange(len(step)))
    return np.where(following < len(known), step[known[np.minimum(following, len(known) - 1)]], -1)
