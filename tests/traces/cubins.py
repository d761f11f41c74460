"""The cubins in tests/data/cubins, and folders of them as a recording leaves them behind."""

from __future__ import annotations

from pathlib import Path

__all__ = ["ADD", "CUBINS", "SM_90", "SM_121"]

_FOLDER = Path(__file__).parents[1] / "data" / "cubins"
SM_90, SM_121 = _FOLDER / "scale-sm_90.cubin", _FOLDER / "scale-sm_121.cubin"
CUBINS = (SM_90, SM_121)
ADD = "_Z3addIiEvPT_S0_"
"""Symbol of the template kernel in both."""
