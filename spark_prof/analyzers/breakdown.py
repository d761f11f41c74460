"""Sums of kernel time: by component, by layer and component, by kernel; copies beside them.

Millions of rows are added up once, by everything that tells them apart; the rows of a report are
made of these sums. They are added up in whole nanoseconds, and so are exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.classify.classifier import Label, classify, exchange_inside
from spark_prof.analyzers.classify.code_rows import CodeRow, Conflict
from spark_prof.analyzers.classify.evidence import KernelEvidence
from spark_prof.analyzers.instants import OwnedTime
from spark_prof.analyzers.lookup import Integers, combined, copies_in, positions, sums_of_blocks
from spark_prof.analyzers.step_time import COPIED, GAPS, ROUNDING_US, StepAccount, step_weights
from spark_prof.arrays import Floats, exact
from spark_prof.rules.components import part_of
from spark_prof.vocabulary import BASES, BASIS_CLASSES, PHASES

_KEYS = ["placed", "basis", "component", "role", "layer", "name"]
"""What tells kernels apart beside their phase, what has the fewest values first."""


@dataclass(frozen=True)
class Coverage:
    """Shares of the summed kernel time whose owner is known, by how it is known.

    The last four add up to 1. What has a component that belongs to a layer, but no layer, is
    unknown there unless it is a guess. See vocabulary.BASIS_CLASSES.
    """

    layer: float  # in a decoder layer, or in what belongs to none by its nature; no guess counts
    component: float  # in a component other than `other`; no guess counts
    engine: float  # on an engine other than `unknown`
    unplaced_us: float  # kernel time with neither a layer nor a named component
    placed: float  # as `layer`, guesses included
    proven: float  # the kernel reads its owner's weight, cache or state, or its module was open
    derived: float  # it shares data with a kernel whose owner is proven
    guessed: float  # its place in a layer or its name tells, or another trace
    unknown: float  # nothing tells


@dataclass(frozen=True)
class ComponentRow:
    """Time of one component over all steps, and by phase."""

    name: str
    us: float
    share: float
    kernels: int
    prefill_us: float
    decode_us: float
    mixed_us: float
    unknown_us: float
    decode_us_per_step: float  # kernel time of the typical decode step, as layers and kernels have


@dataclass(frozen=True)
class LayerRow:
    """Time of one component in one decoder layer; layer None is outside the layers."""

    layer: int | None
    component: str
    us: float
    kernels: int
    basis: str = "none"  # on what the owners of most of its time stand; see vocabulary.BASES
    decode_us_per_step: float = 0.0  # of the typical decode step, as in `step_time`
    # Outside the decoder's layers the part of the model that has layers of its own, such as
    # encoder or drafter; else empty.
    part: str = ""


@dataclass(frozen=True)
class KernelRow:
    """All calls of one kernel that work for one component."""

    name: str
    calls: int
    us: float
    share: float
    component: str
    engine: str
    precision: str | None
    evidence: str
    conversion: str | None
    weights: str | None = None
    """Format in which its weights are stored, where that is not what it computes in."""
    decode_us: float = 0.0  # what of its time belongs to decode steps
    basis: str = "none"  # on what the owners of most of its time stand; see vocabulary.BASES
    roles: tuple[str, ...] = ()  # the known roles of its calls, that with the most time first
    decode_us_per_step: float = 0.0  # of the typical decode step, as in `step_time`
    decode_calls_per_step: float = 0.0
    # How long before its time a call was seen to start, while the one before it ran on its stream;
    # a mean. A call's whole duration, as `classify` and the trace have it, is longer by this.
    ahead_us: float = 0.0
    # What it exchanges between ranks beside its product, such as all_reduce: its time holds waits
    # for other ranks. None where it is no such product.
    exchanges: str | None = None


@dataclass(frozen=True)
class TypicalKernel:
    """All calls of one kernel in one role of a component, in the typical step of a phase."""

    phase: str
    component: str
    role: str
    name: str
    calls: float
    us: float  # its part of the step: those of all kernels, copies and gaps add up to it
    kernel_us: float  # how long it ran, overlaps counted in full
    ahead_us: float  # of a call, as in `KernelRow`
    all_calls: int = 0  # in all steps of the phase
    basis: str = "none"  # of component and role: the weakest of the bases of its calls


@dataclass(frozen=True)
class CopyRow:
    """All copies or memsets of one name."""

    name: str
    kind: str  # memcpy or memset
    calls: int
    us: float
    bytes: int  # what they moved or set, 0 where unknown


@dataclass(frozen=True)
class Copies:
    """What copy engines and memsets did beside the kernels, whose sums contain none of it."""

    us: float = 0.0
    bytes: int = 0
    share: float | None = 0.0
    """Their time over that in which anything ran; None where nothing tells that."""
    items: tuple[CopyRow, ...] = ()


def sums_of(
    kernels: pd.DataFrame,
    phase_of: pd.Series,
    windows: pd.DataFrame | None = None,
    owned: OwnedTime | None = None,
) -> pd.DataFrame:
    """Time (`ns`) and `calls` of the analyzed kernels, for each combination of `phase` and _KEYS.

    A later stretch of an operator is no call of its own. Copies are no kernels. Of each analyzed
    step there is its phase, indexed by step in ascending order, and begin_ns and finish_ns in
    `windows`. `us` and `step_calls` are time and calls of the typical step of the phase, which
    without windows is the mean; `ahead_us` is how much earlier its kernels were seen to start.
    `attributed_us` is what of the typical step belongs to them, as `owned` has it of each kernel;
    without that it is `us`. Of what they run in steps of another phase it has nothing.
    """
    step = positions(phase_of.index.to_numpy(), kernels["step"].to_numpy())
    # What belongs to no analyzed step, or is no kernel, gets the phase behind the last one.
    phase = pd.Categorical(phase_of, categories=PHASES)
    in_phase = np.append(phase.codes.astype(np.int8), np.int8(len(PHASES)))[step]
    in_phase[copies_in(kernels)] = len(PHASES)
    code, first = combined(in_phase, *(kernels[key] for key in _KEYS))
    of_step = step_weights(phase_of, windows)
    added = _added(kernels, code, len(first), np.append(of_step, 0.0), step)
    sums = (
        kernels[_KEYS]
        .iloc[first]
        .assign(
            phase=pd.Categorical([*PHASES, None], categories=PHASES)[in_phase[first]],
            ns=added.ns.astype(np.int64),
            calls=added.calls.astype(np.int64),
            us=exact(added.typical_ns / 1e3),
            ahead_us=added.typical_ahead_ns / 1e3,
            step_calls=added.typical_calls,
        )
    )
    sums["attributed_us"] = sums["us"] if owned is None else 0.0
    if owned is not None:
        for place in np.unique(phase.codes):
            ns = owned.weighted(np.where(phase.codes == place, of_step, 0.0))
            own_us = exact(_sum_by_code(code, ns, len(first)) / 1e3)
            sums["attributed_us"] += np.where(in_phase[first] == place, own_us, 0.0)
    for column in ("ns", "us", "step_calls"):
        sums[f"decode_{column}"] = sums[column].where(sums["phase"] == "decode", 0)
    return sums[sums["phase"].notna()].reset_index(drop=True)


class _Added(NamedTuple):
    """What each code's rows add up to."""

    ns: Floats  # whole nanoseconds, which floats count exactly up to a hundred days
    calls: Floats
    typical_ns: Floats  # of the typical step
    typical_ahead_ns: Floats
    typical_calls: Floats


