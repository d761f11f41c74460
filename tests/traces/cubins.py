"""The cubins in tests/data/cubins, and folders of them as a recording leaves them behind."""

from __future__ import annotations

import lzma
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "data" / "cubins"
SM_90, SM_121 = _FOLDER / "scale-sm_90.cubin", _FOLDER / "scale-sm_121.cubin"
CUBINS = (SM_90, SM_121)
ADD = "_Z3addIiEvPT_S0_"
"""Symbol of the template kernel in both."""

ARCHITECTURES = (
    "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_103f", "sm_120", "sm_120a", "sm_120f", "sm_121",
    "sm_121a", "sm_121f",
)  # fmt: skip
"""Of the cubins that scripts/make_cubins.py assembled, one PTX instruction a kernel."""


def probes(architecture: str, folder: Path) -> Path:
    """The cubin of that architecture, unpacked into the folder."""
    return _unpacked(_FOLDER / f"probes-{architecture}.cubin.xz", folder)


def library(folder: Path) -> Path:
    """A shared library with cubins for sm_80, sm_90a and sm_120f, and PTX for sm_80."""
    return _unpacked(_FOLDER / "library.so.xz", folder)


def _unpacked(packed: Path, folder: Path) -> Path:
    path = folder / packed.stem
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    return path
