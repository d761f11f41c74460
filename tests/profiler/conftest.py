"""A program that stands in for vLLM: the real recording around a worker made by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Script = Callable[..., list[str]]

FAKE_VLLM = """
import sys, time
sys.path[:0] = [{tests!r}]
from types import SimpleNamespace
sys.modules["vllm"] = SimpleNamespace(__version__="0.32.0")
import fakes
sys.modules["torch"] = fakes.torch()
from spark_prof.profiler.control import Control
from spark_prof.profiler.settings import Settings

worker = fakes.Worker()
Control().add_worker(worker, Settings.from_environment())
try:
    for position in range({steps}):
        fakes.run(worker, fakes.decode(position))
    {then}
except KeyboardInterrupt:
    pass
worker.shutdown()
assert "pandas" not in sys.modules, "vLLM's processes need no pandas"
sys.exit({code})
"""


def until(path: Path) -> str:
    """What a command does until there is a file, for a minute at most."""
    exists = f"__import__('os').path.exists({str(path)!r})"
    return f"[time.sleep(0.02) for _ in range(3000) if not {exists}]"


@pytest.fixture
def script(tmp_path: Path) -> Script:
    def writer(steps: int = 5, then: str = "pass", code: int = 0) -> list[str]:
        path = tmp_path / "fake_vllm.py"
        tests = str(Path(__file__).parent)
        path.write_text(FAKE_VLLM.format(tests=tests, steps=steps, then=then, code=code))
        return [sys.executable, str(path)]

    return writer
