"""Makes a bundle out of the pieces that the recorded processes flushed.

Memory stays bounded: a piece is read, joined with its ranges and written as one row group before
the next one is looked at. The pieces stay until the bundle would outlive a power cut. What was
recorded but not flushed, or flushed and lost, is gone, and worth a line in the bundle.

Salvage says per rank what was kept. A snapshot only reads, and leaves the recording alone; of a
long one it takes only the newest pieces, so that looking costs the recorded machine little.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from spark_prof.arrays import Rows
from spark_prof.errors import CommandError, os_errors
from spark_prof.redact import redacted_text
from spark_prof.traces.bundle import (
    META_FILE,
    SCHEMA,
    Bundle,
    Meta,
    OtherSchemaError,
    TableFiles,
    own_version,
    table_file,
)
from spark_prof.traces.chunk_files import (
    assembling,
    being_recorded,
    json_object,
    other_recordings,
    piece_numbers,
    processes,
    recording_of,
    starts_of,
)
from spark_prof.traces.chunk_tables import PieceTables, groups
from spark_prof.traces.chunks import (
    LATER_ENGINE,
    LATER_ENGINE_FILE,
    STARTS,
    StepCounts,
    append_log,
    array_name,
    pieces_folder,
    progress_name,
    read_counts,
)

SALVAGED = "salvaged"  # state of a bundle that was made after its recording had died

UNREADABLE_FOLDER = "unreadable"
"""In the bundle: flushed files that could not be read; another spark-prof may read them."""

_DONE_FOLDER = ".pieces-done"
_WITHOUT_A_WORD = "its process did not say that it ended (killed, crashed or out of memory)"


def assemble(
    folder: Path,
    *,
    state: str,
    progress: Callable[[int, int], None] | None = None,
    ends: Mapping[str, str] | None = None,
) -> Bundle:
    """Turns the pieces in the folder into a bundle and removes them.

    Args:
        state: complete, interrupted or salvaged; see `Meta`. What lacks steps is not complete.
        ends: how processes ended that did not say so themselves, by their names.
    """
    pieces, aside = pieces_folder(folder), folder / UNREADABLE_FOLDER
    way_out = (
        "the recorded pieces are kept; when there is room, run: "
        f"spark-prof salvage {quote(str(folder))}"
    )
    with os_errors(f"cannot write the bundle {folder}", way_out), assembling(pieces):
        _put_others_aside(pieces, aside)
        facts = processes(pieces)
        numbers = {name: piece_numbers(pieces, name) for name in facts}
        if not any(numbers.values()):
            if read_counts(pieces) and (none := unflushed(pieces, facts, {}, ends or {})):
                raise CommandError(
                    f"nothing of {folder} was flushed: {'; '.join(none)}; record again"
                )
            raise CommandError(f"no step was recorded in {folder}; record again")
        unreadable = write_tables(
            pieces, folder, facts, numbers, state, progress=progress, ends=ends or {}
        )
        bundle = with_later_engines(Bundle(folder))
        _put_aside(unreadable, aside)
        remove_pieces(folder)
        return bundle


def with_later_engines(bundle: Bundle) -> Bundle:
    """The bundle, which says so if its command has started an engine that it does not hold.

    It is complete all the same where it has as many steps as were asked for.
    """
    note = bundle.path / LATER_ENGINE_FILE
    if not note.exists():
        return bundle
    meta = bundle.meta
    requested_steps = meta.settings.get("steps") or 0
    recorded_steps = [meta.tables.get(table_file("steps", rank), 0) for rank in bundle.ranks]
    whole = meta.state != "complete" or 0 < requested_steps <= min(recorded_steps, default=0)
    lost = tuple(dict.fromkeys((*meta.lost, LATER_ENGINE)))
    replace(meta, state=meta.state if whole else "interrupted", lost=lost).write(bundle.path)
    note.unlink()
    return Bundle(bundle.path)


def open_bundle(folder: Path) -> Bundle:
    """Opens a bundle; one whose recording died is first made from its pieces."""
    return finished_bundle(folder) or assemble(folder, state=SALVAGED)


def finished_bundle(folder: Path) -> Bundle | None:
    """The bundle; None where a dead recording left only pieces to make it from."""
    pieces = pieces_folder(folder)
    with os_errors(f"cannot look into {folder}"):
        left = pieces.is_dir()
        finished = (folder / META_FILE).exists()
    if not left:
        return Bundle(folder)
    if finished:
        try:
            return Bundle(folder)
        except OtherSchemaError:
            raise
        except CommandError:  # a power cut took part of it; its pieces are still here
            pass
    if being_recorded(pieces):
        raise CommandError(f"{folder} is still being recorded; wait for the recording to end")
    return None


def write_tables(
    pieces: Path,
    folder: Path,
    facts: Mapping[str, dict[str, Any]],
    chosen: Mapping[str, Sequence[int]],
    state: str,
    lost: Iterable[str] = (),
    progress: Callable[[int, int], None] | None = None,
    ends: Mapping[str, str] | None = None,
) -> list[Path]:
    """Writes pieces as the tables and the meta.json of a bundle; the files that it could not read.

    Args:
        lost: what is missing besides what is found to be.
        ends: how processes ended; None while they still record, when nothing is missing yet.
    """
    total = sum(map(len, chosen.values()))
    added_pieces = 0
    with TableFiles(folder) as tables:
        added = PieceTables(pieces, tables)
        for name, fact in facts.items():
            added.add_process(fact)
            for group in groups(pieces, name, chosen[name]):
                added.add_group(name, group)
                added_pieces += len(group)
                if progress:
                    progress(added_pieces, total)
        added.add_host(facts)
        added.add_log()
        added.add_cubins(folder)
    missing = [*lost, *added.lost]
    if ends is not None:
        absent = unflushed(pieces, facts, added.steps, ends)
        state = "interrupted" if absent and state == "complete" else state
        absent += absent_ranks(facts) if state == SALVAGED else []
        missing += absent
    meta = _meta(pieces, state, facts, tables.rows)
    markers = any(name.startswith("markers-") for name in tables.rows)
    if meta.settings.get("nvtx") and meta.backend == "cupti" and not markers:
        missing.append(
            "no NVTX marker came: either nothing set any, or NVTX was in use before vLLM"
        )
    replace(meta, lost=tuple(dict.fromkeys(missing))).write(folder)
    return added.unreadable


def remove_pieces(folder: Path) -> None:
    """Removes a bundle's pieces; what is left when this is cut short looks like no recording."""
    finished = folder / _DONE_FOLDER
    shutil.rmtree(finished, ignore_errors=True)
    with suppress(OSError):
        pieces_folder(folder).rename(finished)
        shutil.rmtree(finished, ignore_errors=True)


