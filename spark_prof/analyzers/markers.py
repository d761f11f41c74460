"""The recorded program's own NVTX ranges, summed up by name."""

from __future__ import annotations

from spark_prof.analyzers.model import MarkerRow
from spark_prof.traces.bundle import Bundle

_MOST_ROWS = 100


def markers_of(bundle: Bundle, rank: int) -> tuple[MarkerRow, ...]:
    """The names that took the longest, by host time; a range counts what is inside it too."""
    columns = ["name", "domain", "start_ns", "end_ns"]
    markers = bundle.frame("markers", rank, columns)
    if markers.empty:
        return ()
    markers = markers.assign(us=(markers["end_ns"] - markers["start_ns"]) / 1e3)
    groups = markers.groupby(["name", "domain"], observed=True)["us"].agg(["size", "sum"])
    rows = (
        MarkerRow(str(name), str(domain), int(calls), float(us))
        for (name, domain), calls, us in groups.itertuples(name=None)
    )
    return tuple(sorted(rows, key=lambda row: (-row.us, row.name, row.domain))[:_MOST_ROWS])
