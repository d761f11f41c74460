"""What each cell is made of: which kernels, how often and how long in a step; and who is alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.lookup import positions
from spark_prof.analyzers.views.columns import KernelColumns
from spark_prof.cores import cores
from spark_prof.vocabulary import COMPONENTS

_BLOCK = 1 << 18
_LARGEST_TABLE = 1 << 18
"""Combinations of layer, component and name that are counted in a table; more by their hash."""

_OFTEN = 0.1
"""A kernel that fewer of the steps call does not make a cell another one."""


@dataclass(frozen=True)
class Part:
    """What one kernel does in a cell, in a mean step.

    Attributes:
        name: its place in the kernels' names.
        calls: in a step.
        us: in a step, in microseconds.
    """

    name: int
    calls: float
    us: float


Makeups = dict[tuple[int, str], tuple[Part, ...]]
"""Of each cell, by layer (-1 for none) and component, the kernels with the most time first."""


def makeups(kernels: KernelColumns, steps: pd.DataFrame, chosen: npt.NDArray[np.bool_]) -> Makeups:
    """What the chosen steps run in each cell; copies are no kernels.

    Args:
        kernels: of a rank.
        steps: its analyzed steps in ascending order, of which `step` is read.
        chosen: of each step, whether it is looked at.
    """
    inside = positions(steps["step"].to_numpy()[chosen], np.asarray(kernels.step)) >= 0
    copies = np.asarray(kernels.copies, bool)
    names = max(len(kernels.names), 1)
    space = (int(np.max(kernels.layer, initial=-1)) + 2) * len(COMPONENTS) * names

    def sums(block: slice) -> pd.DataFrame:
        name = kernels.name[block]
        code = np.maximum(kernels.layer[block], -1).astype(np.int64) + 1
        code *= len(COMPONENTS)
        code += kernels.component[block]
        code *= names
        code += name
        took = kernels.end_ns[block] - kernels.start_ns[block]
        counts = inside[block] & ~copies[name]
        if not counts.all():
            code, took = code[counts], took[counts]
        if space > _LARGEST_TABLE:
            code, known = pd.factorize(code)
        else:
            known = np.arange(space)
        calls = np.bincount(code, minlength=len(known))
        ns = np.bincount(code, took, len(known))
        some = np.flatnonzero(calls)
        return pd.DataFrame({"code": known[some], "calls": calls[some], "ns": ns[some]})

    starts = range(0, len(kernels), _BLOCK)
    with ThreadPoolExecutor(cores()) as pool:
        parts = list(pool.map(lambda start: sums(slice(start, start + _BLOCK)), starts))
    whole = pd.concat(parts) if parts else pd.DataFrame({"code": [], "calls": [], "ns": []})
    return _by_cell(whole.groupby("code").sum(), names, int(chosen.sum()))


def _by_cell(sums: pd.DataFrame, names: int, steps: int) -> Makeups:
    parts: dict[tuple[int, str], list[Part]] = defaultdict(list)
    for code, called, took in sums.itertuples(name=None):
        cell, name = divmod(int(code), names)
        layer, component = divmod(cell, len(COMPONENTS))
        part = Part(name, float(called) / steps, float(took) / 1e3 / steps)
        parts[layer - 1, COMPONENTS[component]].append(part)
    return {
        cell: tuple(sorted(found, key=lambda part: (-part.us, part.name)))
        for cell, found in parts.items()
    }


def alike(found: Makeups) -> Iterator[tuple[str, list[list[int]]]]:
    """Layers that run the same kernels equally often in a component, the largest group first.

    So layers with sliding and with full attention are alike in their experts where their attention
    runs other kernels.

    Returns:
        Each component, and groups of layers in ascending order.
    """
    groups: dict[str, dict[frozenset[tuple[int, int]], list[int]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for (layer, component), parts in sorted(found.items()):
        if layer >= 0:
            own = frozenset((p.name, max(1, round(p.calls))) for p in parts if p.calls >= _OFTEN)
            groups[component][own].append(layer)
    for component in COMPONENTS:
        if component in groups:
            yield component, sorted(groups[component].values(), key=lambda group: -len(group))
