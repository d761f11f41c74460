"""Makes a bundle of what a recording flushed: of a dead one all of it, of a live one a look at it.

Salvage says per rank what was kept. A snapshot only reads, and leaves the recording alone; of a
long one it takes only the newest pieces, so that looking costs the recorded machine little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_prof.errors import CommandError
from spark_prof.traces.assemble import (
    SALVAGED,
    assemble,
    finished_bundle,
    remove_pieces,
    write_tables,
)
from spark_prof.traces.bundle import Bundle, table_file
from spark_prof.traces.chunk_files import being_recorded, other_recordings, piece_numbers, processes
from spark_prof.traces.chunks import array_name, pieces_folder

SNAPSHOT = "recording"
"""State of a bundle whose recording goes on."""

_MOST_PIECES = 32
_MOST_BYTES = 128 << 20


def snapshot(
    folder: Path, into: Path, most_pieces: int = _MOST_PIECES, most_bytes: int = _MOST_BYTES
) -> Bundle:
    """The whole pieces of a recording as a bundle.

    Args:
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
    numbers = piece_numbers(pieces, process)
    return [n for n in numbers if (pieces / array_name(process, "steps", n)).exists()]


def _newest(pieces: Path, process: str, numbers: Sequence[int], most_bytes: int) -> list[int]:
    """The newest pieces whose files have no more than so many bytes; at least one."""
    chosen: list[int] = []
    for number in sorted(numbers, reverse=True):
        files = pieces.glob(f"{process}.{number:05d}.*")
        most_bytes -= sum(path.stat().st_size for path in files)
        if chosen and most_bytes < 0:
            break
        chosen.append(number)
    return sorted(chosen)


@dataclass(frozen=True)
class KeptRank:
    """What is in the bundle of one rank, in rows."""

    rank: int
    pieces: int  # flushed pieces that hold steps
    steps: int
    kernels: int
    missing: tuple[str, ...]  # what it lacks, one line each


@dataclass(frozen=True)
class Salvage:
    """What a folder holds after it was salvaged."""

    bundle: Bundle
    made: bool  # whether it was made just now; else it had been whole before
    ranks: tuple[KeptRank, ...]
    missing: tuple[str, ...]  # what lacks and belongs to no rank that left anything


def salvage(folder: Path, *, progress: Callable[[int, int], None] | None = None) -> Salvage:
    """Makes the bundle if the folder holds only pieces; a whole bundle is left as it is.

    Raises:
        CommandError: the folder is neither, is still being recorded, or cannot be written.
    """
    whole = finished_bundle(folder)
    bundle = whole or assemble(folder, state=SALVAGED, progress=progress)
    late = _late_pieces(bundle)
    if not late and not being_recorded(pieces_folder(folder)):
        remove_pieces(folder)
    ranks = tuple(_kept(bundle, rank) for rank in bundle.ranks)
    told = {line for rank in ranks for line in rank.missing}
    rest = [line for line in bundle.meta.lost if line not in told]
    if late:
        rest.append(
            f"{late} pieces came after the bundle was made and are no part of it; "
            f"they are left in {pieces_folder(folder)}"
        )
    return Salvage(bundle, whole is None, ranks, tuple(rest))


def _late_pieces(bundle: Bundle) -> int:
    """How many pieces lie beside a whole bundle and hold what it does not."""
    pieces = pieces_folder(bundle.path)
    if not pieces.is_dir():
        return 0
    late = 0
    for name in processes(pieces):
        rank = name.removeprefix("rank")
        known = set(_piece_column(bundle, int(rank))) if rank.isdecimal() else set()
        late += len(set(piece_numbers(pieces, name)) - known)
    return late


def _piece_column(bundle: Bundle, rank: int) -> list[int]:
    return [int(number) for number in bundle.frame("steps", rank, ["piece"])["piece"].unique()]


def _kept(bundle: Bundle, rank: int) -> KeptRank:
    rows = bundle.meta.tables
    name = f"rank{rank}"
    return KeptRank(
        rank=rank,
        pieces=len(_piece_column(bundle, rank)),
        steps=rows.get(table_file("steps", rank), 0),
        kernels=rows.get(table_file("kernels", rank), 0),
        missing=tuple(
            line for line in bundle.meta.lost if line.startswith((f"{name}:", f"{name},"))
        ),
    )
