"""Sums of kernel time: by component, by layer and component, and by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from spark_prof.analyzers.classify.classifier import Label, classify
from spark_prof.analyzers.model import ComponentRow, KernelRow, LayerRow
from spark_prof.vocabulary import COMPONENTS, PHASES

__all__ = ["component_rows", "kernel_rows", "layer_rows"]


def component_rows(
    kernels: pd.DataFrame, phase_of: pd.Series, decode_steps: int
) -> tuple[ComponentRow, ...]:
    """One row per component that occurs, the most expensive first.

    Args:
        kernels: step, component, us and part of the analyzed kernels.
        phase_of: phase of each step, indexed by step.
        decode_steps: number of decode steps, for the time per step.
    """
    phase = phase_of.reindex(kernels["step"]).array
    sums = _sums(kernels, ["component", phase])
    totals = sums.groupby("component", observed=True).sum()
    totals = totals.sort_values("us", ascending=False, kind="stable")
    total = totals["us"].sum() or 1.0
    rows = []
    for name, us in zip(totals.index.astype(str), totals["us"].tolist(), strict=True):
        by_phase = {p: float(sums["us"].get((name, p), 0.0)) for p in PHASES}
        rows.append(
            ComponentRow(
                name=name,
                us=us,
                share=us / total,
                kernels=int(totals.loc[name, "calls"]),
                prefill_us=by_phase["prefill"],
                decode_us=by_phase["decode"],
                mixed_us=by_phase["mixed"],
                decode_us_per_step=by_phase["decode"] / decode_steps if decode_steps else 0.0,
            )
        )
    return tuple(rows)


def layer_rows(kernels: pd.DataFrame) -> tuple[LayerRow, ...]:
    """One row per layer and component, in the model's order; layer None comes first."""
    sums = _sums(kernels, ["layer", "component"])
    found = zip(sums.index.tolist(), sums["us"].tolist(), sums["calls"].tolist(), strict=True)
    ordered = sorted(found, key=lambda row: (row[0][0], COMPONENTS.index(row[0][1])))
    return tuple(
        LayerRow(int(layer) if layer >= 0 else None, str(component), us, calls)
        for (layer, component), us, calls in ordered
    )


def kernel_rows(kernels: pd.DataFrame) -> tuple[KernelRow, ...]:
    """One row per kernel name and component, the most expensive first."""
    sums = _sums(kernels, ["name", "component"])
    sums = sums.sort_values("us", ascending=False, kind="stable")
    total = float(sums["us"].sum()) or 1.0
    found = zip(sums.index.tolist(), sums["us"].tolist(), sums["calls"].tolist(), strict=True)
    return tuple(
        _kernel_row(name, component, calls, us, total) for (name, component), us, calls in found
    )


def _kernel_row(name: str, component: str, calls: int, us: float, total: float) -> KernelRow:
    label: Label = classify(name)
    return KernelRow(
        name=name,
        calls=calls,
        us=us,
        share=us / total,
        component=component,
        engine=label.engine,
        precision=label.precision,
        evidence=label.evidence,
        conversion=label.conversion,
    )


def _sums(kernels: pd.DataFrame, keys: Sequence[Any]) -> pd.DataFrame:
    """Time and calls of each group; a later stretch of an operator is no call of its own."""
    rows = kernels.assign(calls=(kernels["part"] == 0).astype(int))
    return rows.groupby(list(keys), observed=True)[["us", "calls"]].sum()
