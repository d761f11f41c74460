"""Makes a bundle of what a dead recording flushed, and says per rank what that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spark_prof.traces.assemble import SALVAGED, assemble, finished_bundle, remove_pieces
from spark_prof.traces.bundle import Bundle, table_file
from spark_prof.traces.piece_files import piece_numbers, processes
from spark_prof.traces.pieces import pieces_folder
from spark_prof.traces.running import being_recorded


@dataclass(frozen=True)
class KeptRank:
    """What is in the bundle of one rank, in rows.

    Attributes:
        pieces: flushed pieces that hold steps.
        missing: what it lacks, one line each.
    """

    rank: int
    pieces: int
    steps: int
    kernels: int
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Salvage:
    """What a folder holds after it was salvaged.

    Attributes:
        bundle: the whole bundle.
        made: whether it was made just now; else it had been whole before.
        ranks: what was kept of each.
        missing: what lacks and belongs to no rank that left anything.
    """

    bundle: Bundle
    made: bool
    ranks: tuple[KeptRank, ...]
    missing: tuple[str, ...]


def salvage(folder: Path, *, progress: Callable[[int, int], None] | None = None) -> Salvage:
    """Makes the bundle if the folder holds only pieces; a whole bundle is left as it is.

    Args:
        folder: the bundle's folder.
        progress: told after each piece how many of how many are done.

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
