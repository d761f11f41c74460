"""Opens whatever a person names: a bundle, somebody else's trace, or the URL of either."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from spark_prof.analyzers.recorded_run import device_of
from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError
from spark_prof.traces.assemble import open_bundle
from spark_prof.traces.bundle import META_FILE, Bundle
from spark_prof.traces.compressed import is_zip_with, unpacked
from spark_prof.traces.measured import MeasuredMachine, measured_for
from spark_prof.traces.resolve import (
    AbResult,
    BundleFolder,
    RecordingInProgress,
    Source,
    command_of_result,
    fetched,
)


def ceilings_for(
    bundle: Bundle, rank: int | None, file: Path | None = None
) -> MeasuredMachine | None:
    """What `spark-prof doctor --measure` kept of the GPU of a rank; None where it kept nothing.

    The rank is the lowest one if None; the file the latest one on this machine if nobody named one.
    """
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
