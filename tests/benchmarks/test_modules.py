"""Every script and benchmark can be imported, so that a renamed name breaks a test, not a run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tests.rows import each_row

ROOT = Path(__file__).parents[2]
PEERS = {"cupti", "playwright", "torch", "triton", "vllm"}
"""What few machines have: a module that needs one of them at once is left out without it."""

MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for folder in ("benchmarks", "scripts")
    for path in (ROOT / folder).rglob("*.py")
)


@each_row("name", MODULES)
def test_it_can_be_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PEERS:
            raise
        pytest.skip(f"{error.name} is not installed")
    assert module.__doc__
