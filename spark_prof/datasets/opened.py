"""Opens whatever a person names: a bundle, somebody else's trace, or the URL of either."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_prof.ending import temporary_folder
from spark_prof.traces.assemble import open_bundle
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.members import is_bundle
from spark_prof.traces.remote import is_url, local_copy


@contextmanager
def local_path(source: str) -> Iterator[Path]:
    """The path of a source; what a URL names is copied and removed again.

    Raises:
        CommandError: the URL cannot be read.
    """
    if not is_url(source):
        yield Path(source)
        return
    with temporary_folder() as folder:
        yield local_copy(source, folder)


@contextmanager
def opened(source: str) -> Iterator[Bundle]:
    """The bundle, or the trace as a bundle.

    Raises:
        CommandError: it is neither, or damaged.
    """
    with local_path(source) as path:
        if is_bundle(path):
            yield open_bundle(path)
            return
        from spark_prof.importers.sources import open_source

        with open_source(path) as bundle:
            yield bundle
