"""What spark-prof's optional parts need, by names that pip finds wherever spark-prof came from.

The rows are those of `pyproject.toml`: a test compares them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "counters": ("cupti-python>=13.4,<14",),
    "explore": (
        "starlette>=0.46,<2", "streamlit>=1.57,<1.68", "uvicorn>=0.30,<1", "viztracer>=1.1,<2",
    ),
    "host": ("py-spy>=0.4,<1",),
    "kernels": ("cuda-bindings>=13.0", "nvidia-cuda-nvrtc>=13.0", "torch>=2.11"),
    "mcp": ("mcp>=2.3,<3",),
    "ncu": ("ncu-report>=2026.3",),
    "ray": ("ray>=2.40",),
    "sass": ("nvidia-cuda-cuobjdump>=13.0", "nvidia-cuda-nvdisasm>=13.0"),
}  # fmt: skip


def install_command(extra: str) -> str:
    """The command that installs what an extra needs, also beside a spark-prof that pip has not.

    >>> install_command("mcp")
    "pip install 'mcp>=2.3,<3'"
    """
    return f"pip install {shlex.join(EXTRAS[extra])}"
