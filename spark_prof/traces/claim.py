"""A folder into which one spark-prof writes at a time.

The lock is the kernel's, on the open folder itself: it is taken at once or not at all, needs no
file, and ends with the process that holds it. On a network file system it holds on this host only:
there a recording is kept apart by making its folder of pieces, a staged folder by its rename.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError, os_errors

_TRIES = 100


class Claim:
    """An empty folder that nobody else writes into, until `release`. A context manager.

    With `again` it may hold what an earlier run of the same has left.
    """

    def __init__(self, folder: Path, *, again: bool = False) -> None:
        self.folder = folder.absolute()
        self._created = False
        self._endings: list[Callable[[], None]] = []
        try:
            self._descriptor = self._locked()
            if not again and any(self.folder.iterdir()):
                self.release()
                raise _occupied(folder)
        except OSError as error:
            if isinstance(error, FileExistsError | NotADirectoryError) and self.folder.exists():
                raise _occupied(folder) from error
            raise CommandError(
                f"cannot write to {folder}: {error.strerror or error}; choose another --out"
            ) from error

    def intact(self) -> bool:
        """Whether the folder has not been removed, moved or replaced."""
        try:
            return os.path.samestat(os.stat(self.folder), os.fstat(self._descriptor))
        except OSError:
            return False

    def when_released(self, ending: Callable[[], None]) -> None:
        """Has something called that lasts as long as the claim."""
        self._endings.append(ending)

    def release(self) -> None:
        """Lets others in. A folder that this made and that is still empty is removed."""
        if self._descriptor < 0:
            return
        while self._endings:
            self._endings.pop()()
        if self._created and self.intact():
            with suppress(OSError):
                self.folder.rmdir()
        os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            os.close(self._descriptor)

    def _locked(self) -> int:
        for _ in range(_TRIES):
            with suppress(FileExistsError):
                self.folder.mkdir(parents=True)
                self._created = True
            try:
                descriptor = locked_folder(self.folder)
            except FileNotFoundError:
                continue  # another one has just given it up, and removed it
            if descriptor is None:
                raise CommandError(
                    f"another spark-prof writes into {self.folder}; wait for it to end, or choose "
                    "another --out"
                )
            with suppress(OSError):
                if os.path.samestat(os.stat(self.folder), os.fstat(descriptor)):
                    return descriptor
            os.close(descriptor)
        raise CommandError(f"{self.folder} is removed over and over again; choose another --out")


def locked_folder(folder: Path) -> int | None:
    """Opens and locks a folder; None where another process has. Closing it unlocks it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        pass  # a file system without locks
    return descriptor


def holds(folder: Path) -> bool | None:
    """Whether a process of this host holds the folder's lock; None where that cannot be told.

    Raises:
        FileNotFoundError: the folder is gone.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    else:
        return False
    finally:
        os.close(descriptor)


def is_claimed(folder: Path) -> bool:
    """Whether a process of this host writes into the folder."""
    with suppress(FileNotFoundError):
        return holds(folder) is True
    return False


def _occupied(folder: Path) -> CommandError:
    return CommandError(f"{folder} exists already; choose another --out or remove it")


@contextmanager
def staged(out: Path | Claim) -> Iterator[Path]:
    """A folder beside `out` to write into; it takes the name when all is written."""
    with Claim(out) if isinstance(out, Path) else out as claim:
        folder = claim.folder
        with (
            os_errors(f"cannot write {folder}"),
            temporary_folder(f".{folder.name}.", folder.parent) as staging,
        ):
            yield staging
            staging.chmod(0o755)
            staging.rename(folder)  # over the empty one, at once