def _meta(
    pieces: Path, state: str, facts: Mapping[str, dict[str, Any]], rows: dict[str, int]
) -> Meta:
    recording = recording_of(pieces)
    first = next((name for name in facts if name.startswith("rank")), "")
    starts = starts_of(pieces, str(recording.settings.get("run") or ""))
    return Meta(
        schema=SCHEMA,
        spark_prof=own_version(),
        state=state,
        command=recording.command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        # What watched the kernels: what a worker says, else what was asked for.
        backend=next(
            (str(fact["backend"]) for fact in facts.values() if "backend" in fact),
            str(recording.settings.get("backend", "torch")),
        ),
        settings=recording.settings,
        facts={
            name: {key: value for key, value in fact.items() if key not in ("modules", "layers")}
            | _last_words(pieces, name)
            | ({STARTS: starts} if name == first and starts else {})
            for name, fact in facts.items()
        },
        tables=rows,
    )


def _last_words(pieces: Path, name: str) -> dict[str, Any]:
    """How long the recording kept that process waiting, and what it held, as it said last."""
    progress = json_object(pieces / progress_name(name))
    words = {word: progress.get(word) for word in ("pauses", "memory_at_end")}
    return {word: value for word, value in words.items() if isinstance(value, dict)}


def _put_others_aside(pieces: Path, folder: Path) -> None:
    """Takes the files of other recordings out of the pieces; the log keeps that they were there."""
    if files := other_recordings(pieces):
        text = (
            f"{len(files)} files of another recording were in this folder, such as {files[0].name}"
        )
        append_log(pieces, "recording", time.time_ns(), f"{text}; they are in {folder.name}")
        _put_aside(files, folder)


