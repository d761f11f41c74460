"""The exceptions that this package raises on purpose, and how a line of theirs is made safe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOMEM

NO_MEMORY = "there is not enough memory"

_LONGEST = 1000


def one_line(text: str) -> str:
    """Makes a text one line that a terminal only shows, however it came from a foreign file.

    What is not printable, such as a line break or an escape, is written as in Python's strings;
    of a long text the middle is left out.
    """
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 2 :]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class SparkProfError(Exception):
    """Root of every exception that spark-prof raises on purpose."""


class CommandError(SparkProfError):
    """A message for the person at the command line, and the exit code that goes with it.

    The message is one line that states the fact and the way out.
    """

    def __init__(self, message: str, *, exit_code: int = 2) -> None:
        super().__init__(one_line(message))
        self.exit_code = exit_code


_NO_ROOM = (
    "failed to map segment",  # the loader of libraries
    "can't start new thread",  # Python
    "Failed to launch worker thread",  # Arrow
)


def lacks_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, also while a library was loaded."""
    if isinstance(error, OSError):
        return error.errno == ENOMEM
    return isinstance(error, MemoryError) or any(part in str(error) for part in _NO_ROOM)


@contextmanager
def os_errors(doing: str, way_out: str = "") -> Iterator[None]:
    """Makes an OSError or MemoryError a CommandError: what could not be done, why, the way out.

    with os_errors(f"cannot read {path}"): ...
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise CommandError(f"{doing}: {reason}{way_out and '; '}{way_out}") from error
    except MemoryError as error:
        raise CommandError(f"{doing}: {NO_MEMORY}{way_out and '; '}{way_out}") from error
