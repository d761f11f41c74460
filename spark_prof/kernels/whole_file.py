"""Writes a file whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from spark_prof.ending import removed_afterwards
from spark_prof.kernels.errors import KernelError


def write_whole(path: Path, content: bytes) -> None:
    """Puts a file in place of what is there, if anything; readers see the one or the other.

    Raises:
        KernelError: it cannot be written; nothing is left of it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    try:
        with removed_afterwards(temporary):
            temporary.write_bytes(content)
            os.replace(temporary, path)
    except OSError as error:
        raise KernelError(f"cannot write {path}: {error.strerror or error}") from error
