"""Finds the recordings in a folder: bundles and trace files, at most four folders deep."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from spark_prof.errors import CommandError
from spark_prof.traces.bundle import META_FILE
from spark_prof.traces.pieces import pieces_folder

__all__ = ["MOST_MEMBERS", "Member", "find_members", "is_bundle"]

DEPTH = 4
MOST_MEMBERS = 10_000
_MOST_ENTRIES = 1_000_000
_TRACE_ENDINGS = (
    ".json", ".json.gz", ".json.zst", ".sqlite", ".nsys-rep", ".hatchet", ".chrome_trace",
)  # fmt: skip


@dataclass(frozen=True)
class Member:
    """One recording of a dataset.

    Attributes:
        name: its path below the dataset's folder, with / between the parts.
        path: where it is.
    """

    name: str
    path: Path


def is_bundle(path: Path) -> bool:
    """Whether the folder is a bundle, or holds the pieces of one."""
    try:
        return path.is_dir() and ((path / META_FILE).is_file() or pieces_folder(path).is_dir())
    except OSError:
        return False


def find_members(folder: Path) -> list[Member]:
    """The recordings in the folder, sorted by name; the folder itself if it is one.

    Links to folders are not followed, so that a link to a folder above ends nothing. What is
    hidden is left out, and so is what lies in a bundle.

    Raises:
        CommandError: there are none, or too many, or the folder cannot be read.
    """
    if is_bundle(folder) or folder.is_file():
        return [Member(folder.name or str(folder), folder)]
    if not folder.is_dir():
        raise CommandError(f"{folder} does not exist; give a bundle, a trace or a folder of them")
    found: list[Member] = []
    waiting = [(folder, "", 0)]
    seen = 0
    while waiting:
        here, prefix, depth = waiting.pop()
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as error:
            raise CommandError(f"cannot look into {here}: {error.strerror or error}") from error
        seen += len(entries)
        for entry in entries:
            name, path = prefix + entry.name, here / entry.name
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                if is_bundle(path):
                    found.append(Member(name, path))
                elif depth + 1 < DEPTH:
                    waiting.append((path, f"{name}/", depth + 1))
            elif entry.name.lower().endswith(_TRACE_ENDINGS) and entry.is_file():
                found.append(Member(name, path))
        if len(found) > MOST_MEMBERS or seen > _MOST_ENTRIES:
            raise CommandError(
                f"{folder} holds more than {MOST_MEMBERS:,} recordings; give a folder of fewer"
            )
    if not found:
        raise CommandError(f"{folder} holds no bundle and no trace; record or import one first")
    return sorted(found, key=lambda member: member.name)
