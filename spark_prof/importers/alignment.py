"""Carries layers and components from one trace onto another of the same model.

An eager run whose modules are known tells what the kernels of a CUDA graph work for: within a step
both launch the same sequence but for what a compiler fused. Every kernel placed so is marked
`aligned`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.classify.classifier import classify, finishes_gemm, is_gemm, split_name
from spark_prof.traces.bundle import Bundle

Int64s = npt.NDArray[np.int64]

_MOST_CELLS = 60_000_000
"""Longer pairs of sequences are not aligned: it would take more than a quarter of a gigabyte."""

_MOST_SEQUENCES = 4
"""So many different reference steps of a phase are tried."""

_LEAST_MATCHED = 0.5
"""Where fewer of a step's kernels have a partner, the two runs are not of one model."""


@dataclass(frozen=True)
class _Sequence:
    """Kernels of a reference step in launch order, places as numbers of Reference.places or -1.

    Of steps that launch kernels of the same names, one stands for all.
    """

    names: tuple[str, ...]
    components: tuple[str, ...] = field(compare=False)
    places: Int64s = field(compare=False)


@dataclass(frozen=True)
class Reference:
    """A trace whose layers are known."""

    source: str
    places: pd.DataFrame
    sequences: dict[str, list[_Sequence]]

    def place(self, names: tuple[str, ...], phase: str) -> Int64s | None:
        """The place of each kernel of a step, -1 for none; None where no step is like it.

        Args:
            phase: the step's phase; of an unknown one all sequences are tried.
        """
        known = self.sequences.get(phase) or [s for found in self.sequences.values() for s in found]
        fitting = [s for s in known if len(names) * len(s.names) <= _MOST_CELLS]
        partners = [align(names, sequence.names) for sequence in fitting]
        matched = [int((partner >= 0).sum()) for partner in partners]
        if not matched or max(matched) < _LEAST_MATCHED * len(names):
            return None
        best = matched.index(max(matched))
        return _filled(names, partners[best], fitting[best])


def reference_of(bundle: Bundle, rank: int) -> Reference:
    """Reads what one rank of a bundle knows about its kernels' places."""
    rank = rank if rank in bundle.ranks else bundle.ranks[0]
    kernels = place_kernels(bundle, rank, ["module"])
    kernels = kernels[(kernels["kind"] == "kernel") & (kernels["step"] >= 0)]
    modules = bundle.frame("modules", rank).set_index("module")
    told = modules[["path", "type"]].reindex(kernels["module"]).fillna("").astype(str)
    frame = told.reset_index(drop=True).assign(
        layer=kernels["layer"].to_numpy(), component=kernels["component"].astype(str).to_numpy()
    )
    known = kernels["placed"] & (kernels["component"] != "other")
    places, number = distinct(frame, known.to_numpy())
    phases = bundle.frame("steps", rank, ["step", "phase"]).set_index("step")["phase"].astype(str)
    found: dict[str, Counter[_Sequence]] = {}
    for step, rows in kernels.assign(place=number).groupby("step", sort=True):
        names, components = (tuple(rows[name].astype(str)) for name in ("name", "component"))
        sequence = _Sequence(names, components, rows["place"].to_numpy())
        found.setdefault(phases.get(step, "unknown"), Counter())[sequence] += 1
    common = {
        phase: [sequence for sequence, _ in counter.most_common(_MOST_SEQUENCES)]
        for phase, counter in found.items()
    }
    return Reference(bundle.path.name, places, common)


def distinct(rows: pd.DataFrame, chosen: npt.NDArray[np.bool_]) -> tuple[pd.DataFrame, Int64s]:
    """What differs among the chosen rows, and the number of each row among it, -1 for others."""
    number = np.full(len(rows), -1, np.int64)
    mine = rows[chosen]
    number[chosen] = mine.groupby(list(rows.columns), sort=False, dropna=False).ngroup()
    return mine.drop_duplicates().reset_index(drop=True), number


def _filled(names: tuple[str, ...], partner: Int64s, sequence: _Sequence) -> Int64s:
    """The place of each kernel: its partner's, else what the kernels there agree on.

    A kernel without partner, as one that a compiler made of several, stands for those of the
    reference that have none between the same two partners; where there are none, it goes on with
    the product before it, or belongs to one of its neighbours if that works for its component.
    """
    found = np.where(partner >= 0, sequence.places[partner], -1)
    matched = np.flatnonzero(partner >= 0)
    for index in np.flatnonzero(partner < 0).tolist():
        position = int(np.searchsorted(matched, index))
        low = int(partner[matched[position - 1]]) if position else -1
        high = int(partner[matched[position]]) if position < len(matched) else len(sequence.names)
        skipped = list(range(low + 1, high))
        near = skipped or [k for k in (high, low) if 0 <= k < len(sequence.names)]
        component = classify(names[index]).component
        alike = [k for k in near if sequence.components[k] == component]
        if finishes_gemm(names[index]) and low >= 0:
            alike = [low]
        elif component is None:
            alike = near[-1:] if skipped else near[:1]
        if alike:
            found[index] = sequence.places[alike[-1]]
    return found


def align(first: Sequence[str], second: Sequence[str]) -> Int64s:
    """For each kernel of the first sequence its partner in the second, -1 for none.

    It is the longest common subsequence, by dynamic programming. Kernels are alike that are called
    the same but for template arguments and numbers, that work for the same component, or that are
    both products; what a compiler fused is alike to the norm that its name tells.

    Args:
        second: the same of the other run; at most _MOST_CELLS pairs in all.
    """
    partner = np.full(len(first), -1, np.int64)
    if not len(first) or not len(second):
        return partner
    kinds = np.array([_kind(name) for name in (*first, *second)], object)
    numbers = np.unique(kinds, return_inverse=True)[1]
    rows, columns = numbers[: len(first)], numbers[len(first) :]
    best = np.zeros((len(first) + 1, len(second) + 1), np.int32)
    for i, row in enumerate(rows, 1):
        reached = np.maximum(best[i - 1, :-1] + (columns == row), best[i - 1, 1:])
        np.maximum.accumulate(reached, out=best[i, 1:])
    i, j = len(first), len(second)
    while i and j:
        if rows[i - 1] == columns[j - 1] and best[i, j] == best[i - 1, j - 1] + 1:
            partner[i - 1] = j - 1
            i, j = i - 1, j - 1
        elif best[i, j] == best[i - 1, j]:
            i -= 1
        else:
            j -= 1
    return partner


@lru_cache(maxsize=1 << 14)
def _kind(name: str) -> str:
    """What kernels that are alike have in common."""
    if is_gemm(name):
        component = classify(name).component
        return f"product {component or ''}"
    if finishes_gemm(name):
        return "rest of a product"
    fused = re.search(r"fused\w*?(norm|rsqrt)", name)
    component = "norm" if fused else classify(name).component
    return component or re.sub(r"\d+", "", split_name(name)[0])
