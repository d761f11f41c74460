"""Windows of readers whose formats tell little about what launched the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.errors import CommandError
from spark_prof.traces.foreign import Window
from spark_prof.traces.readers.trace import Trace
from spark_prof.traces.scopes import NO_SCOPE
from spark_prof.traces.tables import empty_frame

Int64s = npt.NDArray[np.int64]

CALL_COLUMNS = ["scope", "start_ns", "end_ns", "thread"]
"""The columns of Window.calls."""

_UNKNOWN = {
    "kind": "kernel", "device": 0, "stream": 0, "correlation": -1, "graph_node": 0, "grid": "",
    "block": "", "registers": 0, "shared_bytes": 0, "bytes": 0, "cubin": "",
}  # fmt: skip
_TYPES = {"device": np.int32, "registers": np.int32, "shared_bytes": np.int32}
_TEXTS = ("name", "kind", "grid", "block", "cubin")
_COLUMNS = (
    "name", "kind", "start_ns", "end_ns", "device", "stream", "correlation", "graph_node", "grid",
    "block", "registers", "shared_bytes", "bytes", "cubin",
)  # fmt: skip
_ROWS = 1 << 20
"""Rows of a window."""
_MOST_KERNELS = 1 << 26
"""More kernels than this are no recording's: a damaged count must not fill the disk."""
_LATEST_NS = 1 << 62


@dataclass(frozen=True)
class KernelSum:
    """A kernel of which only the sum is known.

    Attributes:
        total_ns: time of all its instances together.
        scope: what all of them were launched for.
    """

    name: str
    instances: int
    total_ns: int
    device: int = 0
    grid: str = ""
    block: str = ""
    scope: int = NO_SCOPE


def gpu_frame(**known: Any) -> pd.DataFrame:
    """The rows of Trace.gpu; a column that is not given has the value for what is unknown.

    Args:
        known: columns of Trace.gpu, `name`, `start_ns` and `end_ns` among them.
    """
    count = len(known["start_ns"])
    columns: dict[str, Any] = {}
    for column in _COLUMNS:
        values = known.get(column, _UNKNOWN.get(column))
        if column in _TEXTS:
            one = isinstance(values, str)
            columns[column] = (
                pd.Categorical.from_codes(np.zeros(count, np.int8), categories=pd.Index([values]))
                if one
                else pd.Categorical(values)
            )
        else:
            columns[column] = np.broadcast_to(
                np.asarray(values, _TYPES.get(column, np.int64)), (count,)
            ).copy()
    return pd.DataFrame(columns)


def window(
    process: int,
    gpu: pd.DataFrame,
    *,
    launches: pd.DataFrame | None = None,
    markers: pd.DataFrame | None = None,
    launch_ns: Int64s | None = None,
    thread: Int64s | None = None,
    scope: Int64s | None = None,
    calls: pd.DataFrame | None = None,
) -> Window:
    """A window as Window describes it, in which what is not given is unknown."""

    def or_unknown(values: Int64s | None) -> Int64s:
        return np.full(len(gpu), -1, np.int64) if values is None else values

    return Window(
        process=process,
        trace=Trace(
            gpu=gpu,
            launches=_frame("host", launches),
            operators=empty_frame("overhead").assign(part=0, thread=0),
            overhead=empty_frame("overhead"),
            markers=_frame("markers", markers),
        ),
        launch_ns=or_unknown(launch_ns),
        thread=or_unknown(thread),
        scope=or_unknown(scope),
        calls=pd.DataFrame(columns=CALL_COLUMNS, dtype=np.int64) if calls is None else calls,
    )


def end_to_end(process: int, sums: list[KernelSum], source: object) -> Iterator[Window]:
    """Lays the instances of every kernel one behind the other, their sums kept to the nanosecond.

    Args:
        process: index of the process.
        sums: the kernels in the order in which they shall lie.
        source: the file, for the error.

    Raises:
        CommandError: a sum cannot be right; before the first window.
    """
    for row in sums:
        if row.instances < 1 or row.total_ns < 0:
            raise CommandError(
                f"{source} says that {row.name!r:.80} ran {row.instances} times in "
                f"{row.total_ns} ns; write it again"
            )
    count = sum(row.instances for row in sums)
    total = sum(row.total_ns for row in sums)
    if count > _MOST_KERNELS or total >= _LATEST_NS:
        raise CommandError(
            f"{source} counts {count} kernels in {total} ns, more than any recording holds; "
            "write it again"
        )
    return _laid(process, sums)


def _laid(process: int, sums: list[KernelSum]) -> Iterator[Window]:
    table = pd.DataFrame([vars(row) for row in sums], columns=list(KernelSum.__annotations__))
    instances = table["instances"].to_numpy(np.int64)
    each, longer = np.divmod(table["total_ns"].to_numpy(np.int64), np.maximum(instances, 1))
    first = np.cumsum(instances) - instances
    texts = {name: table[name].astype("category") for name in ("name", "grid", "block")}
    count, now = int(instances.sum()), 0
    for begin in range(0, count, _ROWS):
        rows = np.arange(begin, min(begin + _ROWS, count))
        which = np.searchsorted(first, rows, side="right") - 1
        end = now + np.cumsum(each[which] + (rows - first[which] < longer[which]))
        start = np.append(now, end[:-1])
        now = int(end[-1])
        gpu = gpu_frame(
            start_ns=start,
            end_ns=end,
            device=table["device"].to_numpy()[which],
            **{name: values.array[which] for name, values in texts.items()},
        )
        yield window(process, gpu, scope=table["scope"].to_numpy(np.int64)[which])


def _frame(table: str, rows: pd.DataFrame | None) -> pd.DataFrame:
    """The rows, or none, with the types that the table has."""
    if rows is None:
        rows = empty_frame(table)
    texts = [name for name in ("name", "domain") if name in rows]
    return rows.astype({n: "category" if n in texts else np.int64 for n in rows.columns})
