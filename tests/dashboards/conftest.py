"""Fixtures of the dashboards' tests.

Snapshots are complete rendered reports under `snapshots/`. After a wanted change write them anew,
read the difference and commit it:

    SPARK_PROF_UPDATE_SNAPSHOTS=1 python -m pytest tests/dashboards
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.read_once import few_recordings_open, recordings_read_once

__all__ = ["few_recordings_open", "recordings_read_once"]

_SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.fixture
def snapshot() -> Callable[[str, str], None]:
    """Compares a rendered text with the snapshot of that file name."""

    def compare(name: str, rendered: str) -> None:
        path = _SNAPSHOTS / name
        if os.environ.get("SPARK_PROF_UPDATE_SNAPSHOTS"):
            path.write_text(rendered, encoding="utf-8")
        assert rendered == path.read_text(encoding="utf-8")

    return compare
