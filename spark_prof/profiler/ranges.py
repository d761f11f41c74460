"""Marks the calls of a live model's modules: when each was entered and left, and an NVTX range.

A module is marked by replacing its `forward` on the instance, which costs less than PyTorch's
hooks, sees exceptions, and is undone by taking the replacement away.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_prof.profiler.fence import Fence
from spark_prof.traces.chunks import EVENT_DTYPE

_FAULT = "ranges"


@dataclass(frozen=True)
class Target:
    """One callable to mark: the attribute `attribute` of `owner`."""

    owner: Any
    attribute: str
    path: str
    may_be_traced: bool = False  # by torch.compile: while it does, the marker steps aside


class CallMarker:
    """Keeps a log of entered and left targets for one thread, and undoes its marks on request.

    The log holds pairs (time in ns, code): code m + 1 for entering target m, -(m + 1) for
    leaving it, 0 for leaving everything. Calls on other threads are not logged. With nvtx each call
    sets an NVTX range too, where the nvtx package is installed.
    """

    def __init__(self, fence: Fence, *, nvtx: bool = True) -> None:
        self._fence = fence
        self._log = array("q")
        self._recording = False
        self._thread = 0
        self._undo: list[Callable[[], None]] = []
        self._nvtx = _nvtx_domain() if nvtx else None

    def start(self) -> None:
        """Begins to log the calls of the current thread."""
        self._thread = threading.get_ident()
        self._recording = True

    def stop(self) -> None:
        """Stops to log; the marks stay and cost next to nothing."""
        self._recording = False

    def take_rows(self) -> npt.NDArray[np.void]:
        """Hands over the log as rows of pieces.EVENT_DTYPE and begins a new one."""
        events, self._log = self._log, array("q")
        log = np.asarray(events, dtype=np.int64)
        rows = np.empty(len(log) // 2, EVENT_DTYPE)
        rows["time_ns"], rows["code"] = log[0 : 2 * len(rows) : 2], log[1::2]
        return rows

    def mark(self, targets: Sequence[Target], first: int = 0) -> None:
        """Marks the targets, numbered in order from `first`."""
        for number, target in enumerate(targets, first):
            self._mark(number, target)

    @property
    def events(self) -> int:
        """How many events are in the log."""
        return len(self._log) // 2

    def mark_item(self, number: int, path: str, holder: MutableSequence[Any], index: int) -> None:
        """Marks a callable in a list as one more call of target `number`."""
        original = holder[index]
        marked = self._marked(number, Target(None, "", path), original)
        holder[index] = marked

        def undo() -> None:
            if index < len(holder) and holder[index] is marked:
                holder[index] = original

        self._undo.append(undo)

    def add(self, code: int, now: int) -> None:
        """Logs one event that is no call of a target, at that time."""
        if self._recording:
            self._log.append(now)
            self._log.append(code)

    def remove(self) -> None:
        """Takes every mark away."""
        while self._undo:
            self._undo.pop()()

    def _mark(self, number: int, target: Target) -> None:
        marked = self._marked(number, target, getattr(target.owner, target.attribute))
        self._undo.append(replace_attribute(target.owner, target.attribute, marked))

    def _marked(
        self, number: int, target: Target, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        enter, leave = number + 1, -(number + 1)
        now, current = time.time_ns, threading.get_ident
        begin, finish = self._nvtx_calls(target.path)
        faulty = self._fence.wanted_fault(_FAULT)

        def marked(*arguments: Any, **named: Any) -> Any:
            if not self._recording or current() != self._thread:
                return original(*arguments, **named)
            try:
                if faulty:
                    raise RuntimeError("a fault that the settings asked for")
                log = self._log
                begin()
                log.append(now())
                log.append(enter)
            except Exception as error:
                self._fail(error)
                return original(*arguments, **named)
            try:
                return original(*arguments, **named)
            finally:
                log.append(now())
                log.append(leave)
                finish()

        if not target.may_be_traced:
            return marked

        from torch.compiler import is_compiling

        def marked_unless_traced(*arguments: Any, **named: Any) -> Any:
            if is_compiling():
                return original(*arguments, **named)
            return marked(*arguments, **named)

        return marked_unless_traced

    def _nvtx_calls(self, path: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
        domain = self._nvtx
        if domain is None:
            return _nothing, _nothing
        attributes = domain.get_event_attributes(message=path)
        push, pop = domain.push_range, domain.pop_range
        return (lambda: push(attributes)), pop

    def _fail(self, error: Exception) -> None:
        self._recording = False
        self._fence.disable(_FAULT, error)


def replace_attribute(owner: Any, attribute: str, replacement: Any) -> Callable[[], None]:
    """Puts the replacement on the object itself; the result takes it away again.

    Where somebody else has put another one on top since, that one stays.
    """
    before = vars(owner).get(attribute)
    # object's own method: torch.nn.Module would look at the value first.
    object.__setattr__(owner, attribute, replacement)

    def undo() -> None:
        if vars(owner).get(attribute) is not replacement:
            return
        if before is None:
            object.__delattr__(owner, attribute)
        else:
            object.__setattr__(owner, attribute, before)

    return undo


def wrap_method(owner: Any, name: str, around: Callable[..., Any]) -> Callable[[], None]:
    """Has `around(original, *arguments)` called in place of a method of an object, if it has it.

    The result takes that away again, as that of `replace_attribute`.
    """
    original = getattr(owner, name, None)
    if original is None:
        return _nothing
    return replace_attribute(owner, name, partial(around, original))


def _nothing() -> None:
    return None


def _nvtx_domain() -> Any:
    """The NVTX domain of spark-prof, None where the nvtx package is absent."""
    try:
        import nvtx
    except ImportError:
        return None
    return nvtx.get_domain("spark_prof")
