"""Carries layers and components from one trace onto another of the same model.

An eager run whose modules are known tells what the kernels of a CUDA graph work for: within a step
both launch the same sequence but for what a compiler fused. Every kernel placed so is marked
`aligned`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.classify.classifier import classify, finishes_gemm, is_gemm
from spark_prof.analyzers.placement import place_kernels
from spark_prof.importers.sequence import MOST_CELLS, align
from spark_prof.traces.bundle import Bundle

__all__ = ["Reference", "reference_of"]

Int64s = npt.NDArray[np.int64]

_MOST_SEQUENCES = 4
"""So many different reference steps of a phase are tried."""

_LEAST_MATCHED = 0.5
"""Where fewer of a step's kernels have a partner, the two runs are not of one model."""


@dataclass(frozen=True)
class _Sequence:
    """The kernels of one reference step, in launch order.

    Attributes:
        names: their names.
        places: their places, numbers of Reference.places; -1 for a kernel without one.
        components: the component of each.
    """

    names: tuple[str, ...]
    places: Int64s
    components: tuple[str, ...]


@dataclass(frozen=True)
class Reference:
    """A trace whose layers are known.

    Attributes:
        source: what it is called.
        places: distinct `path`, `type`, `layer` and `component` of its kernels.
        sequences: its most common steps, by phase.
    """

    source: str
    places: pd.DataFrame
    sequences: dict[str, list[_Sequence]]

    def place(self, names: tuple[str, ...], phase: str) -> Int64s | None:
        """The place of each kernel of a step, -1 for none; None where no step is like it.

        Args:
            names: the step's kernels in launch order.
            phase: the step's phase; of an unknown one all sequences are tried.
        """
        known = self.sequences.get(phase) or [s for found in self.sequences.values() for s in found]
        best: tuple[int, Int64s, _Sequence] | None = None
        for sequence in known:
            if len(names) * len(sequence.names) > MOST_CELLS:
                continue
            partner = align(names, sequence.names)
            matched = int((partner >= 0).sum())
            if best is None or matched > best[0]:
                best = matched, partner, sequence
        if best is None or best[0] < _LEAST_MATCHED * len(names):
            return None
        layers = np.append(self.places["layer"].to_numpy(np.int64), -1)
        return _filled(names, best[1], best[2], layers)


def reference_of(bundle: Bundle, rank: int) -> Reference:
    """Reads what one rank of a bundle knows about its kernels' places."""
    rank = rank if rank in bundle.ranks else bundle.ranks[0]
    kernels = place_kernels(bundle, rank, ["module"])
    kernels = kernels[(kernels["kind"] == "kernel") & (kernels["step"] >= 0)]
    modules = bundle.frame("modules", rank).set_index("module")
    columns = ["path", "type"]
    told = modules[columns].reindex(kernels["module"]).fillna("").astype(str)
    frame = pd.DataFrame(
        {
            "path": told["path"].to_numpy(),
            "type": told["type"].to_numpy(),
            "layer": kernels["layer"].to_numpy(),
            "component": kernels["component"].astype(str).to_numpy(),
        }
    )
    known = (kernels["placed"] & (kernels["component"] != "other")).to_numpy()
    places = frame[known].drop_duplicates().reset_index(drop=True)
    number = pd.MultiIndex.from_frame(places).get_indexer(pd.MultiIndex.from_frame(frame))
    kernels = kernels.assign(place=np.where(known, number, -1))
    phases = bundle.frame("steps", rank, ["step", "phase"]).set_index("step")["phase"].astype(str)
    return Reference(bundle.path.name, places, _common(kernels, phases))


def _common(kernels: pd.DataFrame, phases: pd.Series) -> dict[str, list[_Sequence]]:
    counts: dict[str, Counter[tuple[str, ...]]] = {}
    first: dict[tuple[str, tuple[str, ...]], _Sequence] = {}
    for step, rows in kernels.groupby("step", sort=True):
        phase = phases.get(step, "unknown")
        names = tuple(rows["name"].astype(str))
        counts.setdefault(phase, Counter())[names] += 1
        if (phase, names) not in first:
            components = tuple(rows["component"].astype(str))
            places = rows["place"].to_numpy(np.int64)
            first[phase, names] = _Sequence(names, places, components)
    return {
        phase: [first[phase, names] for names, _ in counter.most_common(_MOST_SEQUENCES)]
        for phase, counter in counts.items()
    }


def _filled(names: tuple[str, ...], partner: Int64s, sequence: _Sequence, layers: Int64s) -> Int64s:
    """The place of each kernel: its partner's, else what its neighbours tell."""
    found = np.where(partner >= 0, sequence.places[partner], -1)
    matched = np.flatnonzero(partner >= 0)
    for index in np.flatnonzero(partner < 0).tolist():
        position = int(np.searchsorted(matched, index))
        before = int(matched[position - 1]) if position else -1
        after = int(matched[position]) if position < len(matched) else len(names)
        low = int(partner[before]) if before >= 0 else -1
        high = int(partner[after]) if after < len(names) else len(sequence.names)
        found[index] = _between(names[index], range(low + 1, high), (low, high), sequence, layers)
    return found


def _between(
    name: str, skipped: range, ends: tuple[int, int], sequence: _Sequence, layers: Int64s
) -> int:
    """The place of a kernel that the reference has not: it ran between two that it has."""
    component = classify(name).component
    if skipped:
        alike = [k for k in skipped if sequence.components[k] == component]
        one_place = len({int(sequence.places[k]) for k in skipped}) == 1
        if alike or one_place or component is None:
            return int(sequence.places[(alike or list(skipped))[-1]])
    low, high = (end if 0 <= end < len(sequence.names) else -1 for end in ends)
    if low < 0 or (high >= 0 and component is not None and component == sequence.components[high]):
        return int(sequence.places[high]) if high >= 0 else -1
    # Between a product and what a compiler made of several kernels it is one more of those.
    fused = component is None and not finishes_gemm(name) and is_gemm(sequence.names[low])
    if fused and high >= 0 and not is_gemm(sequence.names[high]):
        return int(sequence.places[high])
    # What its name calls something else than its neighbours is theirs only within one layer.
    if component is not None and component != sequence.components[low] and not finishes_gemm(name):
        inside = high >= 0 and layers[sequence.places[low]] == layers[sequence.places[high]] >= 0
        return int(sequence.places[low]) if inside else -1
    return int(sequence.places[low])
