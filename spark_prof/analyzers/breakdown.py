"""Sums of kernel time: by component, by layer and component, and by kernel.

Millions of rows are added up once, by everything that tells them apart; the rows of a report are
made of these sums. They are added up in whole nanoseconds, and so are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.blocks import by_blocks
from spark_prof.analyzers.classify.classifier import Label, classify
from spark_prof.analyzers.lookup import Integers, NameColumn, positions
from spark_prof.analyzers.model import ComponentRow, KernelRow, LayerRow
from spark_prof.analyzers.placement import COPIES
from spark_prof.analyzers.step_time import Ledger
from spark_prof.vocabulary import PHASES

_OWNER = ("placed", "basis", "component", "role")
"""What place_kernels says of a kernel; of all combinations few occur."""
_KEYS = ("owner", "phase", "layer", "name")
"""What tells kernels apart, what has the fewest values first."""

_LARGEST_TABLE = 1 << 24
"""Combinations that are counted in a table; more are found by their hash."""

_Codes = dict[str, npt.NDArray[Any]]


def sums_of(kernels: pd.DataFrame, phase_of: pd.Series) -> pd.DataFrame:
    """Time and calls of the analyzed kernels, a row for each combination of what they are.

    A later stretch of an operator is no call of its own. Copies are no kernels.

    Args:
        kernels: name, kind, component, role, layer, placed, basis, step, part, start_ns and end_ns.
        phase_of: phase of each analyzed step, indexed by step in ascending order.

    Returns:
        name, component, role, layer, phase, placed, basis, ns and calls.
    """
    codes, values = _coded(kernels, phase_of)
    sizes = {key: len(values[key]) for key in values}
    codes["owner"], owners = _combined(_OWNER, codes, sizes)
    if len(owners) <= _LARGEST_TABLE:
        used = np.flatnonzero(np.bincount(codes["owner"], minlength=len(owners)))
        place = np.zeros(len(owners), np.int32)
        place[used] = np.arange(len(used))
        codes["owner"], owners = place[codes["owner"]], owners[used]
    code, known = _combined(_KEYS, codes, sizes | {"owner": len(owners)})
    rows = np.bincount(code, minlength=len(known))
    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    # As floats, which count whole nanoseconds up to a hundred days exactly.
    took = by_blocks(len(kernels), np.float64, lambda block: end[block] - start[block])
    ns = np.bincount(code, weights=took, minlength=len(known))
    part = kernels["part"].to_numpy()
    calls = np.bincount(code[part == 0], minlength=len(known)) if part.any() else rows
    found = np.flatnonzero(rows)
    places = _taken_apart(_KEYS, known[found], sizes | {"owner": len(owners)})
    places |= _taken_apart(_OWNER, owners[places.pop("owner")], sizes)
    columns = {key: values[key][own] for key, own in places.items()}
    sums = pd.DataFrame(columns).assign(ns=ns[found].astype(np.int64), calls=calls[found])
    return sums[sums["phase"].notna()]


def _combined(
    keys: tuple[str, ...], codes: _Codes, sizes: dict[str, int]
) -> tuple[Integers, Integers]:
    """For each row a small number of its combination, and what these numbers stand for."""
    space = math.prod(sizes[key] for key in keys)

    def combined(block: slice) -> npt.NDArray[np.int64]:
        code = np.zeros(block.stop - block.start, np.int64)
        for key in keys:
            code *= sizes[key]
            code += codes[key][block]
        return code

    rows = len(codes[keys[0]])
    code: Integers = by_blocks(rows, np.int64, combined)
    if space <= _LARGEST_TABLE:
        return code, np.arange(space)
    numbers, known = pd.factorize(code)
    return numbers, known


def _taken_apart(keys: tuple[str, ...], known: Integers, sizes: dict[str, int]) -> _Codes:
    """The codes that were combined."""
    found: _Codes = {}
    for key in reversed(keys):
        known, found[key] = np.divmod(known, sizes[key])
    return found


def component_rows(
    sums: pd.DataFrame, decode_steps: int, typical: Ledger | None = None
) -> tuple[ComponentRow, ...]:
    """One row per component that occurs, the most expensive first.

    Args:
        sums: what `sums_of` returned.
        decode_steps: how many there are.
        typical: the typical decode step; without one the time of a step is the mean.
    """
    ns = sums.groupby(["component", "phase"], observed=True)["ns"].sum()
    totals = sums.groupby("component", observed=True)[["ns", "calls"]].sum()
    totals = totals.sort_values("ns", ascending=False, kind="stable")
    total = int(totals["ns"].sum()) or 1
    rows = []
    for name, own, calls in totals.itertuples(name=None):
        us = {phase: float(ns.get((name, phase), 0)) / 1e3 for phase in PHASES}
        rows.append(
            ComponentRow(
                name=str(name),
                us=own / 1e3,
                share=own / total,
                kernels=int(calls),
                prefill_us=us["prefill"],
                decode_us=us["decode"],
                mixed_us=us["mixed"],
                unknown_us=us["unknown"],
                decode_us_per_step=typical.us(str(name))
                if typical
                else us["decode"] / max(decode_steps, 1),
            )
        )
    return tuple(rows)


def layer_rows(sums: pd.DataFrame) -> tuple[LayerRow, ...]:
    """One row per layer and component, in the model's order; layer None comes first."""
    keys = ["layer", "component"]
    found = sums.groupby(keys, observed=True)[["ns", "calls"]].sum()
    basis = _basis_of_most(sums, keys)
    return tuple(
        LayerRow(
            int(layer) if layer >= 0 else None,
            str(component),
            ns / 1e3,
            int(calls),
            basis[layer, component],
        )
        for (layer, component), ns, calls in found.itertuples(name=None)
    )


