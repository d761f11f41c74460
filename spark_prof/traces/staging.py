"""A folder that is there whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError

__all__ = ["staged"]


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A folder beside `out` to write into; it takes the name when all is written.

    Args:
        out: the folder that is wanted: one that is there must be empty.

    Raises:
        CommandError: it cannot be written. After any error nothing of it is left.
    """
    out = out.absolute()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(f".{out.name}.", out.parent) as staging:
            yield staging
            staging.chmod(0o755)
            if out.exists():
                out.rmdir()
            staging.rename(out)
    except OSError as error:
        raise CommandError(f"cannot write {out}: {error.strerror or error}") from error