def _added(
    kernels: pd.DataFrame, code: Integers, codes: int, weights: Floats, step: Integers
) -> _Added:
    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    part = kernels["part"].to_numpy()
    ahead = kernels["ahead_ns"].to_numpy() if "ahead_ns" in kernels else None

    def of_block(block: slice) -> list[npt.NDArray[Any]]:
        took, is_call, weight = end[block] - start[block], part[block] == 0, weights[step[block]]
        # Most steps weigh nothing in the typical one.
        typical = np.flatnonzero(weight)
        weight, typical_code = weight[typical], code[block][typical]
        early = np.zeros(len(typical)) if ahead is None else ahead[block][typical] * weight
        return [
            np.bincount(code[block], took, codes),
            np.bincount(code[block], is_call, codes),
            np.bincount(typical_code, took[typical] * weight, codes),
            np.bincount(typical_code, early, codes),
            np.bincount(typical_code, is_call[typical] * weight, codes),
        ]

    return _Added(*sums_of_blocks(len(code), 5, codes, of_block))


def _sum_by_code(code: Integers, values: Floats, codes: int) -> Floats:
    def of_block(block: slice) -> list[npt.NDArray[Any]]:
        return [np.bincount(code[block], values[block], codes)]

    return sums_of_blocks(len(code), 1, codes, of_block)[0]


