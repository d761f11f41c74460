"""What each data-parallel replica had to do, from bundles made by hand."""

from __future__ import annotations

from pathlib import Path

from spark_prof.analyzers.model import ReplicaRow
from spark_prof.analyzers.ranks.rank_rows import replica_load
from spark_prof.traces.assemble import assemble
from spark_prof.traces.bundle import Bundle
from tests.support import Piece, Recorded, engine, step

MS = 1_000_000


def recorded(folder: Path, *ranks: int, data: int = 2) -> Bundle:
    """Rank 0 reads a prompt of 7 and decodes 3 steps of 2 requests; rank 1 decodes one step."""
    busy = Piece(
        [step(0, 0, 2 * MS, "prefill", prefill_tokens=7),
         *(step(n, n * 10 * MS, n * 10 * MS + MS, decode_requests=2, decode_tokens=2)
           for n in (1, 2, 3))]
    )  # fmt: skip
    idle = Piece([step(0, 0, MS)])
    engines = {
        0: [engine(0, 0, 2 * MS), *(engine(n, n * 10 * MS, n * 10 * MS + MS, output_tokens=2,
                                           output_requests=2) for n in (1, 2, 3))],
        1: [engine(0, 0, MS)],
    }  # fmt: skip
    facts = {"parallel": {"tensor": 1, "pipeline": 1, "data": data}}
    pieces = {rank: [(busy, idle)[rank]] for rank in ranks}
    Recorded(pieces, {rank: engines[rank] for rank in ranks}, facts).write(folder)
    return assemble(folder, state="complete")


def test_each_replica_with_its_own_tokens(tmp_path: Path) -> None:
    assert replica_load(recorded(tmp_path / "b", 0, 1)) == (
        ReplicaRow(0, 0, 4, 7, 7, 2.0, 5000.0),
        ReplicaRow(1, 1, 1, 0, 1, 1.0, 1000.0),
    )


def test_one_engine_has_no_replicas(tmp_path: Path) -> None:
    assert replica_load(recorded(tmp_path / "b", 0, data=1)) == ()
