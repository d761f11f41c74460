"""Sums of kernel time: by component, by layer and component, and by kernel."""

from __future__ import annotations

from collections.abc import Callable
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
    phase = phase_of.reindex(kernels["step"]).to_numpy()
    sums = kernels.groupby(["component", phase], observed=True)["us"].sum()
    counts = _calls(kernels).groupby(kernels["component"], observed=True).sum()
    totals = kernels.groupby("component", observed=True)["us"].sum()
    totals = totals.sort_values(ascending=False, kind="stable")
    total = totals.sum() or 1.0
    rows = []
    for name, us in zip(totals.index.astype(str), totals.tolist(), strict=True):
        by_phase = {p: float(sums.get((name, p), 0.0)) for p in PHASES}
        rows.append(
            ComponentRow(
                name=name,
                us=us,
                share=us / total,
                kernels=int(counts[name]),
                prefill_us=by_phase["prefill"],
                decode_us=by_phase["decode"],
                mixed_us=by_phase["mixed"],
                decode_us_per_step=by_phase["decode"] / decode_steps if decode_steps else 0.0,
            )
        )
    return tuple(rows)


def layer_rows(kernels: pd.DataFrame) -> tuple[LayerRow, ...]:
    """One row per layer and component, in the model's order; layer None comes first."""
    keys = [kernels["layer"], kernels["component"]]
    sums = kernels.groupby(keys, observed=True)["us"].sum()
    counts = _calls(kernels).groupby(keys, observed=True).sum()
    order: Callable[[Any], tuple[int, int]] = lambda key: (key[0], COMPONENTS.index(key[1]))  # noqa: E731
    return tuple(
        LayerRow(
            layer=int(key[0]) if key[0] >= 0 else None,
            component=str(key[1]),
            us=float(sums[key]),
            kernels=int(counts[key]),
        )
        for key in sorted(sums.index, key=order)
    )


def kernel_rows(kernels: pd.DataFrame) -> tuple[KernelRow, ...]:
    """One row per kernel name and component, the most expensive first."""
    keys = [kernels["name"], kernels["component"]]
    sums = kernels.groupby(keys, observed=True)["us"].sum()
    sums = sums.sort_values(ascending=False, kind="stable")
    counts = _calls(kernels).groupby(keys, observed=True).sum()
    total = float(sums.sum()) or 1.0
    return tuple(
        _kernel_row(name, component, int(counts[name, component]), us, total)
        for (name, component), us in zip(sums.index.tolist(), sums.tolist(), strict=True)
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


def _calls(kernels: pd.DataFrame) -> pd.Series:
    """1 for each row that is a call of its own, 0 for a later stretch of an operator."""
    return (kernels["part"] == 0).astype(int)