def typical_kernels(
    sums: pd.DataFrame, accounts: Iterable[StepAccount] = ()
) -> tuple[TypicalKernel, ...]:
    """The kernels of the typical step of each phase, in the order of their names.

    Those of a component add up to its part of the account. What steps of other phases launched, or
    none, comes last and has no name.
    """
    figures = ["calls", "step_calls", "attributed_us", "us", "ahead_us"]
    weakest = sums["basis"].map(BASES.index).astype(int)
    groups = sums.assign(weakest=weakest).groupby(
        ["phase", "component", "role", "name"], observed=True
    )
    rows = groups[figures].sum().assign(weakest=groups["weakest"].max())
    kernels = [
        TypicalKernel(str(phase), str(component), str(role), str(name), calls, us, kernel_us,
                      ahead / calls if calls else 0.0, int(all_calls), BASES[basis])
        for (phase, component, role, name), all_calls, calls, us, kernel_us, ahead, basis in (
            rows.itertuples(name=None)
        )
    ]  # fmt: skip
    parts = {
        (account.phase, part.name): part.us
        for account in accounts
        for part in (account.parts if account.batch_size is None else ())
        if part.name not in (*GAPS, COPIED)
    }
    for (phase, component), us in parts.items():
        places = [n for n, k in enumerate(kernels) if (k.phase, k.component) == (phase, component)]
        left = us - sum(kernels[place].us for place in places)
        if places and abs(left) < ROUNDING_US:
            largest = max(places, key=lambda place: kernels[place].us)
            kernels[largest] = replace(kernels[largest], us=kernels[largest].us + left)
        elif left > 0:
            kernels.append(TypicalKernel(phase, component, "", "", 0.0, left, 0.0, 0.0))
    return tuple(kernels)


def component_rows(sums: pd.DataFrame) -> tuple[ComponentRow, ...]:
    """One row per component that occurs, the most expensive first."""
    ns = sums.groupby(["component", "phase"], observed=True)["ns"].sum()
    totals = sums.groupby("component", observed=True)[["ns", "calls", "decode_us"]].sum()
    totals = totals.sort_values("ns", ascending=False, kind="stable")
    total = int(totals["ns"].sum()) or 1
    return tuple(
        ComponentRow(
            name, row_ns / 1e3, row_ns / total, calls, decode_us_per_step=a_step,
            **{f"{phase}_us": float(ns.get((name, phase), 0)) / 1e3 for phase in PHASES},
        )
        for name, row_ns, calls, a_step in totals.itertuples(name=None)
    )  # fmt: skip


def layer_rows(sums: pd.DataFrame) -> tuple[LayerRow, ...]:
    """One row per layer and component, in the model's order; layer None comes first.

    What works for an encoder or a drafter has rows of its own, which name that part.
    """
    keys = ["layer", "component", "part"]
    roles = sums["role"].astype(str)
    named = roles.map({role: part_of(role) for role in roles.unique().tolist()})
    parts = named.where(sums["layer"] < 0, "")
    sums = sums.assign(part=parts)
    totals = sums.groupby(keys, observed=True)[["ns", "calls", "decode_us"]].sum()
    basis = _basis_of_most(sums, keys)
    return tuple(
        LayerRow(
            layer=int(at) if at >= 0 else None, component=component, us=ns / 1e3, kernels=calls,
            basis=basis[at, component, part], decode_us_per_step=us, part=part,
        )
        for (at, component, part), ns, calls, us in totals.itertuples(name=None)
    )  # fmt: skip


