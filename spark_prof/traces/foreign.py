"""What every reader of somebody else's trace gives: processes, and windows of what they did.

A window holds a stretch of the trace; a format that can be read in stretches gives many, so that
memory does not grow with the trace. What a kernel was launched for is its *scope*: the innermost
range open then that names a module of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import union_categoricals

from spark_prof.arrays import Flags, Int64s
from spark_prof.errors import CommandError
from spark_prof.traces.scopes import NO_SCOPE, Scopes
from spark_prof.traces.tables import empty_frame


@dataclass(frozen=True)
class Trace:
    """One trace as frames with the columns of the bundle's tables."""

    # Kernels, copies and memsets: the `kernels` table up to `bytes`, without what the join adds
    # (part, step, module, layer).
    gpu: pd.DataFrame
    launches: pd.DataFrame  # the API calls that started them, the `host` table
    # The stretches of CPU operators with their `thread`; empty on a GPU.
    operators: pd.DataFrame = field(
        default_factory=lambda: empty_frame("overhead").assign(part=0, thread=0)
    )
    # What the profiler itself cost, the `overhead` table.
    overhead: pd.DataFrame = field(default_factory=lambda: empty_frame("overhead"))
    # The NVTX ranges and marks, the `markers` table without its `step`.
    markers: pd.DataFrame = field(default_factory=lambda: empty_frame("markers"))
    unreadable: int = 0  # kernels, copies and memsets whose name, time or duration cannot be read
    lost: tuple[str, ...] = ()


NamesModule = Callable[[str], bool]
"""Says whether a range's name names a module; only such ranges become scopes."""


@dataclass(frozen=True)
class ForeignProcess:
    """One process of a foreign trace: a rank."""

    rank: int | None  # its rank where the trace or the file's name tells it, else None
    # What is known, with the keys of Meta.facts: gpu {name, compute_capability, vendor}, torch,
    # cuda, pid, host, world_size.
    facts: dict[str, Any]
    # What its launches were made for; filled while the windows are read.
    scopes: Scopes = field(default_factory=Scopes)
    # Its CUDA graph nodes: `node`, `original`, `graph`, `created_ns`, and `scope`.
    nodes: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame(
            columns=["node", "original", "graph", "created_ns", "scope"], dtype=np.int64
        )
    )
    # What Nsight Compute measured of its kernels, the `metrics` table.
    metrics: pd.DataFrame = field(default_factory=lambda: empty_frame("metrics"))


@dataclass(frozen=True)
class Window:
    """A stretch of one process."""

    process: int  # index into Foreign.processes
    # What ran and what launched it. Names of `gpu`, `launches` and `markers` are categories. Every
    # range is a marker, those that name modules too.
    trace: Trace
    launch_ns: Int64s  # when each row of `trace.gpu` was launched, -1 where nothing tells
    thread: Int64s  # the thread that launched it, -1 where nothing tells
    # Its scope, NO_SCOPE for none; of a kernel in a graph the scope of the graph's launch.
    scope: Int64s
    # `scope`, `start_ns`, `end_ns`, `thread` of each call of a range that names a module.
    calls: pd.DataFrame

    def in_graphs(self) -> Flags:
        """Which rows of `trace.gpu` ran inside a CUDA graph."""
        launches = self.trace.launches
        names = launches["name"].cat.categories
        replays = np.array(["GraphLaunch" in str(name) for name in names] + [False])
        graphs = launches["correlation"].to_numpy()[replays[launches["name"].cat.codes.to_numpy()]]
        correlation = self.trace.gpu["correlation"].to_numpy()
        inside = np.isin(correlation, graphs[graphs >= 0])
        inside |= self.trace.gpu["graph_node"].to_numpy() != 0
        return inside


@dataclass(frozen=True)
class Foreign:
    """A foreign trace that is being read."""

    format: str  # kineto, nsys, proton, cupti
    processes: list[ForeignProcess]
    # The stretches, in order of time within a process; they can be read once.
    windows: Iterator[Window]
    # What the trace lacks, one line each; complete when the windows have been read.
    lost: list[str] = field(default_factory=list)
    refusal: str = ""  # why nothing of it can be analyzed, empty where something can


IMPOSSIBLE = "impossible records:"
"""What a line of a bundle's `lost` begins with that is about records left out of every figure."""


def is_impossible(line: str) -> bool:
    """Whether a line of a bundle's `lost` is about such records."""
    return line.startswith(IMPOSSIBLE)


"""How lines of `lost` begin that tell which records were left out because they cannot be."""

CALL_COLUMNS = ["scope", "start_ns", "end_ns", "thread"]  # the columns of Window.calls

_NUMBER = np.int32(0)
_UNKNOWN: dict[str, Any] = {
    "name": "", "kind": "kernel", "start_ns": 0, "end_ns": 0, "device": _NUMBER, "stream": 0,
    "correlation": -1, "graph_node": 0, "grid": "", "block": "", "registers": _NUMBER,
    "shared_bytes": _NUMBER, "bytes": 0, "cubin": "",
}  # fmt: skip
"""The columns of Trace.gpu in their order and types, with the value for what is unknown."""
_ROWS = 1 << 20  # rows of a window
_MOST_KERNELS = 1 << 26
"""More kernels than this are no recording's: a damaged count must not fill the disk."""
_LATEST_NS = 1 << 62


