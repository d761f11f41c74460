"""Sums of copies and memsets, which are no kernels and stand apart from them."""

from __future__ import annotations

import pandas as pd

from spark_prof.analyzers.lookup import NameColumn
from spark_prof.analyzers.model import Copies, CopyRow
from spark_prof.analyzers.placement import COPIES


def copies_of(kernels: pd.DataFrame, steps: pd.Index, busy_us: float | None) -> Copies:
    """The copies and memsets of the analyzed steps, the most expensive first.

    Args:
        kernels: name, kind, step, start_ns, end_ns and bytes of everything that ran.
        steps: the analyzed steps.
        busy_us: time in which anything ran, None where nothing tells.
    """
    found = NameColumn(kernels["kind"]).flags(lambda kind: kind in COPIES)
    copies = kernels.loc[found, ["name", "kind", "step", "start_ns", "end_ns", "bytes"]]
    copies = copies[copies["step"].isin(steps)]
    copies = copies.assign(ns=copies["end_ns"] - copies["start_ns"])
    groups = copies.groupby(["name", "kind"], observed=True)[["ns", "bytes"]]
    sums = groups.sum().assign(calls=groups.size())
    sums = sums.sort_values("ns", ascending=False, kind="stable")
    items = tuple(
        CopyRow(str(name), str(kind), int(calls), ns / 1e3, int(moved))
        for (name, kind), ns, moved, calls in sums.itertuples(name=None)
    )
    us = sum(row.us for row in items)
    return Copies(us, sum(row.bytes for row in items), us / busy_us if busy_us else None, items)
