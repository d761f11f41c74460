"""The times of both sides beside each other, added up by whatever tells their rows apart."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.swap_gain.model import (
    FOR_THE_HOST,
    ComponentGain,
    KernelGain,
    LayerGain,
)
from spark_prof.analyzers.swap_gain.side import Side
from spark_prof.analyzers.swap_gain.tracing import without_tracing
from spark_prof.vocabulary import COMPONENTS

_ORDER = {name: place for place, name in enumerate((*COMPONENTS, FOR_THE_HOST))}
_TWO_SIDED_95 = 1.96
_BLOCK = 4096
"""Rows of a table that are computed at a time: damaged recordings have very many."""

_GAPS = ["gap_a_us", "gap_b_us"]

Floats = npt.NDArray[np.float64]


def per_step(side: Side, keys: Sequence[str], cost: float) -> pd.DataFrame:
    """Means over the side's middle steps of each combination of the keys.

    Args:
        side: the side.
        keys: columns of its rows.
        cost: what tracing adds to a gap, in ns.

    Returns:
        Indexed by the keys: `us`, `gap_us` (what of it is gaps), `kernels`, and `error`, the
        standard error of `us`.
    """
    groups = side.rows.groupby(list(keys), sort=True)
    number = groups.ngroup().to_numpy().astype(np.int64)
    order = np.argsort(number, kind="stable")
    rows, number = side.rows.iloc[order], number[order]
    found = []
    for first in range(0, groups.ngroups, _BLOCK):
        count = min(_BLOCK, groups.ngroups - first)
        block = slice(*np.searchsorted(number, (first, first + count)))
        found.append(_of_groups(side, rows.iloc[block], number[block] - first, count, cost))
    return pd.concat(found).set_axis(groups.size().index)


def _of_groups(
    side: Side, rows: pd.DataFrame, number: npt.NDArray[np.int64], count: int, cost: float
) -> pd.DataFrame:
    """What `per_step` says of groups.

    Args:
        side: the side.
        rows: theirs.
        number: of each row's group, from 0.
        count: how many groups.
        cost: what tracing adds to a gap, in ns.
    """
    place = number * side.steps + rows["at"].to_numpy()
    gap = without_tracing(rows["gap_ns"].to_numpy(), cost) / 1e3
    busy = rows["busy_ns"].to_numpy() / 1e3

    def by_step(values: npt.NDArray[Any]) -> Floats:
        sums = np.bincount(place, values, count * side.steps)
        return sums.astype(np.float64).reshape(-1, side.steps)

    us = by_step(busy + gap)
    return pd.DataFrame(
        {
            "us": side.middle.mean(us),
            "gap_us": side.middle.mean(by_step(gap)),
            "kernels": side.middle.mean(by_step(rows["call"].to_numpy())),
            "error": side.middle.error(us),
        }
    )


def beside(a: Side, b: Side, keys: Sequence[str], cost: float) -> pd.DataFrame:
    """What `per_step` says of both sides; what a side does not have is 0 there.

    Returns:
        The keys and `a_us`, `b_us`, `saved_us`, `noise_us` (its 95 % half-width), `gap_a_us`,
        `gap_b_us`, `kernels_a` and `kernels_b`, one row each combination of the keys.
    """
    left, right = per_step(a, keys, cost), per_step(b, keys, cost)
    index = left.index.union(right.index)
    left, right = left.reindex(index, fill_value=0.0), right.reindex(index, fill_value=0.0)
    columns = {
        "a_us": left["us"],
        "b_us": right["us"],
        "saved_us": left["us"] - right["us"],
        "noise_us": _TWO_SIDED_95 * np.hypot(left["error"], right["error"]),
        "gap_a_us": left["gap_us"],
        "gap_b_us": right["gap_us"],
        "kernels_a": left["kernels"],
        "kernels_b": right["kernels"],
    }
    return pd.DataFrame(columns, index=index).reset_index()


def component_gains(table: pd.DataFrame, touched: Collection[str]) -> tuple[ComponentGain, ...]:
    """One row each component, in the order in which a decoder runs them.

    Args:
        table: from `beside`, by component.
        touched: components that a swap changes.
    """
    rows = (ComponentGain(**row, touched=row["component"] in touched) for row in _records(table))
    return tuple(sorted(rows, key=lambda row: _ORDER[row.component]))


def layer_gains(table: pd.DataFrame, touched: Collection[str]) -> tuple[LayerGain, ...]:
    """One row each layer and component; those outside of the layers come first.

    Args:
        table: from `beside`, by layer and component.
        touched: components that a swap changes.
    """
    rows = [
        LayerGain(
            **row | {"layer": row["layer"] if row["layer"] >= 0 else None},
            touched=row["component"] in touched,
        )
        for row in _records(table.drop(columns=_GAPS))
    ]
    return tuple(
        sorted(rows, key=lambda r: (-1 if r.layer is None else r.layer, _ORDER[r.component]))
    )


def kernel_gains(table: pd.DataFrame, touched: Collection[str]) -> tuple[KernelGain, ...]:
    """One row each name and component, the largest changes first.

    Args:
        table: from `beside`, by name and component.
        touched: components that a swap changes.
    """
    found = table[table["component"] != FOR_THE_HOST].drop(columns=_GAPS)
    found = found.rename(columns={"kernels_a": "calls_a", "kernels_b": "calls_b"})
    rows = (KernelGain(**row, touched=row["component"] in touched) for row in _records(found))
    return tuple(sorted(rows, key=lambda row: (-abs(row.saved_us), row.name, row.component)))


def _records(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The rows, as what a row's dataclass is made of."""
    for record in table.to_dict("records"):
        yield {str(name): value for name, value in record.items()}
