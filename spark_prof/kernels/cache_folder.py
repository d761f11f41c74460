"""Where what can be made again is kept: compiled kernels, and what was measured here."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path | None:
    """The folder of the package for this user, by the XDG base directory specification.

    None where neither XDG_CACHE_HOME nor a home folder is known, as in some containers.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given) / "spark-prof"
    try:
        return Path.home() / ".cache" / "spark-prof"
    except RuntimeError:
        return None
