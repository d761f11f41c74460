"""What the command line names, as a list to choose from."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath

from spark_prof.dashboards.units import clean
from spark_prof.errors import CommandError, os_errors
from spark_prof.traces.bundle import META_FILE
from spark_prof.traces.resolve import AbResult, Folder, LoadTest, find_result, is_bundle, resolve

MOST_ENTRIES = 1000  # so many names fit into a list that a browser gets with every picture

_NEWEST = 8


@dataclass(frozen=True)
class SourceEntry:
    """One source to look at."""

    source: str
    label: str  # short and another for each; not to be drawn unescaped
    result: Path | None = None  # the file of a result of `spark-prof ab`, None for a recording
    fault: str = ""  # why it cannot be opened, one line; empty where it may be


@lru_cache(maxsize=4)
def find_entries(*sources: str) -> tuple[tuple[SourceEntry, ...], tuple[Path, ...]]:
    """Looks at the beginning of each source, once: it stays what it was.

    Returns:
        What can be chosen: a folder of recordings becomes its recordings. And those that are
        results of load generators, which are shown beside recordings.
    """
    unlabeled: list[SourceEntry] = []
    clients: list[Path] = []
    for source in sources:
        try:
            resolved = resolve(source)
        except CommandError as error:
            unlabeled.append(SourceEntry(source, "", fault=str(error)))
            continue
        if isinstance(resolved, LoadTest):
            clients.append(Path(source))
        elif isinstance(resolved, Folder):
            unlabeled += [SourceEntry(member.source, "") for member in resolved.members]
        else:
            unlabeled.append(
                SourceEntry(source, "", resolved.file if isinstance(resolved, AbResult) else None)
            )
        if len(unlabeled) > MOST_ENTRIES:
            raise CommandError(
                f"{source} makes it more than {MOST_ENTRIES:,} recordings; give a folder of fewer"
            )
    if clients and not unlabeled:
        raise CommandError(
            f"{sources[0]} is a load generator's result, which holds no kernels; name its "
            "recording too, or see it with spark-prof report"
        )
    labels = _labels([entry.source for entry in unlabeled])
    entries = (replace(entry, label=label) for entry, label in zip(unlabeled, labels, strict=True))
    return tuple(entries), tuple(clients)


def newest_here(folder: Path) -> list[str]:
    """The newest bundles and results of ab in a folder, the newest first."""
    times: list[tuple[float, str]] = []
    with os_errors(f"cannot look into {folder}"), os.scandir(folder) as inside:
        for entry in inside:
            path = folder / entry.name
            if is_bundle(path):
                meta = path / META_FILE
                times.append(((meta if meta.exists() else path).stat().st_mtime, str(path)))
            elif entry.is_dir() and (result := find_result(path)):
                times.append((result.stat().st_mtime, str(path)))
    if not times:
        raise CommandError(
            f"{folder.absolute()} holds no bundle; name a bundle, a trace, a folder of them or a "
            "result of ab, or record one with spark-prof record"
        )
    return [path for _, path in sorted(times, reverse=True)[:_NEWEST]]


def _labels(sources: Sequence[str]) -> list[str]:
    """The last parts of each path, as many as tell it from the others."""
    parts = [PurePosixPath(os.path.normpath(source)).parts or (source,) for source in sources]
    longest = max(map(len, parts), default=0)
    different = set(parts)
    used = [Counter(path[-length:] for path in different) for length in range(1, longest + 1)]
    totals, repeats = Counter(parts), Counter[tuple[str, ...]]()
    labels = []
    for path in parts:
        length = next((n for n in range(1, len(path)) if used[n - 1][path[-n:]] == 1), len(path))
        repeats[path] += 1
        again = f" ({repeats[path]})" if totals[path] > 1 else ""
        labels.append(clean("/".join(path[-length:])) + again)
    return labels