def kernel_rows(
    sums: pd.DataFrame, label_of: Callable[[str], Label] = classify
) -> tuple[KernelRow, ...]:
    """One row per kernel name and component, the most expensive first."""
    keys = ["name", "component"]
    figures = ["ns", "calls", "decode_ns", "decode_us", "decode_step_calls", "ahead_us",
               "step_calls"]  # fmt: skip
    rows = sums.groupby(keys, observed=True)[figures].sum()
    rows = rows.sort_values("ns", ascending=False, kind="stable")
    total = int(rows["ns"].sum()) or 1
    basis = _basis_of_most(sums, keys)
    by_role = sums[(sums["role"] != "").to_numpy()].groupby([*keys, "role"], observed=True)["ns"]
    roles: dict[tuple[str, str], tuple[str, ...]] = {}
    for kernel_name, component, role in (
        by_role.sum().sort_values(ascending=False, kind="stable").index
    ):
        roles[kernel_name, component] = (*roles.get((kernel_name, component), ()), str(role))
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
            decode_us_per_step=us,
            decode_calls_per_step=decode_calls,
            ahead_us=ahead / step_calls if step_calls else 0.0,
            exchanges=exchange_inside(str(name)),
        )
        for (name, component), ns, calls, decode, us, decode_calls, ahead, step_calls in (
            rows.itertuples(name=None)
        )
        for label in [label_of(str(name))]
    )


def _basis_of_most(sums: pd.DataFrame, keys: list[str]) -> dict[tuple[object, ...], str]:
    """For each combination of the keys, the basis that has most of its time; of equals the best."""
    by_basis = sums.groupby([*keys, "basis"], observed=True)["ns"].sum().reset_index()
    most = by_basis.sort_values("ns", ascending=False, kind="stable").drop_duplicates(keys)
    values = most[[*keys, "basis"]].itertuples(index=False, name=None)
    return {tuple(row[:-1]): str(row[-1]) for row in values}


def coverage_of(sums: pd.DataFrame, rows: tuple[KernelRow, ...]) -> Coverage:
    """How much of the summed kernel time has a known owner, and how it is known."""
    ns, placed = sums["ns"], sums["placed"]
    total = int(ns.sum()) or 1
    named = sums["component"] != "other"
    of = {name: sums["basis"].isin(bases) for name, bases in BASIS_CLASSES.items()}
    proven_or_derived = of["proven"] | of["derived"]

    def share(chosen: pd.Series) -> float:
        return int(ns[chosen].sum()) / total

    return Coverage(
        layer=share(placed & proven_or_derived),
        component=share(named & proven_or_derived),
        engine=sum(row.share for row in rows if row.engine != "unknown"),
        unplaced_us=int(ns[~placed & ~named].sum()) / 1e3,
        placed=share(placed & (proven_or_derived | of["guessed"])),
        proven=share(placed & of["proven"]),
        derived=share(placed & of["derived"]),
        guessed=share(of["guessed"]),
        unknown=share(of["unknown"] | (proven_or_derived & ~placed)),
    )


def copies_of(kernels: pd.DataFrame, steps: pd.Index, busy_us: float | None) -> Copies:
    """The copies and memsets of the analyzed steps, the most expensive first.

    In `busy_us` anything ran; None where nothing tells.
    """
    is_copy = copies_in(kernels)
    copies = kernels.loc[is_copy, ["name", "kind", "step", "start_ns", "end_ns", "bytes"]]
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


def code_of(evidence: KernelEvidence, kernels: Sequence[KernelRow]) -> tuple[CodeRow, ...]:
    """The machine code of the kernels, the most expensive first.

    Where several pieces have a kernel's name, which of them ran is unknown: each has all its time.
    """
    us, decode_us = _by_name(kernels, "us"), _by_name(kernels, "decode_us")
    rows = (
        replace(row, us=us[row.name], decode_us=decode_us[row.name]) for row in evidence.codes(us)
    )
    return tuple(sorted(rows, key=lambda row: -row.us))


def conflicts_of(evidence: KernelEvidence, kernels: Sequence[KernelRow]) -> tuple[Conflict, ...]:
    """The kernels whose names contradict better evidence, the most expensive first."""
    us = _by_name(kernels, "us")
    conflicts = (replace(conflict, us=us[conflict.name]) for conflict in evidence.conflicts(us))
    return tuple(sorted(conflicts, key=lambda conflict: -conflict.us))


def _by_name(kernels: Sequence[KernelRow], time: str) -> dict[str, float]:
    totals: defaultdict[str, float] = defaultdict(float)
    for row in kernels:
        totals[row.name] += getattr(row, time)
    return totals
