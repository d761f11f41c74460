"""Groups steps that work on about as much, and picks one of each group to look at closely."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.lookup import positions
from spark_prof.analyzers.placement import COPIES
from spark_prof.analyzers.roofline.launches import Launch
from spark_prof.analyzers.roofline.needs import Load
from spark_prof.traces.timeline import MODEL_PATH
from spark_prof.vocabulary import BASIS_CLASSES

__all__ = ["Group", "Owners", "groups_of", "launches_of"]

_MOST_GROUPS = 8
_MOST_LAUNCHES = 100_000


@dataclass(frozen=True)
class Group:
    """Steps of one phase with about as many tokens.

    Attributes:
        step: the one that stands for them, a step from their middle.
        load: their mean.
        share: how many of the phase's steps they are.
    """

    step: int
    load: Load
    share: float


def groups_of(steps: pd.DataFrame, phase: str) -> list[Group]:
    """The steps of a phase in at most 8 groups, fewest tokens first.

    Steps of which nobody recorded the tokens are in none.

    Args:
        steps: the watched steps, indexed by step, with phase and their counts.
        phase: decode or prefill.
    """
    own = steps[(steps["phase"] == phase).to_numpy()]
    tokens = (own["prefill_tokens"] + own["decode_tokens"]).to_numpy(np.float64)
    requests = (own["prefill_requests"] + own["decode_requests"]).to_numpy(np.float64)
    known = (tokens > 0) & (requests > 0)
    own, tokens, requests = own[known], tokens[known], requests[known]
    sizes = np.unique(tokens)
    # Neighbours share a group where there are many sizes.
    bounds = [part[0] for part in np.array_split(sizes, min(len(sizes), _MOST_GROUPS) or 1)[1:]]
    number = np.searchsorted(np.array(bounds), tokens, side="right")
    return [
        _group(own[mine], tokens[mine], requests[mine], len(own))
        for index in range(len(bounds) + 1)
        if (mine := number == index).any()
    ]


@dataclass(frozen=True, eq=False)
class Owners:
    """What is known of the kernels' owners.

    Attributes:
        modules: the `modules` table.
        nodes: node and original of the `graph_nodes` table.
        reads: what `tensors_read` returned; empty where no addresses were recorded.
    """

    modules: pd.DataFrame = field(default_factory=pd.DataFrame)
    nodes: pd.DataFrame = field(default_factory=pd.DataFrame)
    reads: pd.DataFrame = field(default_factory=pd.DataFrame)


def launches_of(kernels: pd.DataFrame, steps: list[int], owners: Owners) -> dict[int, list[Launch]]:
    """The kernels of those steps in order of start, copies left out.

    None of a step with more kernels than any decoder launches: it is no step of one.

    Args:
        kernels: name, kind, component, layer, step, part, module, placed_by, start_ns and end_ns,
            by start; where addresses were recorded, also correlation and graph_node.
        steps: numbers of steps.
        owners: what is known of their owners.
    """
    wanted = np.unique(np.array(steps, np.int64))
    chosen = np.flatnonzero(positions(wanted, kernels["step"].to_numpy()) >= 0)
    columns = ["step", "name", "component", "layer", "start_ns", "end_ns", "kind", "part"]
    columns += ["module", "placed_by", *(["basis"] if "basis" in kernels else [])]
    columns += ["correlation", "graph_node"] if len(owners.reads) else []
    rows = pd.DataFrame({name: kernels[name].array.take(chosen) for name in columns})
    rows = rows[~rows["kind"].isin(COPIES).to_numpy() & (rows["part"] == 0).to_numpy()]
    found: dict[int, list[Launch]] = {step: [] for step in steps}
    counts = rows["step"].value_counts()
    rows = rows[~rows["step"].isin(counts.index[counts > _MOST_LAUNCHES]).to_numpy()]
    took = (rows["end_ns"] - rows["start_ns"]).to_numpy()
    proven, paths = _ranges(rows, owners.modules)
    reads = _reads(rows, kernels, owners)
    for row in zip(
        rows["step"], rows["name"], rows["component"], rows["layer"], took, proven, paths, reads,
        strict=True,
    ):  # fmt: skip
        step, name, component, layer, ns, known, path, tensors = row
        found[int(step)].append(
            Launch(str(name), str(component), int(layer), int(ns), bool(known), path, tensors)
        )
    return found


def _ranges(rows: pd.DataFrame, modules: pd.DataFrame) -> tuple[npt.NDArray[np.bool_], list[str]]:
    """Whether each kernel's owner is proven, and the module that was open at its launch."""
    # The model as a whole is open around everything that only its order places.
    own = modules[((modules["component"] != "") & (modules["path"] != MODEL_PATH)).to_numpy()]
    path_of = dict(zip(own["module"], own["path"], strict=True))
    seen = (rows["placed_by"].astype(str) == "").to_numpy()
    paths = [
        path_of.get(module, "") if known else ""
        for module, known in zip(rows["module"], seen, strict=True)
    ]
    if "basis" in rows:
        return rows["basis"].isin(BASIS_CLASSES["proven"]).to_numpy(), paths
    return np.array([bool(path) for path in paths], bool), paths


def _reads(rows: pd.DataFrame, kernels: pd.DataFrame, owners: Owners) -> list[tuple[int, ...]]:
    """Which weights each kernel points to.

    Outside graphs not every launch was looked at: one that was not reads what others of its name,
    component and layer do, where these all read the same.
    """
    if not len(owners.reads):
        return [()] * len(rows)
    own: dict[tuple[int, int], list[int]] = defaultdict(list)
    hits = (owners.reads[name].tolist() for name in ("node", "correlation", "tensor"))
    for node, launch, tensor in zip(*hits, strict=True):
        own[node, launch].append(tensor)
    by_node = {node: tuple(sorted(read)) for (node, _), read in own.items() if node}
    by_launch = {launch: tuple(sorted(read)) for (node, launch), read in own.items() if not node}
    looked_at = np.sort(np.array(list(by_launch), np.int64))
    seen = np.flatnonzero(
        (positions(looked_at, kernels["correlation"].to_numpy()) >= 0)
        & (kernels["graph_node"].to_numpy() == 0)
    )
    alike: dict[tuple[str, str, int], set[tuple[int, ...]]] = defaultdict(set)
    for *place, launch in _places(kernels.iloc[seen]):
        alike[tuple(place)].add(by_launch[launch])
    original = dict(zip(owners.nodes["node"], owners.nodes["original"], strict=True))
    found = []
    for (*place, launch), node in zip(_places(rows), rows["graph_node"], strict=True):
        others = alike.get(tuple(place), set())
        same = next(iter(others)) if len(others) == 1 else ()
        read = by_node.get(original.get(node, node), ()) if node else by_launch.get(launch, same)
        found.append(read)
    return found


def _places(rows: pd.DataFrame) -> Iterable[tuple[Any, ...]]:
    return zip(*(rows[n] for n in ("name", "component", "layer", "correlation")), strict=True)


def _group(
    own: pd.DataFrame,
    tokens: npt.NDArray[np.float64],
    requests: npt.NDArray[np.float64],
    steps: int,
) -> Group:
    context = np.maximum(own["context_tokens"].to_numpy(np.float64), 0) / requests
    # Of a prompt only the last token's logits are wanted.
    sampled = (own["decode_tokens"] + own["prefill_requests"]).to_numpy(np.float64)
    load = Load(
        float(tokens.mean()), float(requests.mean()), float(sampled.mean()), float(context.mean())
    )
    return Group(int(own.index[len(own) // 2]), load, len(own) / steps)
