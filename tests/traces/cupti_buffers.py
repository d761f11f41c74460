"""Makes raw CUPTI buffers as libcupti lays them out, for tests and benchmarks/decode_speed.py.

The layout comes from tests/data/cupti/layouts.json, which is read from NVIDIA's headers, not from
the reader.
"""

from __future__ import annotations

import json
import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

LAYOUTS = json.loads(
    (Path(__file__).resolve().parents[1] / "data" / "cupti" / "layouts.json").read_text()
)
VERSIONS = [int(version) for version in LAYOUTS["libraries"]]
CUDA_13_0 = 130001
_UNSIGNED = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}


def size_of(kind: int, version: int) -> int:
    """Bytes of a record: by libcupti's own steps where they are known, else by the header."""
    library = LAYOUTS["libraries"][str(version)]
    walked = (library["walked"] or {}).get(str(kind))
    return int(walked or LAYOUTS["structs"][library["structs"][str(kind)]]["size"])


@cache
def dtype_of(kind: int, version: int) -> np.dtype[Any]:
    """All the fields of the header's structure that have a simple type."""
    layout = LAYOUTS["structs"][LAYOUTS["libraries"][str(version)]["structs"][str(kind)]]
    fields = {name: at for name, at in layout["fields"].items() if at[1] in _UNSIGNED}
    return np.dtype(
        {
            "names": list(fields),
            "formats": [_UNSIGNED[size] for _, size in fields.values()],
            "offsets": [offset for offset, _ in fields.values()],
            "itemsize": layout["size"],
        }
    )


def records(kind: int, count: int = 1, version: int = CUDA_13_0, **fields: Any) -> Any:
    """Records of that kind with those fields and else a millisecond of 1970."""
    rows = np.zeros(count, dtype_of(kind, version))
    rows["kind"] = kind
    values = {"start": 1000, "end": 2000} | fields
    for name, value in values.items():
        rows[name] = value
    return rows


def other(kind: int, version: int = CUDA_13_0) -> bytes:
    """A record that no reader looks into."""
    return struct.pack("<I", kind).ljust(size_of(kind, version), b"\xee")


def block(*parts: Any, version: int = CUDA_13_0, dropped: int = 0) -> bytes:
    """A buffer with its header, as docs/bundle.md describes it."""
    data = b"".join(p if isinstance(p, bytes) else p.tobytes() for p in parts)
    return struct.pack("<8sIIQQ", b"SPCUPTI1", version, 0, len(data), dropped) + data
