"""What Streamlit's AppTest needs, and what it leaves behind."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def main_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """AppTest leaves its script as `__main__`, which multiprocessing runs in every new process."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