@dataclass(frozen=True)
class KernelSum:
    """A kernel of which only the sum is known."""

    name: str
    instances: int
    total_ns: int
    device: int = 0
    grid: str = ""
    block: str = ""
    scope: int = NO_SCOPE  # what all of them were launched for
    kind: str = "kernel"  # or memcpy, memset


def gpu_frame(**column_values: Any) -> pd.DataFrame:
    """The rows of Trace.gpu; a column that is not given has the value for what is unknown."""
    count = len(column_values["start_ns"])
    columns: dict[str, Any] = {}
    for column, unknown in _UNKNOWN.items():
        values = column_values.get(column, unknown)
        if isinstance(values, str):
            none = np.zeros(count, np.int8)
            columns[column] = pd.Categorical.from_codes(none, categories=pd.Index([values]))
        elif isinstance(unknown, str):
            columns[column] = pd.Categorical(values)
        else:
            whole = np.asarray(values, np.asarray(unknown).dtype)
            columns[column] = np.broadcast_to(whole, (count,)).copy()
    return pd.DataFrame(columns)


def no_work() -> pd.DataFrame:
    """Trace.gpu without a row."""
    return gpu_frame(name="", start_ns=np.empty(0, np.int64), end_ns=np.empty(0, np.int64))


def category(codes: npt.NDArray[np.intp], texts: Sequence[str]) -> pd.Categorical:
    """Texts by their numbers, of which several may stand for the same text."""
    same, unique = pd.factorize(np.array(texts, object))
    return pd.Categorical.from_codes(same[codes] if len(same) else codes, pd.Index(unique.tolist()))


def triples(rows: Any, name: str) -> pd.Categorical:
    """The three numbers of each row as `x,y,z`; few of them differ."""
    codes, unique = together([rows[f"{name}{axis}"] for axis in "XYZ"])
    return category(codes, [",".join(map(str, row)) for row in unique])


def together(columns: list[Int64s]) -> tuple[npt.NDArray[np.intp], list[tuple[int, ...]]]:
    """The different rows of some columns, and which of them each row is."""
    codes = np.zeros(len(columns[0]), np.intp)
    unique: list[tuple[int, ...]] = [()]
    for column in columns:
        number, values = pd.factorize(column)
        codes, pairs = pd.factorize(codes * max(1, len(values)) + number)
        unique = [
            (*unique[int(pair) // len(values)], int(values[int(pair) % len(values)]))
            for pair in pairs
        ]
    return codes, unique


def joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The frames one below the other; their texts stay categories."""
    if len(frames) == 1:
        return frames[0]
    return pd.DataFrame(
        {
            name: union_categoricals([frame[name] for frame in frames])
            if isinstance(frames[0][name].dtype, pd.CategoricalDtype)
            else np.concatenate([frame[name].to_numpy() for frame in frames])
            for name in frames[0].columns
        }
    )


def operator_rows(operators: pd.DataFrame) -> pd.DataFrame:
    """Rows of Trace.operators with the columns of Trace.gpu: on a CPU they stand for kernels."""
    rows = operators.rename(columns={"thread": "stream"})
    unknown = {name: value for name, value in _UNKNOWN.items() if name not in rows}
    return rows.assign(**(unknown | {"kind": "op", "device": -1}))


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
            launches=typed_frame("host", launches),
            markers=typed_frame("markers", markers),
        ),
        launch_ns=or_unknown(launch_ns),
        thread=or_unknown(thread),
        scope=or_unknown(scope),
        calls=pd.DataFrame(columns=CALL_COLUMNS, dtype=np.int64) if calls is None else calls,
    )


def end_to_end(process: int, sums: list[KernelSum], source: object) -> Iterator[Window]:
    """Lays the instances of every kernel end to end, their sums kept to the nanosecond."""
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
    mean_ns, longer = np.divmod(table["total_ns"].to_numpy(np.int64), np.maximum(instances, 1))
    first = np.cumsum(instances) - instances
    texts = {name: table[name].astype("category") for name in ("name", "grid", "block", "kind")}
    count, now = int(instances.sum()), 0
    for begin in range(0, count, _ROWS):
        rows = np.arange(begin, min(begin + _ROWS, count))
        which = np.searchsorted(first, rows, side="right") - 1
        end = now + np.cumsum(mean_ns[which] + (rows - first[which] < longer[which]))
        start = np.append(now, end[:-1])
        now = int(end[-1])
        gpu = gpu_frame(
            start_ns=start,
            end_ns=end,
            device=table["device"].to_numpy()[which],
            **{name: values.array[which] for name, values in texts.items()},
        )
        yield window(process, gpu, scope=table["scope"].to_numpy(np.int64)[which])


def typed_frame(table: str, rows: pd.DataFrame | None = None) -> pd.DataFrame:
    """The rows, or none, with the types that the table has."""
    if rows is None:
        rows = empty_frame(table)
    texts = [name for name in ("name", "domain") if name in rows]
    return rows.astype({n: "category" if n in texts else np.int64 for n in rows.columns})
