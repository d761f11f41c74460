"""Makes a bundle of what a recording has flushed so far, and leaves the recording alone.

The pieces are only read; the bundle lies elsewhere. Its latest steps count most: of a long
recording only the newest pieces are taken, so that looking costs the recorded machine little.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from spark_prof.errors import CommandError
from spark_prof.traces.assemble import write_tables
from spark_prof.traces.bundle import META_FILE, Bundle
from spark_prof.traces.piece_files import other_recordings, piece_numbers, processes
from spark_prof.traces.pieces import array_name, pieces_folder
from spark_prof.traces.running import being_recorded

SNAPSHOT = "recording"
"""State of a bundle whose recording goes on."""

_MOST_PIECES = 32
_MOST_BYTES = 128 << 20


def is_recording(folder: Path) -> bool:
    """Whether the folder holds pieces of a recording that goes on, and no bundle yet."""
    pieces = pieces_folder(folder)
    try:
        if not pieces.is_dir() or (folder / META_FILE).exists():
            return False
    except OSError:
        return False
    return being_recorded(pieces)


def snapshot(
    folder: Path, into: Path, most_pieces: int = _MOST_PIECES, most_bytes: int = _MOST_BYTES
) -> Bundle:
    """The whole pieces of a recording as a bundle.

    Args:
        folder: the bundle's folder, which holds a folder of pieces.
        into: an empty folder for the snapshot.
        most_pieces: of a rank; older pieces than that are left out.
        most_bytes: of the files of all pieces that are taken; but one of each rank is.

    Raises:
        CommandError: no step was flushed yet, or the snapshot cannot be written.
    """
    pieces = pieces_folder(folder)
    try:
        facts = processes(pieces)
        if other_recordings(pieces):
            raise CommandError(f"{folder} holds pieces of two recordings; wait until they end")
        whole = {name: _whole(pieces, name) for name in facts}
        total = sum(map(len, whole.values()))
        if not total:
            raise CommandError(
                f"{folder} is being recorded and has no whole piece yet; look again in a minute"
            )
        chosen = {
            name: _newest(pieces, name, numbers[-most_pieces:], most_bytes // len(facts))
            for name, numbers in whole.items()
        }
        left = total - sum(map(len, chosen.values()))
        lost = ["it is still being recorded: this is what was flushed so far"]
        if left:
            lost.append(f"{left} of {total} flushed pieces are older and are not looked at")
        write_tables(pieces, into, facts, chosen, SNAPSHOT, lost)
    except OSError as error:
        raise CommandError(
            f"cannot look at the pieces of {folder}: {error.strerror or error}; try again"
        ) from error
    return Bundle(into)


def _whole(pieces: Path, process: str) -> list[int]:
    """The pieces of which every file is there: the steps are written last."""
    names = {entry.name for entry in os.scandir(pieces)}
    return [
        number
        for number in piece_numbers(pieces, process)
        if array_name(process, "steps", number) in names
    ]


def _newest(pieces: Path, process: str, numbers: Sequence[int], most_bytes: int) -> list[int]:
    """The newest pieces whose files have no more than so many bytes; at least one."""
    sizes: Counter[str] = Counter()
    for entry in os.scandir(pieces):
        name, _, rest = entry.name.partition(".")
        piece = rest.partition(".")[0]
        if name == process and piece.isdecimal() and int(piece) >= min(numbers, default=0):
            sizes[piece] += entry.stat().st_size
    chosen: list[int] = []
    for number in sorted(numbers, reverse=True):
        most_bytes -= sizes[f"{number:05d}"]
        if chosen and most_bytes < 0:
            break
        chosen.append(number)
    return sorted(chosen)
