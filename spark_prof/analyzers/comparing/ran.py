"""What ran in some steps, charged so that kernels and gaps add up to each step's length.

Every instant is charged to one kernel, as in `swap_gain.charging`; a kernel belongs to the step in
whose window it starts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.comparing.stable_names import stable_name
from spark_prof.analyzers.order import CODES
from spark_prof.analyzers.swap_gain.charging import charge
from spark_prof.analyzers.views.kernel_columns import KernelColumns

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Charges:
    """The kernels of a rank, to be charged step by step.

    Attributes:
        kernels: the kernels.
        steps: the steps.
        names: of each of the kernels' names the place in `stable`.
        stable: stable names.
    """

    kernels: KernelColumns
    steps: pd.DataFrame
    names: Int64s
    stable: tuple[str, ...]

    def of(self, chosen: Int64s) -> Ran:
        """What ran in some steps, given by their places in ascending order."""
        columns = self.kernels
        begin = self.steps["begin_ns"].to_numpy(np.int64)
        finish = self.steps["finish_ns"].to_numpy(np.int64)
        # Where two windows overlap, the later one has the time.
        finish = np.append(np.minimum(finish[:-1], begin[1:]), finish[-1:])
        # Only these rows are read: the columns may be mapped files of millions of kernels.
        first = np.searchsorted(columns.start_ns, begin[chosen])
        count = np.maximum(np.searchsorted(columns.start_ns, finish[chosen]) - first, 0)
        step = np.repeat(np.arange(len(chosen)), count)
        rows = np.arange(len(step)) + np.repeat(first - np.cumsum(count) + count, count)
        charged = charge(columns.start_ns[rows], columns.end_ns[rows])
        follows = np.append(False, step[1:] == step[:-1])[: len(step)]
        name = columns.name[rows]
        component = columns.component[rows].astype(np.int64)
        component[np.array(columns.copies, bool)[name]] = CODES["memcpy"]
        return Ran(
            step=step,
            us=charged.busy / 1e3,
            gap_us=np.where(follows, charged.gap, 0) / 1e3,
            component=component,
            layer=columns.layer[rows].astype(np.int64),
            name=self.names[name],
            length_us=self.steps["step_us"].to_numpy(np.float64)[chosen],
        )


@dataclass(frozen=True, eq=False)
class Ran:
    """Kernels of some steps, and how long these steps were.

    Attributes:
        step: of each kernel the place among the steps.
        us: what it is charged.
        gap_us: how long nothing ran before it within its step.
        component: place in `vocabulary.COMPONENTS`; a copy's is memcpy.
        layer: -1 for none.
        name: place among the stable names.
        length_us: of each step.
    """

    step: Int64s
    us: Floats
    gap_us: Floats
    component: Int64s
    layer: Int64s
    name: Int64s
    length_us: Floats

    def table(self, code: Int64s, rows: int, values: Floats | None = None) -> Floats:
        """Sums by step: one row each code, one column each step.

        Args:
            code: of each kernel its row.
            rows: how many there are.
            values: of each kernel; its charge if None.
        """
        steps = len(self.length_us)
        values = self.us if values is None else values
        place = code * steps + self.step
        sums = np.bincount(place, weights=values, minlength=rows * steps).astype(np.float64)
        return sums.reshape(rows, steps)

    def calls(self, code: Int64s, rows: int) -> Floats:
        """How far the calls of each row move together: the root of the sum of squares by name.

        Args:
            code: of each kernel its row.
            rows: how many there are.
        """
        names = int(self.name.max(initial=0)) + 1
        pair, count = np.unique(code * names + self.name, return_counts=True)
        a_step = count / max(len(self.length_us), 1)
        return np.sqrt(np.bincount(pair // names, weights=a_step**2, minlength=rows))


def charges_of(kernels: KernelColumns, steps: pd.DataFrame, stable: dict[str, int]) -> Charges:
    """The kernels of a rank, to be charged.

    Args:
        kernels: in order of start.
        steps: with begin_ns, finish_ns and step_us, in order.
        stable: the places of stable names; those of these kernels are added to it.
    """
    names = [stable.setdefault(stable_name(name), len(stable)) for name in kernels.names]
    return Charges(kernels, steps, np.array(names, np.int64), tuple(stable))
