"""What tests of scripts share."""

from __future__ import annotations

import pytest

from tests.scripts.vllm_wheels import NAMES


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark-prof reaches into no more than the small wheels have."""
    for module in ("facts", "check", "__main__"):
        monkeypatch.setattr(f"scripts.vllm_sources.{module}.names_looked_for", lambda: NAMES)
