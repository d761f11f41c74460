"""Reads one piece that the CUPTI backend recorded: raw activity buffers and a file of names.

Format: docs/bundle.md. A record points to its kernel's name in the memory of a process that is
gone, so the names lie beside the buffers. Times are CUPTI's clock plus the offset noted there.
"""

from __future__ import annotations

from pathlib import Path

import orjson

from spark_prof.traces.readers.cupti_blocks import map_records
from spark_prof.traces.readers.cupti_parts import take_parts
from spark_prof.traces.readers.cupti_rows import Rows
from spark_prof.traces.readers.trace import Trace
from spark_prof.traces.tables import empty_frame

_LATEST_NS = 1 << 62


def read_cupti(path: Path, names: Path) -> Trace:
    """Reads one piece, as far as it was written.

    Args:
        path: the raw buffers.
        names: JSON with `names` and `markers`, names by their address, and `clock_offset_ns`.

    Raises:
        CommandError: the buffers cannot be read, or it is not known how their records look.
    """
    lost: list[str] = []
    rows = Rows(*_read_names(names, lost), path.stat().st_size if path.is_file() else 0)
    for parts in map_records(path, lost, take_parts):
        for part in parts:
            rows.add(part)
    return Trace(
        gpu=rows.gpu(),
        launches=rows.launches(),
        operators=empty_frame("overhead").assign(part=0, thread=0),
        overhead=rows.overhead(),
        markers=rows.markers(),
        lost=(*lost, *rows.lost()),
    )


def _read_names(path: Path, lost: list[str]) -> tuple[dict[int, str], dict[int, str], int]:
    """The kernel name and the marker name at each address, and what to add to a time."""
    try:
        document = orjson.loads(path.read_bytes())
        names, markers = (
            {int(pointer): str(name) for pointer, name in found.items()}
            for found in (document["names"], document.get("markers", {}))
        )
        offset = int(document["clock_offset_ns"])
        if abs(offset) >= _LATEST_NS:
            raise ValueError("its clock offset is none")
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        lost.append(f"{path.name} cannot be used ({reason}): kernels lack names and exact times")
        return {}, {}, 0
    return names, markers, offset
