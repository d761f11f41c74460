"""Groups steps that work on about as much, and picks one of each group to look at closely."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.lookup import positions
from spark_prof.analyzers.placement import COPIES
from spark_prof.analyzers.roofline.launches import Launch
from spark_prof.analyzers.roofline.needs import Load
from spark_prof.traces.timeline import MODEL_PATH

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


def launches_of(
    kernels: pd.DataFrame, steps: list[int], modules: pd.DataFrame
) -> dict[int, list[Launch]]:
    """The kernels of those steps in order of start, copies left out.

    None of a step with more kernels than any decoder launches: it is no step of one.

    Args:
        kernels: what `place_kernels` returned, with `module`.
        steps: numbers of steps.
        modules: the `modules` table.
    """
    wanted = np.unique(np.array(steps, np.int64))
    chosen = np.flatnonzero(positions(wanted, kernels["step"].to_numpy()) >= 0)
    columns = ["step", "name", "component", "layer", "start_ns", "end_ns", "kind", "part"]
    columns += ["module", "placed_by", "basis", "role", *(["reads"] if "reads" in kernels else [])]
    rows = pd.DataFrame({name: kernels[name].array.take(chosen) for name in columns})
    rows = rows[~rows["kind"].isin(COPIES).to_numpy() & (rows["part"] == 0).to_numpy()]
    found: dict[int, list[Launch]] = {step: [] for step in steps}
    counts = rows["step"].value_counts()
    rows = rows[~rows["step"].isin(counts.index[counts > _MOST_LAUNCHES]).to_numpy()]
    took = (rows["end_ns"] - rows["start_ns"]).to_numpy()
    paths = _paths(rows, modules)
    reads = rows["reads"] if "reads" in rows else [()] * len(rows)
    for row in zip(
        rows["step"], rows["name"], rows["component"], rows["layer"], took, rows["basis"],
        rows["role"], paths, reads, strict=True,
    ):  # fmt: skip
        step, name, component, layer, ns, basis, role, path, tensors = row
        found[int(step)].append(
            Launch(
                str(name), str(component), int(layer), int(ns), str(basis), str(role), path, tensors
            )
        )
    return found


def _paths(rows: pd.DataFrame, modules: pd.DataFrame) -> list[str]:
    """The module that was open at each kernel's launch; empty where none is known."""
    # The model as a whole is open around everything that only its order places.
    own = modules[((modules["component"] != "") & (modules["path"] != MODEL_PATH)).to_numpy()]
    path_of = dict(zip(own["module"], own["path"], strict=True))
    seen = (rows["placed_by"].astype(str) == "").to_numpy()
    return [
        path_of.get(module, "") if known else ""
        for module, known in zip(rows["module"], seen, strict=True)
    ]


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
