"""The collective calls of one rank, from its kernels or operators."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.classify.collectives import collective_kind
from spark_prof.arrays import Int64s
from spark_prof.rules.collectives import KINDS
from spark_prof.traces.bundle import Bundle

__all__ = ["JOINT", "KINDS", "calls_among", "collective_calls", "collective_kind"]

JOINT = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"})
"""Of which no participant can end before the last one has started.

A broadcast's root may be done before the others come; a send may end in its buffer, so that
`send_recv` is joint only where it is NCCL's way to exchange with everybody.
"""

_COLUMNS = ("name", "start_ns", "end_ns", "part", "stream", "step")


def collective_calls(bundle: Bundle, rank: int, *, every: bool = False) -> pd.DataFrame:
    """What `calls_among` finds among the kernels of a rank."""
    return calls_among(bundle.frame("kernels", rank, _COLUMNS), every=every)


def calls_among(kernels: pd.DataFrame, *, every: bool = False) -> pd.DataFrame:
    """One row per collective, in order of start.

    Args:
        kernels: name (as category), start_ns, end_ns, part, stream and step.
        every: also those that no recorded step launched, such as an idle replica's.

    Returns:
        step (-1 for none), kind, start_ns and end_ns.
    """
    rows = kernels.sort_values(["stream", "start_ns"], kind="stable", ignore_index=True)
    kinds = [collective_kind(name) for name in rows["name"].cat.categories]
    code = rows["name"].cat.codes.to_numpy()
    is_collective = np.array([kind is not None for kind in kinds] + [False])[code]
    first = np.flatnonzero(is_collective & (rows["part"] == 0).to_numpy())
    calls = pd.DataFrame(
        {
            "step": rows["step"].to_numpy()[first],
            "kind": pd.Categorical([str(kinds[c]) for c in code[first]]),
            "start_ns": rows["start_ns"].to_numpy()[first],
            "end_ns": _ends(rows, first),
        }
    )
    calls = calls[every | (calls["step"] >= 0)]
    return calls.sort_values("start_ns", kind="stable", ignore_index=True)


def _ends(rows: pd.DataFrame, first: npt.NDArray[np.intp]) -> Int64s:
    """When each call ended, of which `first` is the first row; an operator may have several.

    torch.distributed's CPU operators only start the transfer, and the wait for its end is no
    operator of its own: such a call ends where its thread's next operator begins.
    """
    start, end = (rows[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    name, stream, step = (rows[n].to_numpy() for n in ("name", "stream", "step"))
    begins = np.diff(stream, prepend=stream[:1] - 1) != 0
    begins |= np.diff(step, prepend=step[:1]) != 0
    begins[first] = True
    opened_by = np.flatnonzero(begins)[np.cumsum(begins) - 1]
    later = np.flatnonzero((rows["part"] > 0).to_numpy() & (name == name[opened_by]))
    last = np.arange(len(rows))
    np.maximum.at(last, opened_by[later], later)
    last = last[first]
    after = np.minimum(last + 1, len(rows) - 1)
    waited = rows["name"].str.startswith("c10d::").to_numpy(bool)[first] & (after > last)
    waited &= (stream[after] == stream[first]) & (step[after] == step[first])
    ends: Int64s = np.where(waited, np.maximum(start[after], end[last]), end[last])
    return ends
