"""What the command line names, as a list to choose from."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from spark_prof.dashboards.units import clean
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import META_FILE
from spark_prof.traces.remote import is_url
from spark_prof.traces.resolve import AbResult, Folder, LoadTest, find_result, is_bundle, resolve

MOST_ENTRIES = 1000
"""So many names fit into a list that a browser gets with every picture."""

_NEWEST = 8


@dataclass(frozen=True)
class Entry:
    """One source to look at."""

    source: str
    label: str  # short and another for each; not to be drawn unescaped
    result: Path | None = None  # the file of a result of `spark-prof ab`, None for a recording
    fault: str = ""  # why it cannot be opened, one line; empty where it may be


def find_entries(sources: Sequence[str]) -> tuple[Entry, ...]:
    """Looks at the beginning of each source; a folder of recordings becomes its recordings.

    Results of load generators are none of them: see `client_results`.

    Raises:
        CommandError: they are too many, or results of load generators alone.
    """
    found: list[Entry] = []
    clients = {str(path) for path in client_results(sources)}
    if clients and clients.issuperset(sources):
        raise CommandError(
            f"{sources[0]} is a load generator's result, which holds no kernels; name its "
            "recording too, or see it with spark-prof report"
        )
    for source in sources:
        if source in clients:
            continue
        try:
            found += _look(source)
        except CommandError as error:
            found.append(Entry(source, "", fault=str(error)))
        if len(found) > MOST_ENTRIES:
            raise CommandError(
                f"{source} makes it more than {MOST_ENTRIES:,} recordings; give a folder of fewer"
            )
    labels = _labels([entry.source for entry in found])
    return tuple(replace(entry, label=label) for entry, label in zip(found, labels, strict=True))


def client_results(sources: Sequence[str]) -> tuple[Path, ...]:
    """Those that are results of load generators, which are shown beside recordings."""
    return tuple(Path(source) for source in sources if _is_client_result(source))


def newest_here(folder: Path) -> list[str]:
    """The newest bundles and results of ab in a folder, the newest first.

    Raises:
        CommandError: there are none.
    """
    times: list[tuple[float, str]] = []
    try:
        with os.scandir(folder) as inside:
            for entry in inside:
                path = folder / entry.name
                if is_bundle(path):
                    meta = path / META_FILE
                    times.append(((meta if meta.exists() else path).stat().st_mtime, str(path)))
                elif entry.is_dir() and (result := find_result(path)):
                    times.append((result.stat().st_mtime, str(path)))
    except OSError as error:
        raise CommandError(f"cannot look into {folder}: {error.strerror or error}") from error
    if not times:
        raise CommandError(
            f"{folder.absolute()} holds no bundle; name a bundle, a trace, a folder of them or a "
            "result of ab, or record one with spark-prof record"
        )
    return [path for _, path in sorted(times, reverse=True)[:_NEWEST]]


def _look(source: str) -> list[Entry]:
    found = resolve(source)
    if isinstance(found, Folder):
        return [Entry(member.source, "") for member in found.members]
    return [Entry(source, "", found.file if isinstance(found, AbResult) else None)]


def _is_client_result(source: str) -> bool:
    if is_url(source):
        return False
    try:
        return isinstance(resolve(source), LoadTest)
    except CommandError:
        return False


def _labels(sources: Sequence[str]) -> list[str]:
    """The last parts of each path, as many as tell it from the others."""
    parts = [PurePosixPath(os.path.normpath(source)).parts or (source,) for source in sources]
    longest = max(map(len, parts), default=0)
    different = set(parts)
    used = [Counter(own[-length:] for own in different) for length in range(1, longest + 1)]
    given, seen = Counter(parts), Counter[tuple[str, ...]]()
    labels = []
    for own in parts:
        length = next((n for n in range(1, len(own)) if used[n - 1][own[-n:]] == 1), len(own))
        seen[own] += 1
        again = f" ({seen[own]})" if given[own] > 1 else ""
        labels.append(clean("/".join(own[-length:])) + again)
    return labels