def _put_aside(files: Iterable[Path], folder: Path) -> None:
    """Keeps what this spark-prof could not read, with secrets in texts hidden."""
    for path in files:
        folder.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            if path.suffix == ".json":
                # Latin-1: every other byte stays.
                lines = path.read_bytes().decode("latin-1").split("\n")
                redacted = "\n".join(map(redacted_text, lines))
                (folder / path.name).write_bytes(redacted.encode("latin-1"))
                path.unlink()
            else:
                path.replace(folder / path.name)


def unflushed(
    pieces: Path,
    facts: Mapping[str, Mapping[str, Any]],
    flushed: Mapping[str, Sequence[Rows]],
    ends: Mapping[str, str],
) -> list[str]:
    """Lines about the steps that are missing, by process; `flushed` are those in the bundle."""
    counts = read_counts(pieces)
    reported = {path.name.split(".")[0] for path in pieces.glob(progress_name("rank*"))}
    lines = []
    for name in sorted({*facts, *counts, *reported}):
        progress = json_object(pieces / progress_name(name))
        numbers = np.unique(np.concatenate([np.zeros(0, np.int64), *flushed.get(name, ())]))
        numbers = numbers[numbers >= 0]
        ended = progress.get("finished") or (name in counts and counts[name].ended)
        silent = not ended and (progress or name in counts)
        why = ends.get(name, _WITHOUT_A_WORD if silent else "")
        lines += [
            f"{name}: {line}" for line in _lines(name, counts.get(name), progress, numbers, why)
        ]
    return lines


