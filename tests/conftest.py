"""What runs beside what, where several processes share the tests (`pytest -n 2`)."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

_ALONE = ("tests/engine/", "tests/browser/")
"""Folders that one process at a time has to itself while others have work, the longest first: two
engines, or two browsers and their servers, would wait for each other."""

_LONG = (
    "tests/kernels/test_checks.py", "tests/kernels/test_machine_code.py", "tests/test_ending.py",
    "tests/fuzz/", "tests/world/", "tests/profiler/test_record.py",
    "tests/profiler/test_terminal.py",
)  # fmt: skip
"""What takes longest of the others: last of all, it would leave one of two processes idle."""

# Every command line makes all commands anew, which takes longer than most tests of one.
typer.main.get_command = cache(typer.main.get_command)


@pytest.fixture(autouse=True)
def _own_main() -> Iterator[None]:
    """Streamlit leaves its script as the main module, which processes started later would run."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


@pytest.fixture(autouse=True)
def _no_stand_in_stays() -> Iterator[None]:
    """A stand-in for torch or vLLM that a test leaves behind fails another test much later."""
    yield
    left = [name for name in ("torch", "vllm") if name in sys.modules]
    assert all(isinstance(sys.modules[name], ModuleType) for name in left), left


def pytest_configure() -> None:
    """Lets tests interrupt what they start; a job in a shell's background ignores Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # a quarter of what collecting tests takes; nothing collected is garbage


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is slow; the folders that take longest begin."""
    for item in items:
        real = item.get_closest_marker("engine") or item.get_closest_marker("browser")
        if real and not item.get_closest_marker("smoke"):
            item.add_marker(pytest.mark.slow)
    first = (*_ALONE, *_LONG)
    items.sort(key=lambda item: [not item.nodeid.startswith(folder) for folder in first])


def pytest_collection_finish() -> None:
    gc.freeze()  # what was imported and collected stays: no collection needs to look at it
    gc.set_threshold(20_000, 20)
    gc.enable()


def _kind(file: str) -> str:
    return next((folder for folder in _ALONE if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Gives a process a file as a whole, of a kind that no other process has if there is one."""
    from xdist.scheduler import LoadFileScheduling

    class ByKind(LoadFileScheduling):
        def _assign_work_unit(self, node: Any) -> None:
            busy = {
                _kind(file)
                for other, files in self.assigned_work.items()
                for file, done in files.items()
                if other is not node and not all(done.values())
            }
            free = next((file for file in self.workqueue if _kind(file) not in busy), None)
            if free is not None:
                self.workqueue.move_to_end(free, last=False)
            super()._assign_work_unit(node)

    return ByKind(config, log)
