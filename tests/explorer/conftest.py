"""What Streamlit's AppTest needs, and what it leaves behind."""

from __future__ import annotations

import sys

import pytest

from spark_prof.explorer import widgets


@pytest.fixture(autouse=True)
def main_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """AppTest leaves its script as `__main__`, which multiprocessing runs in every new process."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


@pytest.fixture(autouse=True)
def no_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    """No browser needs time to draw what these tests look at."""
    monkeypatch.setattr(widgets, "FOLD_SECONDS", 0.0)