def absent_ranks(facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line where ranks of the run left nothing; on several hosts those of the others do not."""
    ranks = [fact for name, fact in facts.items() if name.startswith("rank")]
    # The sizes of a run's parallel dimensions multiply.
    expected = max((prod(fact.get("parallel", {}).values()) for fact in ranks), default=1)
    if len(ranks) >= expected:
        return []
    return [f"{expected - len(ranks)} of {expected} ranks left nothing here"]


def _lines(
    name: str,
    counts: StepCounts | None,
    progress: Mapping[str, Any],
    flushed: Rows,
    why: str,
) -> list[str]:
    # What the process said twice a second; after a power cut it may be all that is left.
    recorded = max(counts.recorded if counts else 0, progress.get("recorded", 0))
    exact = counts is not None and counts.exact and counts.recorded == recorded
    expected = max(recorded, int(flushed[-1]) + 1 if len(flushed) else 0)
    records = "recorded steps" if name.startswith("rank") else "recorded scheduler iterations"
    missing = expected - len(flushed)
    because = f": {why}" if why else ""
    lines = []
    if missing > 0:
        fate = (
            "were not flushed" if not len(flushed) or flushed[-1] < len(flushed) else "are missing"
        )
        if exact or why != _WITHOUT_A_WORD:
            fate += f"{_place(flushed, expected)}{because}"
        lines.append(f"{'' if exact else 'at least '}{missing} {records} {fate}")
    elif why and not exact and name.startswith("rank"):
        lines.append(f"how many {records} were not flushed after {expected} is not known{because}")
    if counts is not None and counts.begun > counts.recorded:
        lines.append("1 more step was running when the recording ended, and is not recorded")
    if counts is not None and counts.failed:
        logged = "" if not counts.unlogged else "; why could not be written to its log"
        lines.append(f"its recording failed after {recorded} steps; later ones are missing{logged}")
    elif counts is not None and counts.unlogged:
        lines.append(f"{counts.unlogged} lines of its log could not be written")
    if (ended := str(progress.get("ended") or "")) and name.startswith("rank"):
        lines.append(f"its recording ended after {expected} steps: {ended}")
    finished = progress.get("finished") or (counts is not None and counts.ended)
    if not (lines or len(flushed) or finished) and name.startswith("rank"):
        lines.append(f"no step was flushed{because}")
    return lines


def _place(flushed: Rows, expected: int) -> str:
    """Which steps of how many are missing, where they are in one row."""
    ends = np.concatenate([[-1], flushed, [expected]])
    gaps = np.flatnonzero(np.diff(ends) > 1)
    if len(gaps) != 1 or not len(flushed):
        return f" (of {expected})"
    return f" ({ends[gaps[0]] + 1} to {ends[gaps[0] + 1] - 1} of {expected})"


SNAPSHOT = "recording"  # state of a bundle whose recording goes on

MOST_PIECES = 32  # pieces of a rank that a snapshot takes, the newest
MOST_BYTES = 128 << 20
"""Of the files of all pieces that it takes; but one of each rank it does take."""


def snapshot(folder: Path, into: Path) -> Bundle:
    """The whole pieces of a recording as a bundle in the empty folder `into`."""
    pieces = pieces_folder(folder)
    with os_errors(f"cannot look at the pieces of {folder}", "try again"):
        facts = processes(pieces)
        if other_recordings(pieces):
            raise CommandError(f"{folder} holds pieces of two recordings; wait until they end")
        # The steps of a piece are written last: where they are, every file is there.
        whole = {
            name: [n for n in piece_numbers(pieces, name)
                   if (pieces / array_name(name, "steps", n)).exists()]
            for name in facts
        }  # fmt: skip
        total = sum(map(len, whole.values()))
        if not total:
            raise CommandError(
                f"{folder} is being recorded and has no whole piece yet; look again in a minute"
            )
        chosen = {
            name: _newest(pieces, name, numbers[-MOST_PIECES:], MOST_BYTES // len(facts))
            for name, numbers in whole.items()
        }
        left = total - sum(map(len, chosen.values()))
        lost = ["it is still being recorded: this is what was flushed so far"]
        if left:
            lost.append(f"{left} of {total} flushed pieces are older and are not looked at")
        write_tables(pieces, into, facts, chosen, SNAPSHOT, lost)
    return Bundle(into)


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
    newly_assembled: bool  # whether it was made just now; else it had been whole before
    ranks: tuple[KeptRank, ...]
    missing: tuple[str, ...]  # what lacks and belongs to no rank that left anything


def salvage(folder: Path, *, progress: Callable[[int, int], None] | None = None) -> Salvage:
    """Makes the bundle if the folder holds only pieces; a whole bundle is left as it is."""
    whole = finished_bundle(folder)
    bundle = whole or assemble(folder, state=SALVAGED, progress=progress)
    late = _late_pieces(bundle)
    if not late and not being_recorded(pieces_folder(folder)):
        remove_pieces(folder)
    ranks = tuple(_kept_rank(bundle, rank) for rank in bundle.ranks)
    rank_lines = {line for rank in ranks for line in rank.missing}
    rest = [line for line in bundle.meta.lost if line not in rank_lines]
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
        bundled = set(_piece_column(bundle, int(rank))) if rank.isdecimal() else set()
        late += len(set(piece_numbers(pieces, name)) - bundled)
    return late


def _piece_column(bundle: Bundle, rank: int) -> list[int]:
    return [int(number) for number in bundle.frame("steps", rank, ["piece"])["piece"].unique()]


def is_of_process(line: str, name: str) -> bool:
    """Whether a line of a bundle's `lost` is about a process, whose name it begins with."""
    return line.startswith((f"{name}:", f"{name},"))


def _kept_rank(bundle: Bundle, rank: int) -> KeptRank:
    rows = bundle.meta.tables
    name = f"rank{rank}"
    return KeptRank(
        rank=rank,
        pieces=len(_piece_column(bundle, rank)),
        steps=rows.get(table_file("steps", rank), 0),
        kernels=rows.get(table_file("kernels", rank), 0),
        missing=tuple(line for line in bundle.meta.lost if is_of_process(line, name)),
    )
