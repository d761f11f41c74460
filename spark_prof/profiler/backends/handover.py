"""Gives way to torch's profiler: a process has one place for a profiler of its GPU.

torch's profiler (Kineto) asks for CUPTI's one subscription when it first starts. Where another
holds it then, Kineto records no kernel for as long as the process lives. And two of torch's own
profilers in one thread end in an exception of the second. So whoever records here is told before
torch's profiler starts, and ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_listeners: list[Callable[[], None]] = []
_lock = threading.Lock()
_mine = threading.local()


@contextmanager
def our_profiler() -> Iterator[None]:
    """While it is entered this thread may start torch's profiler without telling anybody."""
    before, _mine.entered = getattr(_mine, "entered", False), True
    try:
        yield
    finally:
        _mine.entered = before


def torch_profiler_runs() -> bool:
    """Whether torch's profiler is running in this thread, started by somebody else."""
    try:
        from torch._C import _autograd

        return bool(_autograd._profiler_enabled())
    except (ImportError, AttributeError):  # no torch, or one that does not tell
        return False


def before_torch_profiler(give_way: Callable[[], None]) -> Callable[[], None]:
    """Has `give_way` called before torch's profiler starts, by whomever; the result undoes that.

    It is called in the thread that starts the profiler, and must not raise.
    """
    try:
        from torch.autograd.profiler import profile
    except ImportError:
        return lambda: None
    with _lock:
        if not _listeners:
            _watch(profile)
        _listeners.append(give_way)

    def undo() -> None:
        with _lock:
            if give_way in _listeners:
                _listeners.remove(give_way)
            if not _listeners and hasattr(profile._prepare_trace, "__wrapped__"):
                profile._prepare_trace = profile._prepare_trace.__wrapped__

    return undo


def _watch(profile: Any) -> None:
    original = profile._prepare_trace

    def prepare_trace(this: Any, *arguments: Any, **named: Any) -> Any:
        if not getattr(_mine, "entered", False):
            waiting = _listeners.copy()  # who gives way takes itself off the list
            for give_way in waiting:
                give_way()
        return original(this, *arguments, **named)

    prepare_trace.__wrapped__ = original  # type: ignore[attr-defined]
    profile._prepare_trace = prepare_trace
