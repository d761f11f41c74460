"""Opens recordings by name: each alone, or as one side of a comparison."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError
from spark_prof.traces.assemble import open_bundle
from spark_prof.traces.bundle import META_FILE, Bundle
from spark_prof.traces.compressed import is_zip_with, unpacked
from spark_prof.traces.measured import MeasuredMachine, measured_for
from spark_prof.traces.remote import is_url
from spark_prof.traces.resolve import (
    AbResult,
    BundleFolder,
    Folder,
    RecordingInProgress,
    Source,
    command_of_result,
    fetched,
    resolve,
)

if TYPE_CHECKING:
    from spark_prof.analyzers.comparing.comparison import ComparedRecording


def ceilings_for(
    bundle: Bundle, rank: int | None, file: Path | None = None
) -> MeasuredMachine | None:
    """What `spark-prof doctor --measure` kept of the GPU of a rank; None where it kept nothing.

    The rank is the lowest one if None; the file the latest one on this machine if nobody named one.
    """
    from spark_prof.analyzers.recorded_run import device_of

    if rank is None:
        rank = bundle.ranks[0] if bundle.ranks else 0
    return measured_for(device_of(bundle.facts(rank))[0], file)


def refuse_result(source: Source) -> None:
    """Refuses what is a result of a command such as `ab`, with the command that shows it."""
    if isinstance(source, AbResult):
        kind = command_of_result(source.file)
        raise CommandError(
            f"{source.name} is a result of spark-prof {kind} and no recording; ask: spark-prof "
            f"report {source.name}"
        )


@contextmanager
def opened(source: str | Source) -> Iterator[Bundle]:
    """The bundle, or the trace as a bundle."""
    with ExitStack() as stack:
        local_source = stack.enter_context(fetched(source))
        refuse_result(local_source)
        if isinstance(local_source, BundleFolder | RecordingInProgress):
            yield open_bundle(local_source.path)
            return
        if is_zip_with(local_source.path, META_FILE):
            folder = stack.enter_context(temporary_folder())
            unpacked(local_source.path, folder)
            bundle = Bundle(folder)
        else:
            from spark_prof.importers.sources import open_source

            bundle = stack.enter_context(open_source(local_source.path))
        bundle.named = source if isinstance(source, str) else source.name
        yield bundle


def read_side(source: str | Source, rank: int | None = None) -> ComparedRecording:
    """One side of a comparison: a bundle, a trace, or the URL of one."""
    from spark_prof.analyzers.comparing.comparison import ComparedRecording
    from spark_prof.analyzers.summary import summary_of
    from spark_prof.analyzers.views.layer_cells import columns_of
    from spark_prof.analyzers.views.waterfall import whole

    with opened(source) as bundle:
        rank = rank if rank is not None or not bundle.ranks else bundle.ranks[0]
        summary = summary_of(bundle, rank, measured=ceilings_for(bundle, rank))
        facts, report = bundle.facts(rank or 0), whole(summary.report)
    kernels = summary.kernels
    if report.steps.left_out:
        # Those of steps whose clock was wrong may lie within other steps.
        kernels = kernels[kernels["step"].isin(summary.steps["step"]) | (kernels["step"] < 0)]
    return ComparedRecording(
        source=source if isinstance(source, str) else source.name,
        report=report,
        kernels=columns_of(kernels, summary.steps["step"].to_numpy()),
        steps=summary.steps.reset_index(drop=True),
        facts=facts,
    )


def recordings_of(named: str) -> list[Source]:
    """The recordings that a person named as one side: one, several with commas, or a folder.

    A path that exists is one name, whatever commas it has, and so is a URL up to a comma with
    another URL or an existing path behind it. A folder of bundles is all of them.
    """
    names = _names(named)
    if not all(names):
        raise CommandError(
            f"{named!r} has no recording before or after a comma; write several as A1,A2,A3"
        )
    members = [member for name in names for member in _members(name)]
    places = [
        recording.name if is_url(recording.name) else os.path.realpath(recording.name)
        for recording in members
    ]
    for place, recording in zip(places, members, strict=True):
        if places.count(place) > 1:
            raise CommandError(
                f"{recording.name} stands twice on one side; give recordings of different "
                "engine starts"
            )
    return members


def _names(named: str) -> list[str]:
    """Splits at commas, except within the name of what exists and within a URL."""
    parts = named.split(",")
    names = []
    while parts:
        whole = 1
        if is_url(parts[0]):
            while whole < len(parts) and not (is_url(parts[whole]) or _longest(parts[whole:])):
                whole += 1
        else:
            whole = _longest(parts) or 1
        names.append(",".join(parts[:whole]))
        parts = parts[whole:]
    return names


def _longest(parts: Sequence[str]) -> int:
    """Of how many of the parts, from the first on, the longest existing path is made; 0 of none."""
    lengths = range(len(parts), 0, -1)
    return next((end for end in lengths if os.path.lexists(",".join(parts[:end]))), 0)


def _members(name: str) -> list[Source]:
    """The bundles of a folder of several; anything else is itself."""
    source = resolve(name)
    if isinstance(source, AbResult):
        raise CommandError(
            f"{name} is a result of spark-prof ab, tune or speculate, which has compared already; "
            f"spark-prof report {shlex.quote(name)} shows it"
        )
    if not isinstance(source, Folder) or is_url(name):
        return [source]
    members = [resolve(member.source) for member in source.members]
    bundles = all(isinstance(member, BundleFolder | RecordingInProgress) for member in members)
    return members if bundles else [source]


def facts_of(source: str, rank: int) -> Mapping[str, Any]:
    """What the recorder of a bundle noted; empty for a trace, which would be imported for it."""
    with fetched(source) as local_source:
        if not isinstance(local_source, BundleFolder | RecordingInProgress):
            return {}
        return open_bundle(local_source.path).facts(rank)
