"""A plugin of vLLM's that makes each norm take a millisecond more: what a tune has to undo."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

SLOW_S = 0.001
_INFO = "slow_norm-1.0.dist-info"


def slow_down() -> None:
    """Wraps vLLM's own norm, in every process of the engine."""
    from vllm.model_executor.layers.layernorm import RMSNorm

    for name in ("forward_native", "forward_cpu", "forward_cuda"):
        original = getattr(RMSNorm, name, None)
        if original is not None:
            setattr(RMSNorm, name, _slower(original))


def _slower(original: Any) -> Any:
    def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        time.sleep(SLOW_S)
        return original(self, *arguments, **named)

    return forward


def installed(folder: Path) -> Path:
    """A folder for PYTHONPATH in which the plugin is an installed package."""
    info = folder / _INFO
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-norm\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nslow_norm = tests.tune.slow_norm:slow_down\n"
    )
    return folder
