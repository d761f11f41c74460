"""Names the folder of a prepared source after everything that decides on its content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import spark_prof
from spark_prof.traces.cuda_tools import find_tool
from spark_prof.traces.measured import state_folder
from spark_prof.traces.source_state import source_state

__all__ = ["past_of", "prepared_name"]

_PACKAGE = Path(spark_prof.__file__).parent


def prepared_name(source: str, rank: int | None) -> str | None:
    """The name of the folder; None where nothing tells whether the source is what it was.

    Args:
        source: as a person named it.
        rank: the rank, the lowest one if None.
    """
    state = source_state(source)
    if state is None:
        return None
    facts = [state, *_files(_PACKAGE, ".py"), *_files(state_folder(), ".json")]
    # Machine code is read where the tool for it is there.
    facts.append(find_tool("nvdisasm"))
    return f"{past_of(source, rank)}{_digest(facts)}"


def past_of(source: str, rank: int | None) -> str:
    """What the names of all folders of that source and rank begin with, whatever its state."""
    # The report shows the source as it was named.
    return f"{_digest([source, os.path.abspath(source), rank])[:16]}-"


def _files(folder: Path, ending: str) -> Iterator[object]:
    """What tells the files below a folder from others of the same names."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if name.endswith(ending):
                status = os.stat(os.path.join(place, name))
                yield place, name, status.st_size, status.st_mtime_ns


def _digest(facts: list[object]) -> str:
    text = "\n".join(map(repr, facts)).encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()[:32]
