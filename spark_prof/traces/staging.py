"""A folder that is there whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError
from spark_prof.traces.claim import Claim


@contextmanager
def staged(out: Path | Claim) -> Iterator[Path]:
    """A folder beside `out` to write into; it takes the name when all is written.

    Args:
        out: the folder that is wanted, claimed by the caller or not: one that is there is empty.

    Raises:
        CommandError: it cannot be written. After any error nothing of it is left.
    """
    with Claim(out) if isinstance(out, Path) else out as claim:
        folder = claim.folder
        try:
            with temporary_folder(f".{folder.name}.", folder.parent) as staging:
                yield staging
                staging.chmod(0o755)
                staging.rename(folder)  # over the empty one, at once
        except OSError as error:
            raise CommandError(f"cannot write {folder}: {error.strerror or error}") from error
