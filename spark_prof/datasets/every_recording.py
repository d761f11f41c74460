"""Puts a dataset together: one recording at a time, wherever the engine reads it."""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath

from spark_prof.analyzers.dataset import Dataset, DatasetRecording, ReadFailure, recording_of
from spark_prof.datasets.compared import opened
from spark_prof.datasets.engines import Executor, ItemOutcome, run_each
from spark_prof.errors import CommandError
from spark_prof.traces.formats import without_endings
from spark_prof.traces.resolve import Folder, Member, fetched, find_members, is_bundle


def import_each(
    source: str, out: Path, like: Path | None, engine: Executor
) -> list[tuple[str, ItemOutcome[tuple[str, ...]]]]:
    """Imports each recording below a folder or its URL into a folder of that name below `out`.

    With Ray every worker must be able to read the one and to write the other.

    Returns:
        The name of each recording with the lines of what it lacks, or the reason why it could not
        be imported.
    """
    members = [m for m in find_members(source) if not is_bundle(Path(m.source))]
    if not members:
        raise CommandError(f"{source} holds bundles only, which need no import")
    imports = [(member.source, out / _name(member.name), like) for member in members]
    if len({place for _, place, _ in imports}) < len(imports):
        raise CommandError(f"{source} holds two recordings of one name but for their ending")
    outcomes = run_each(_import, imports, engine)
    return [
        (place.relative_to(out).as_posix(), outcome)
        for (_, place, _), outcome in zip(imports, outcomes, strict=True)
    ]


def _import(task: tuple[str, Path, Path | None]) -> tuple[str, ...]:
    from spark_prof.importers.sources import import_files

    source, out, like = task
    with fetched(source) as local_source:
        return import_files([local_source.path], out, like).meta.lost


def _name(member: str) -> str:
    """The name of a recording without the endings of its file."""
    path = PurePosixPath(member)
    if path.is_absolute() or ".." in path.parts:
        raise CommandError(f"{member!r:.80} leads out of its folder")
    return str(path.with_name(without_endings(path.name)))


def summarize_dataset(folder: Folder, engine: Executor = Executor.LOCAL) -> Dataset:
    """All recordings of a folder; one that cannot be read is a failure with its reason.

    With Ray every worker must be able to read it.
    """
    members = folder.members
    outcomes = run_each(summarize_member, members, engine)
    summaries = [outcome.value for outcome in outcomes if outcome.value is not None]
    failures = tuple(
        ReadFailure(member.name, outcome.reason)
        for member, outcome in zip(members, outcomes, strict=True)
        if outcome.value is None
    )
    return Dataset(folder.name, tuple(sorted(summaries, key=_fastest)), failures)


def summarize_member(member: Member) -> DatasetRecording:
    """Reads one recording; what runs in the workers."""
    with opened(member.source) as bundle:
        return recording_of(bundle, member.name)


def _fastest(recording: DatasetRecording) -> tuple[float, str]:
    median = recording.first.decode_median_us
    return (math.inf if median is None else median, recording.name)
