"""A window of prepared ranks as a trace for Perfetto: so many kernels around a range of time.

It is made of what a page holds in memory, so that its time does not depend on how long the
recording is. What the host did is only in the whole trace, see `perfetto.write_perfetto`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.classify.classifier import Label
from spark_prof.datasets.prepared import Prepared
from spark_prof.exporters.perfetto import begin_trace, end_trace, write_device
from spark_prof.exporters.trace_events import RankTrace, Tracks
from spark_prof.vocabulary import COMPONENTS

MOST_KERNELS = 20_000
"""Of a rank: about 10 MB, which a browser has drawn within seconds."""

_COPY = Label(None, "copy", None, "name", None)
_UNKNOWN = Label(None, "", None, "", None)


@dataclass(frozen=True)
class Window:
    """From an instant until before another one; the kernels that begin in it are shown."""

    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class WindowTrace:
    """A trace, as JSON, and the clock's time of its first and of its last instant.

    Perfetto counts from the first one.
    """

    text: bytes
    first_ns: int
    last_ns: int


def window_around(
    prepared: Prepared, begin_ns: int, end_ns: int, most: int = MOST_KERNELS
) -> Window:
    """The window around a range, of whole steps where there are any.

    Args:
        prepared: the rank, which has kernels.
        most: kernels; of a range with more of them those at its begin.
    """
    start, steps = prepared.kernels.start_ns, prepared.steps
    begins, finishes = (steps[name].to_numpy(np.int64) for name in ("begin_ns", "finish_ns"))
    first, stop = np.searchsorted(start, (begin_ns, end_ns)).tolist()
    low = first - max(most - (stop - first), 0) // 2
    low = max(min(low, len(start) - most), 0)
    high = low + most
    if low == 0:
        since = int(min(start[0], begins.min(initial=start[0])))
    else:
        whole = begins[(begins >= start[low]) & (begins <= begin_ns)]
        since = int(whole.min() if len(whole) else start[low])
    if high >= len(start):
        last = prepared.kernels.end_ns.max()
        until = int(max(last, finishes.max(initial=last))) + 1
    else:
        whole = finishes[(finishes <= start[high]) & (finishes >= end_ns)]
        until = int(whole.max() if len(whole) else start[high])
    return Window(since, until)


def window_trace(
    ranks: Mapping[int, Prepared], window: Window, ahead_ns: Mapping[int, int], address: str = ""
) -> WindowTrace:
    """The trace of a window.

    Args:
        ranks: those to write, by their number; the first one's clock is that of the window.
        ahead_ns: by how much the clock of a rank is ahead of the first one's, 0 if left out.
        address: of the explorer's page of kernels, with its query; each kernel gets a link to its
            own page if it is given.
    """
    found = {
        rank: _part(prepared, window, ahead_ns.get(rank, 0)) for rank, prepared in ranks.items()
    }
    if address:
        for rank, (kernels, _) in found.items():
            kernels["page"] = _pages(kernels, ranks[rank], f"{address}&rank={rank}")
    firsts = [int(c.min()) for kernels, steps in found.values()
              for c in (kernels["start_ns"], steps["begin_ns"]) if len(c)]  # fmt: skip
    lasts = [int(c.max()) for kernels, steps in found.values()
             for c in (kernels["end_ns"], steps["finish_ns"]) if len(c)]  # fmt: skip
    first = min(firsts, default=window.begin_ns)
    out = BytesIO()
    begin_trace(out, {"displayTimeUnit": "ms", "baseTimeNanoseconds": first})
    names: list[str] = []
    for rank, (kernels, steps) in found.items():
        tracks = Tracks(rank + 1, f"rank {rank}")
        write_device(RankTrace(rank, kernels, first, tracks, out), steps)
        names += tracks.events()
    end_trace(out, names)
    return WindowTrace(out.getvalue(), first, max(lasts, default=window.end_ns))


def _part(prepared: Prepared, window: Window, ahead_ns: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The kernels and the steps of a rank, in the time of the window."""
    begin, end = window.begin_ns + ahead_ns, window.end_ns + ahead_ns
    low, high = np.searchsorted(prepared.kernels.start_ns, (begin, end)).tolist()
    steps = prepared.steps
    steps = steps[((steps["begin_ns"] < end) & (steps["finish_ns"] > begin)).to_numpy()]
    return (
        _kernels(prepared, slice(low, min(high, low + MOST_KERNELS)), ahead_ns),
        steps.assign(
            begin_ns=steps["begin_ns"] - ahead_ns, finish_ns=steps["finish_ns"] - ahead_ns
        ),
    )


def _pages(kernels: pd.DataFrame, prepared: Prepared, address: str) -> pd.Series[Any]:
    """The address of each kernel's page."""
    places = {name: place for place, name in enumerate(prepared.kernels.names)}
    names = [places[name] for name in kernels["name"].cat.categories]
    known = kernels["name"].cat.codes.to_numpy(np.int64) * len(COMPONENTS)
    pairs, of = np.unique(known + kernels["component"].cat.codes, return_inverse=True)
    pages = [
        f"{address}&kernel={names[name]}&component={COMPONENTS[component]}"
        for name, component in (divmod(pair, len(COMPONENTS)) for pair in pairs.tolist())
    ]
    return pd.Series(np.array(pages, object)[of], dtype="category")


def _kernels(prepared: Prepared, part: slice, ahead_ns: int) -> pd.DataFrame:
    """The columns of some kernels as the writers of tracks take them."""
    columns = prepared.kernels
    kernels, name = np.unique(columns.name[part], return_inverse=True)
    names = [columns.names[place] for place in kernels.tolist()]
    launches = columns.launches.iloc[columns.launch[part]].reset_index(drop=True)
    copies = np.array(columns.copies, bool)[kernels]
    known = {row.name: row for row in prepared.report.kernels}
    labels: list[KernelRow | Label] = [
        _COPY if copy else known.get(text, _UNKNOWN)
        for text, copy in zip(names, copies.tolist(), strict=True)
    ]
    return launches.assign(
        start_ns=columns.start_ns[part] - ahead_ns,
        end_ns=columns.end_ns[part] - ahead_ns,
        kind=pd.Categorical(np.where(copies[name], "memcpy", "kernel")),
        name=pd.Categorical.from_codes(name, pd.Index(names)),
        step=columns.step[part],
        layer=columns.layer[part],
        component=pd.Categorical.from_codes(
            columns.component[part].astype(np.int64), pd.Index(COMPONENTS)
        ),
        engine=pd.Categorical([label.engine for label in labels])[name],
        precision=pd.Categorical([label.precision or "" for label in labels])[name],
        evidence=pd.Categorical([label.evidence for label in labels])[name],
        conversion=pd.Categorical([label.conversion or "" for label in labels])[name],
    )
