"""A private folder of the user: which processes can be recorded, and what was compiled."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def registry_folder() -> Path:
    """Where this user's vLLM processes say that they can be recorded; for this user alone.

    Raises:
        PermissionError: the folder belongs to somebody else or is open to others.
    """
    folder = Path(tempfile.gettempdir()) / f"spark-prof-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise PermissionError(f"{folder} is not this user's private folder")
    return folder
