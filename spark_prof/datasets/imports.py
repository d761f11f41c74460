"""Imports every recording of a folder into a bundle of its own, wherever the engine runs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from spark_prof.datasets.engines import Engine, Outcome, run_each
from spark_prof.datasets.opened import local_path
from spark_prof.errors import CommandError
from spark_prof.traces.members import Member, find_members, is_bundle

_ENDINGS = (
    ".gz", ".zst", ".json", ".trace", ".pt", ".sqlite", ".nsys-rep", ".hatchet", ".chrome_trace",
    ".csv", ".zip", ".tar", ".tgz",
)  # fmt: skip


@dataclass(frozen=True)
class _Wanted:
    """One import; it travels to the worker that does it."""

    member: Member
    out: Path
    like: Path | None


def import_each(
    source: str, out: Path, like: Path | None, engine: Engine
) -> list[tuple[str, Outcome[tuple[str, ...]]]]:
    """Imports each recording below the source into a folder of that name below `out`.

    Args:
        source: a folder or its URL; with Ray every worker must be able to read it.
        out: the folder of the bundles; with Ray every worker must be able to write it.
        like: a bundle or trace of the same model whose layers are known.
        engine: where the recordings are imported.

    Returns:
        The name of each recording with the lines of what it lacks, or the reason why it could not
        be imported.

    Raises:
        CommandError: the source holds no trace, two would have one name, or the engine cannot be
            used.
    """
    members = [m for m in find_members(source) if not is_bundle(Path(m.source))]
    if not members:
        raise CommandError(f"{source} holds bundles only, which need no import")
    wanted = [_Wanted(member, out / _name(member.name), like) for member in members]
    if len({item.out for item in wanted}) < len(wanted):
        raise CommandError(f"{source} holds two recordings of one name but for their ending")
    outcomes = run_each(_import, wanted, engine)
    return [
        (item.out.relative_to(out).as_posix(), o) for item, o in zip(wanted, outcomes, strict=True)
    ]


def _import(wanted: _Wanted) -> tuple[str, ...]:
    """Imports one recording; what runs in the workers."""
    from spark_prof.importers.sources import import_files

    with local_path(wanted.member.source) as path:
        return import_files([path], wanted.out, wanted.like).meta.lost


def _name(member: str) -> str:
    """The name of a recording without the endings of its file."""
    path = PurePosixPath(member)
    if path.is_absolute() or ".." in path.parts:
        raise CommandError(f"{member!r:.80} leads out of its folder")
    name = path.name
    while name.lower().endswith(_ENDINGS):
        name = name[: name.rindex(".")]
    return str(path.with_name(name or path.name))
