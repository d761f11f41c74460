"""CUDA graphs for every side: captured one side after the other, replayed by the active one.

vLLM keeps its graphs in dictionaries by batch size, and replays what it finds there. They become
dictionaries that hold one content for each side, so that switching a side is all it takes.
"""

from __future__ import annotations

import importlib
import sys
import time
import weakref
from collections import Counter, UserDict
from collections.abc import Callable
from typing import Any

from spark_prof.swaps.swap_settings import SIDES

HOLDERS = (
    ("vllm.compilation.cuda_graph", "CUDAGraphWrapper", "concrete_cudagraph_entries"),
    ("vllm.compilation.breakable_cudagraph", "BreakableCUDAGraphWrapper", "entries"),
    ("vllm.v1.worker.gpu.cudagraph_utils", "CudaGraphManager", "graphs"),
)
"""Module, class and attribute of everything in vLLM 0.24 to 0.33 that keeps graphs by size."""

_WORKSPACE = "vllm.v1.worker.workspace"
"""Of what kernels keep between steps; vLLM locks it at the end of each capture."""

_MARK = "_spark_prof_by_side"

_ALL: weakref.WeakSet[BySide] = weakref.WeakSet()
_SCRATCH: list[Any] = []  # which earlier graphs write to; a later capture may put another in place


class BySide(UserDict[Any, Any]):
    """A dictionary with a content for each side, of which the active one is seen."""

    __hash__ = object.__hash__  # which a mapping has not; each is itself, whatever it holds

    def __init__(self) -> None:
        self._contents: dict[str, dict[Any, Any]] = {}
        _ALL.add(self)

    @property
    def data(self) -> dict[Any, Any]:  # type: ignore[override]
        """The content of the active side, by which a `UserDict` does all that it does."""
        return self._contents.setdefault(SIDES.active, {})

    def clear(self) -> None:
        """Forgets the graphs of all sides: vLLM does so when their memory is about to go."""
        self._contents.clear()

    def counts(self) -> dict[str, int]:
        """Graphs of each side; vLLM makes an entry before there is a graph in it."""
        return {
            side: sum(getattr(entry, "cudagraph", entry) is not None for entry in content.values())
            for side, content in self._contents.items()
        }


def captured_graphs() -> dict[str, int]:
    """CUDA graphs of this process, by side."""
    total: Counter[str] = Counter()
    for graphs in list(_ALL):
        total.update(graphs.counts())
    return dict(total)


def keep_graphs_by_side() -> list[tuple[str, str]]:
    """Makes what holds graphs hold them by side; returns module and class that vLLM lacks."""
    missing = []
    for module_name, class_name, attribute in HOLDERS:
        try:
            owner = getattr(importlib.import_module(module_name), class_name)
        except (ImportError, AttributeError):
            missing.append((module_name, class_name))
            continue
        if not hasattr(owner.__init__, _MARK):
            owner.__init__ = _constructor(owner.__init__, attribute)
    return missing


def _constructor(original: Callable[..., None], attribute: str) -> Callable[..., None]:
    def constructor(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        if isinstance(self.__dict__.get(attribute), dict):
            setattr(self, attribute, BySide())

    setattr(constructor, _MARK, True)
    return constructor


def capture_every_side(
    seconds: dict[str, float],  # is given what each side's captures took
    say: Callable[[str], None],  # is told which side could not be captured, before that is raised
    capture: Callable[..., Any],
    *arguments: Any,
    **named: Any,
) -> Any:
    """Calls the model runner's `capture_model` once for each side; the sum of what it returns."""
    first = SIDES.names[0]
    total: Any = None
    if not any(captured_graphs().values()):  # of an earlier call vLLM has forgotten its graphs
        _SCRATCH.clear()
    for side in SIDES.names:
        SIDES.switch(side)
        open_workspace()
        begin = time.perf_counter()
        try:
            size = capture(*arguments, **named)
        except Exception as error:
            say(f"side {side}: its CUDA graphs cannot be captured: {error}")
            raise
        finally:
            seconds[side] = time.perf_counter() - begin
            SIDES.switch(first)
        total = size if total is None else total + size
    return total


def open_workspace() -> None:
    """Lets a further capture allocate what kernels keep, beside what earlier graphs use.

    From vLLM 0.33 on, Marlin's locks are allocated for each stream, and every capture has its own.
    """
    module = sys.modules.get(_WORKSPACE)
    if module is None or not module.is_workspace_manager_initialized():
        return
    manager = module.current_workspace_manager()
    if manager.is_locked():
        identities = {id(part) for part in (None, *_SCRATCH)}
        _SCRATCH.extend(part for part in manager._current_workspaces if id(part) not in identities)
        module.unlock_workspace()
