"""What a command may do to the terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def takes_color(out: Path | None = None) -> bool:
    """Whether what is shown may be coloured: on a terminal with colours whose user wants them.

    NO_COLOR means none if it is not empty, as https://no-color.org says.

    Args:
        out: a file that is written instead.
    """
    if out is not None or not sys.stdout.isatty():
        return False
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
