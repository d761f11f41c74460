"""What runs beside what, where several processes share the tests (`pytest -n 2`)."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

_ALONE = ("tests/engine/", "tests/browser/")
"""Folders whose tests one process has to itself, the longest first: two engines, or two browsers
and their servers, would wait for each other."""

# Every command line makes all commands anew, which takes longer than most tests of one.
typer.main.get_command = cache(typer.main.get_command)


@pytest.fixture(autouse=True)
def _own_main() -> Iterator[None]:
    """Streamlit leaves its script as the main module, which processes started later would run."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


def pytest_configure() -> None:
    """Lets tests interrupt what they start; a job in a shell's background ignores Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is slow; the folders that take longest begin."""
    for item in items:
        real = item.get_closest_marker("engine") or item.get_closest_marker("browser")
        if real and not item.get_closest_marker("smoke"):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: [not item.nodeid.startswith(folder) for folder in _ALONE])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Gives a process those folders, and every other file, as a whole."""
    from xdist.scheduler import LoadFileScheduling

    class ByFolder(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            folder = next((folder for folder in _ALONE if nodeid.startswith(folder)), None)
            return folder or str(super()._split_scope(nodeid))

    return ByFolder(config, log)
