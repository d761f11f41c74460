"""Makes a bundle out of the pieces that the recorded processes flushed.

Memory stays bounded: a piece is read, joined with its ranges and written as one row group before
the next one is looked at. The pieces stay until the bundle would outlive a power cut.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Any

from spark_prof.errors import CommandError
from spark_prof.redact import redacted_text
from spark_prof.traces.bundle import META_FILE, SCHEMA, Bundle, Meta, OtherSchemaError, own_version
from spark_prof.traces.piece_files import (
    assembling,
    being_recorded,
    json_files,
    other_recordings,
    piece_numbers,
    processes,
)
from spark_prof.traces.piece_tables import PieceTables
from spark_prof.traces.pieces import RECORDING_FILE, append_log, pieces_folder
from spark_prof.traces.step_counts import read_counts
from spark_prof.traces.table_files import TableFiles
from spark_prof.traces.unflushed import absent_ranks, unflushed

SALVAGED = "salvaged"
"""State of a bundle that was made after its recording had died."""

UNREADABLE_FOLDER = "unreadable"
"""In the bundle: flushed files that could not be read; another spark-prof may read them."""

_DONE_FOLDER = ".pieces-done"


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

    Raises:
        CommandError: no step was recorded, or the folder cannot be written.
    """
    pieces = pieces_folder(folder)
    try:
        with assembling(pieces):
            return _assemble(folder, pieces, state, progress or (lambda _, __: None), ends or {})
    except OSError as error:
        raise CommandError(
            f"cannot write the bundle {folder}: {error.strerror or error}; the recorded pieces "
            f"are kept, free some space and run: spark-prof salvage {quote(str(folder))}"
        ) from error


def open_bundle(folder: Path) -> Bundle:
    """Opens a bundle; one whose recording died is first made from its pieces.

    Raises:
        CommandError: the folder is no bundle, is damaged, or is still being recorded.
    """
    return finished_bundle(folder) or assemble(folder, state=SALVAGED)


def finished_bundle(folder: Path) -> Bundle | None:
    """The bundle; None where a dead recording left only pieces to make it from.

    Raises:
        CommandError: the folder is no bundle, is damaged, or is still being recorded.
    """
    pieces = pieces_folder(folder)
    try:
        left = pieces.is_dir()
        finished = (folder / META_FILE).exists()
    except OSError as error:
        raise CommandError(f"cannot look into {folder}: {error.strerror or error}") from error
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
    progress: Callable[[int, int], None] = lambda _, __: None,
    ends: Mapping[str, str] | None = None,
) -> list[Path]:
    """Writes pieces as the tables and the meta.json of a bundle, and leaves them as they are.

    Args:
        lost: what is missing besides what is found to be.
        ends: how processes ended; None while they still record, when nothing is missing yet.

    Returns:
        The files that could not be read.

    Raises:
        OSError: the folder cannot be written.
    """
    total = sum(map(len, chosen.values()))
    done = 0
    with TableFiles(folder) as tables:
        added = PieceTables(pieces, tables)
        for name, fact in facts.items():
            added.add_process(fact)
            for piece in chosen[name]:
                added.add_piece(name, piece)
                done += 1
                progress(done, total)
        added.add_log()
        added.add_cubins(folder)
    missing = [*lost, *added.lost]
    if ends is not None:
        absent = unflushed(pieces, facts, added.steps, ends)
        state = "interrupted" if absent and state == "complete" else state
        absent += absent_ranks(facts) if state == SALVAGED else []
        missing += absent
    if _wants_markers(pieces, facts.values()) and not any(
        n.startswith("markers-") for n in tables.rows
    ):
        missing.append(
            "no NVTX marker came: either nothing set any, or NVTX was in use before vLLM"
        )
    _meta(pieces, state, facts, missing, tables.rows).write(folder)
    return added.unreadable


def remove_pieces(folder: Path) -> None:
    """Removes a bundle's pieces; what is left when this is cut short looks like no recording."""
    done = folder / _DONE_FOLDER
    shutil.rmtree(done, ignore_errors=True)
    with suppress(OSError):
        pieces_folder(folder).rename(done)
        shutil.rmtree(done, ignore_errors=True)


def _assemble(
    folder: Path,
    pieces: Path,
    state: str,
    progress: Callable[[int, int], None],
    ends: Mapping[str, str],
) -> Bundle:
    _put_others_aside(pieces, folder / UNREADABLE_FOLDER)
    facts = processes(pieces)
    found = {name: piece_numbers(pieces, name) for name in facts}
    if not any(found.values()):
        if read_counts(pieces) and (none := unflushed(pieces, facts, {}, ends)):
            raise CommandError(f"nothing of {folder} was flushed: {'; '.join(none)}; record again")
        raise CommandError(f"no step was recorded in {folder}; record again")
    unreadable = write_tables(pieces, folder, facts, found, state, progress=progress, ends=ends)
    bundle = Bundle(folder)
    _put_aside(unreadable, folder / UNREADABLE_FOLDER)
    remove_pieces(folder)
    return bundle


def _meta(
    pieces: Path,
    state: str,
    facts: Mapping[str, dict[str, Any]],
    lost: Iterable[str],
    rows: dict[str, int],
) -> Meta:
    recording = next(json_files(pieces, RECORDING_FILE), {})
    return Meta(
        schema=SCHEMA,
        spark_prof=own_version(),
        state=state,
        command=_command(recording),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        backend=_backend(recording, facts.values()),
        settings=_settings(recording),
        facts={name: _without_rows(fact) for name, fact in facts.items()},
        lost=tuple(dict.fromkeys(lost)),
        tables=rows,
    )


def _wants_markers(pieces: Path, facts: Iterable[dict[str, Any]]) -> bool:
    """Whether NVTX was asked for, and what watched the kernels can record it."""
    recording = next(json_files(pieces, RECORDING_FILE), {})
    wanted = bool(_settings(recording).get("nvtx"))
    return wanted and _backend(recording, facts) == "cupti"


def _command(recording: dict[str, Any]) -> tuple[str, ...]:
    """The command line; nothing where the file is damaged there."""
    found = recording.get("command")
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _settings(recording: dict[str, Any]) -> dict[str, Any]:
    """What was asked for; nothing where the file is damaged there."""
    found = recording.get("settings")
    return found if isinstance(found, dict) else {}


def _put_others_aside(pieces: Path, folder: Path) -> None:
    """Takes the files of other recordings out of the pieces; the log keeps that they were there."""
    if found := other_recordings(pieces):
        text = (
            f"{len(found)} files of another recording were in this folder, such as {found[0].name}"
        )
        append_log(pieces, "recording", time.time_ns(), f"{text}; they are in {folder.name}")
        _put_aside(found, folder)


def _put_aside(files: Iterable[Path], folder: Path) -> None:
    """Keeps what this spark-prof could not read, with secrets in texts hidden."""
    for path in files:
        folder.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            if path.suffix == ".json":
                # Latin-1 and no line ends changed: every other byte stays.
                with (
                    path.open(encoding="latin-1", newline="") as lines,
                    (folder / path.name).open("w", encoding="latin-1", newline="") as file,
                ):
                    file.writelines(map(redacted_text, lines))
                path.unlink()
            else:
                path.replace(folder / path.name)


def _backend(recording: dict[str, Any], facts: Iterable[dict[str, Any]]) -> str:
    """What watched the kernels: what a worker says, else what was asked for."""
    wanted = str(_settings(recording).get("backend", "torch"))
    return next((str(fact["backend"]) for fact in facts if "backend" in fact), wanted)


def _without_rows(fact: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fact.items() if key not in ("modules", "layers")}
