"""Places what no range of the trace places: by another trace, else by what repeats."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.attribution.order import CODES
from spark_prof.importers.alignment import Reference, distinct
from spark_prof.importers.captures import Capture, components_by_capture
from spark_prof.importers.imported_steps import Steps
from spark_prof.importers.modules import Modules
from spark_prof.importers.repeats import Repeats, guess_layers
from spark_prof.traces.host_timeline import FIRST_MODULE
from spark_prof.vocabulary import COMPONENTS

Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_MOSTLY = 0.9
"""Layers are guessed only where ranges place less of the kernel time than the rest of this."""

_ANCHORS = tuple(CODES[name] for name in ("attention", "kv_write", "experts", "ssm"))
_COLUMNS = ["module", "path", "type", "layer", "component"]


@dataclass(frozen=True)
class Placed:
    """Rows of `kernels` with places, of `modules` that these need, and what is lost and why."""

    kernels: pd.DataFrame
    modules: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=_COLUMNS))
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layers:
    """What tells the layers where no range does."""

    # Traces of the same model whose layers are known, by rank; the entry None serves all ranks.
    references: dict[int | None, Reference] = field(default_factory=dict)
    # Captured graphs, by rank; the entry None serves all ranks.
    captures: dict[int | None, list[Capture]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.references or self.captures)

    def place(
        self, kernels: pd.DataFrame, rank: int, steps: Steps, modules: Modules, training: bool
    ) -> Placed:
        """Places the kernels of a whole process that have no layer yet.

        Args:
            kernels: rows of the `kernels` table, `in_graph` beside them.
            training: whether the trace says itself that a model is trained.
        """
        free = FIRST_MODULE + len(modules.frame)
        codes = [CODES.get(str(name), -1) for name in modules.frame["component"]]
        module = kernels["module"].to_numpy(np.int64)
        known = np.array([*codes, -1], np.int64)[
            np.maximum(module, FIRST_MODULE - 1) - FIRST_MODULE
        ]
        # Operators that vLLM hides from its compiler know what they are, but not in which layer.
        no_layer = kernels["layer"].to_numpy() < 0
        phase = (module >= 0) & (module < FIRST_MODULE)
        is_open = ((known < 0) | (np.isin(known, _ANCHORS) & no_layer)) & ~phase
        is_open &= (kernels["step"].to_numpy() >= 0) & (kernels["kind"] == "kernel").to_numpy()
        reference = self.references.get(rank, self.references.get(None))
        if reference is not None and is_open.any():
            return _aligned(kernels, is_open, reference, steps, free)
        is_open &= no_layer
        captured, used = self._captured(kernels, rank, steps)
        if not steps.known or _share(kernels, is_open) < _MOSTLY:
            return Placed(kernels, lost=used)
        known = np.where(captured >= 0, captured, np.where(is_open, known, -1))
        placed = _guessed(kernels, is_open, known, captured >= 0, steps, training, free)
        return replace(placed, lost=(*used, *placed.lost))

    def _captured(
        self, kernels: pd.DataFrame, rank: int, steps: Steps
    ) -> tuple[Int64s, tuple[str, ...]]:
        """The component of each kernel by the capture of its graph, -1 for none; what was used."""
        captures = self.captures.get(rank, self.captures.get(None, []))
        correlation = np.where(kernels["in_graph"], kernels["correlation"], -1).astype(np.int64)
        frame = steps.frame()
        tokens = np.append((frame["prefill_tokens"] + frame["decode_tokens"]).to_numpy(), 0)
        return components_by_capture(
            correlation, tokens[kernels["step"].to_numpy(np.int64)].astype(np.int64), captures
        )


def _share(kernels: pd.DataFrame, chosen: Flags) -> float:
    """The share of the chosen rows in the time of all kernels."""
    length = (kernels["end_ns"] - kernels["start_ns"]).where(kernels["kind"] == "kernel", 0)
    return float(length[chosen].sum()) / max(int(length.sum()), 1)


def _aligned(
    kernels: pd.DataFrame, is_open: Flags, reference: Reference, steps: Steps, free: int
) -> Placed:
    """The kernels, the open ones placed as their partners in the reference."""
    phase = steps.frame()["phase"].to_numpy()
    ran = kernels[(kernels["kind"] == "kernel") & (kernels["step"] >= 0)]
    place = pd.Series(-1, kernels.index)
    known: dict[tuple[str, tuple[str, ...]], Int64s | None] = {}
    unlike = 0
    for _, rows in ran.groupby("step", sort=True):
        key = str(phase[int(rows["step"].iloc[0])]), tuple(rows["name"].astype(str))
        if key not in known:
            known[key] = reference.place(key[1], key[0])
        found = known[key]
        unlike += found is None
        place[rows.index] = -1 if found is None else found
    line = f"{unlike} steps are not like any step of {reference.source}: not aligned"
    lost = (line,) if unlike else ()
    partners = np.asarray(place)
    return _placed(kernels, is_open, partners, reference.places, "aligned", free, lost)


def _guessed(
    kernels: pd.DataFrame, is_open: Flags, known: Int64s, captured: Flags, steps: Steps,
    training: bool, free: int,
) -> Placed:  # fmt: skip
    """The kernels, the open ones placed by captures and by what repeats."""
    chosen = (kernels["kind"] == "kernel").to_numpy()
    phase = np.append(steps.frame()["phase"].to_numpy(object), "unknown")
    ran = kernels.assign(phase=phase[kernels["step"].to_numpy(np.int64)])[chosen]
    if training:
        nowhere = np.full(len(ran), -1, np.int64)
        found = Repeats(known[chosen], nowhere, ("no layers: this is training",))
    else:
        in_graph = kernels["in_graph"].to_numpy()[chosen]
        found = guess_layers(ran, known[chosen], in_graph, steps.generates)
    names = np.array([*COMPONENTS, ""], object)[found.component]
    frame = pd.DataFrame({"path": "", "type": "", "layer": found.layer, "component": names})
    counted = (found.layer >= 0).any()
    sure = (found.layer >= 0) | captured[chosen] | ((names == "lm_head") & counted)
    places, number = distinct(frame, sure & (found.component >= 0))
    place = np.full(len(kernels), -1, np.int64)
    place[chosen] = number
    told = "no range tells the layers: the n-th attention of a step counts as layer n (a guess)"
    lost = (told, *found.notes) if counted else found.notes
    marks = np.where(captured, "aligned", "guess")
    return _placed(kernels, is_open, place, places, marks, free, lost)


def _placed(
    kernels: pd.DataFrame, is_open: Flags, place: Int64s, places: pd.DataFrame,
    placed_by: npt.NDArray[np.object_] | str, free: int, lost: tuple[str, ...],
) -> Placed:  # fmt: skip
    """The open rows with their `place`, the number of one of the `places`, -1 for none."""
    mine = is_open & (place >= 0)
    layer = np.append(places["layer"].to_numpy(np.int64), -1)[place]
    rows = kernels.assign(
        module=np.where(mine, place + free, kernels["module"]),
        layer=np.where(mine, layer, kernels["layer"]),
        placed_by=np.where(mine, placed_by, kernels["placed_by"]),
    )
    return Placed(rows, places.assign(module=np.arange(len(places)) + free)[_COLUMNS], lost)
