"""Places what no range of the trace places: by another trace, else by what repeats."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.importers.alignment import Reference
from spark_prof.importers.modules import Modules
from spark_prof.importers.repeats import guess_layers
from spark_prof.importers.steps import Steps
from spark_prof.traces.timeline import FIRST_MODULE
from spark_prof.vocabulary import COMPONENTS

__all__ = ["Layers", "Placed"]

Int64s = npt.NDArray[np.int64]

_MOSTLY = 0.9
"""Layers are guessed only where ranges place less of the kernel time than the rest of this."""

_COLUMNS = ["module", "path", "type", "layer", "component"]


@dataclass(frozen=True)
class Placed:
    """The kernels with their places.

    Attributes:
        kernels: rows of the `kernels` table.
        modules: rows of the `modules` table that the new places need.
        lost: what could not be placed and why, one line each.
    """

    kernels: pd.DataFrame
    modules: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=_COLUMNS))
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layers:
    """What tells the layers where no range does.

    Attributes:
        references: traces of the same model whose layers are known, by rank; the entry None serves
            all ranks.
    """

    references: dict[int | None, Reference] = field(default_factory=dict)

    def place(self, kernels: pd.DataFrame, rank: int, steps: Steps, modules: Modules) -> Placed:
        """Places the kernels of a whole process that have no place yet.

        Args:
            kernels: rows of the `kernels` table.
            rank: the process's rank.
            steps: its steps.
            modules: its modules, whose numbers are taken.
        """
        free = FIRST_MODULE + len(modules.frame)
        component = np.append(modules.frame["component"].astype(str).to_numpy(object), "")
        module = kernels["module"].to_numpy(np.int64)
        own = component[np.where(module >= FIRST_MODULE, module - FIRST_MODULE, -1)]
        open_rows = (own == "") & ~((module >= 0) & (module < FIRST_MODULE))
        open_rows &= (kernels["kind"] == "kernel").to_numpy()
        open_rows &= kernels["step"].to_numpy() >= 0
        if not open_rows.any():
            return Placed(kernels)
        reference = self.references.get(rank, self.references.get(None))
        if reference is not None:
            return _aligned(kernels, open_rows, reference, steps, free)
        if _share(kernels, open_rows) < _MOSTLY:
            return Placed(kernels)
        return _guessed(kernels, open_rows, free)


def _share(kernels: pd.DataFrame, chosen: npt.NDArray[np.bool_]) -> float:
    """The share of the chosen rows in the time of all kernels."""
    length = (kernels["end_ns"] - kernels["start_ns"]).to_numpy(np.int64)
    length = np.where((kernels["kind"] == "kernel").to_numpy(), length, 0)
    return float(length[chosen].sum()) / max(int(length.sum()), 1)


def _aligned(
    kernels: pd.DataFrame,
    open_rows: npt.NDArray[np.bool_],
    reference: Reference,
    steps: Steps,
    free: int,
) -> Placed:
    """The kernels, those of `open_rows` placed as their partners in the reference."""
    phase = steps.frame()["phase"].to_numpy()
    ran = kernels[(kernels["kind"] == "kernel") & (kernels["step"] >= 0)]
    place = pd.Series(-1, kernels.index)
    known: dict[tuple[str, tuple[str, ...]], Int64s | None] = {}
    unlike = 0
    for step, rows in [(int(s), r) for s, r in ran.groupby(ran["step"].to_numpy(int))]:
        names = tuple(rows["name"].astype(str))
        key = str(phase[step]), names
        if key not in known:
            known[key] = reference.place(names, key[0])
        found = known[key]
        unlike += found is None
        if found is not None:
            place[rows.index] = found
    lost = []
    if unlike:
        lost.append(f"{unlike} steps are not like any step of {reference.source}: not aligned")
    found = _Found(place.to_numpy(dtype=np.int64), reference.places, "aligned", tuple(lost))
    return _with_places(kernels, found, open_rows, free)


def _guessed(kernels: pd.DataFrame, open_rows: npt.NDArray[np.bool_], free: int) -> Placed:
    """The kernels, those of `open_rows` placed by what repeats, if all of a step are open."""
    rows = kernels[kernels["kind"] == "kernel"]
    found = guess_layers(rows, np.full(len(rows), -1, np.int64))
    if found is None:
        return Placed(kernels)
    component, layer = found
    names = np.array([*COMPONENTS, ""], object)[component]
    frame = pd.DataFrame({"path": "", "type": "", "layer": layer, "component": names})
    known = (component >= 0) & ((layer >= 0) | (names == "lm_head"))
    places = frame[known].drop_duplicates().reset_index(drop=True)
    number = pd.MultiIndex.from_frame(places).get_indexer(pd.MultiIndex.from_frame(frame))
    place = pd.Series(-1, kernels.index)
    place[rows.index] = np.where(known, number, -1)
    line = "no range tells the layers: the n-th attention of a step counts as layer n (a guess)"
    told = _Found(place.to_numpy(dtype=np.int64), places, "guess", (line,))
    return _with_places(kernels, told, open_rows, free)


@dataclass(frozen=True)
class _Found:
    """Places of kernels: for each its number among the distinct `places`, -1 for none."""

    place: Int64s
    places: pd.DataFrame
    placed_by: str
    lost: tuple[str, ...]


def _with_places(
    kernels: pd.DataFrame, found: _Found, open_rows: npt.NDArray[np.bool_], free: int
) -> Placed:
    """Numbers the places as modules and gives them to the open rows."""
    mine = open_rows & (found.place >= 0)
    layer = np.append(found.places["layer"].to_numpy(np.int64), -1)[found.place]
    rows = kernels.assign(
        module=np.where(mine, found.place + free, kernels["module"]),
        layer=np.where(mine, layer, kernels["layer"]),
        placed_by=np.where(mine, found.placed_by, kernels["placed_by"]),
    )
    modules = found.places.assign(module=np.arange(len(found.places)) + free)
    return Placed(rows, modules[_COLUMNS], found.lost)