def kernel_rows(
    sums: pd.DataFrame, label_of: Callable[[str], Label] = classify
) -> tuple[KernelRow, ...]:
    """One row per kernel name and component, the most expensive first.

    Args:
        sums: what `sums_of` returned.
        label_of: what is known about a kernel of that name.
    """
    in_decode = sums["ns"].where(sums["phase"] == "decode", 0)
    keys = ["name", "component"]
    found = sums.assign(decode=in_decode).groupby(keys, observed=True)[["ns", "decode", "calls"]]
    rows = found.sum().sort_values("ns", ascending=False, kind="stable")
    total = int(rows["ns"].sum()) or 1
    basis = _basis_of_most(sums, keys)
    by_role = sums[(sums["role"] != "").to_numpy()].groupby([*keys, "role"], observed=True)["ns"]
    roles: dict[tuple[str, str], tuple[str, ...]] = {}
    for own, component, role in by_role.sum().sort_values(ascending=False, kind="stable").index:
        roles[own, component] = (*roles.get((own, component), ()), str(role))
    return tuple(
        KernelRow(
            name=str(name),
            calls=int(calls),
            us=ns / 1e3,
            share=ns / total,
            component=str(component),
            engine=label.engine,
            precision=label.precision,
            evidence=label.evidence,
            conversion=label.conversion,
            decode_us=decode / 1e3,
            weights=label.weights,
            basis=basis[name, component],
            roles=roles.get((name, component), ()),
        )
        for (name, component), ns, decode, calls in rows.itertuples(name=None)
        for label in [label_of(str(name))]
    )


def _basis_of_most(sums: pd.DataFrame, keys: list[str]) -> dict[tuple[object, ...], str]:
    """For each combination of the keys, the basis that has most of its time; of equals the best."""
    by_basis = sums.groupby([*keys, "basis"], observed=True)["ns"].sum().reset_index()
    most = by_basis.sort_values("ns", ascending=False, kind="stable").drop_duplicates(keys)
    values = most[[*keys, "basis"]].itertuples(index=False, name=None)
    return {tuple(row[:-1]): str(row[-1]) for row in values}


def _coded(
    kernels: pd.DataFrame, phase_of: pd.Series
) -> tuple[_Codes, dict[str, pd.Index | pd.Categorical]]:
    """For each key a small number each row, and the values that the numbers stand for."""
    step = positions(phase_of.index.to_numpy(), kernels["step"].to_numpy())
    # What belongs to no analyzed step, or is no kernel, gets the phase behind the last one.
    phase = pd.Categorical(phase_of, categories=PHASES).codes.astype(np.int8)
    in_phase = np.append(phase, np.int8(len(PHASES)))[step]
    in_phase[NameColumn(kernels["kind"]).flags(lambda kind: kind in COPIES)] = len(PHASES)
    codes: _Codes = {
        "placed": kernels["placed"].to_numpy(),
        "phase": in_phase,
    }
    values: dict[str, pd.Index | pd.Categorical] = {
        "placed": pd.Index([False, True]),
        "phase": pd.Categorical([*PHASES, None], categories=PHASES),
    }
    for key in ("basis", "component", "role", "name"):
        column = kernels[key].array
        codes[key] = column.codes
        values[key] = pd.Categorical.from_codes(range(len(column.categories)), dtype=column.dtype)
    codes["layer"], values["layer"] = _numbers(kernels["layer"].to_numpy())
    return codes, values


def _numbers(layer: Integers) -> tuple[Integers, pd.Index]:
    """Layers as small numbers, and which they are."""
    if not len(layer):
        return layer, pd.Index([], dtype=np.int64)
    lowest, highest = int(layer.min()), int(layer.max())
    if highest - lowest > 1 << 12:
        found, known = pd.factorize(layer)
        return found, pd.Index(known)
    return layer - layer.dtype.type(lowest), pd.Index(range(lowest, highest + 1))
