"""Finds the tensors that modules hold in other ways than as parameters and buffers.

Kernel libraries keep them in objects of their own: the Triton MXFP4 experts their swizzled weights
and scales, Marlin its workspaces; MLA keeps its absorbed products as plain attributes.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Any, Literal

_PACKAGES = ("vllm", "triton_kernels", "flashinfer", "compressed_tensors", "spark_prof")
_CONFIGURATION = ("vllm.config", "vllm.distributed")
"""Objects of these modules lead to the whole engine."""

_CACHE = "kv_cache"
_DEEPEST = 6
_MOST_OBJECTS = 200
_MOST_ITEMS = 64
_MOST_WALKED = 100_000

_WEIGHT = re.compile(r"weight|scale|bias|zeros|zero_point|sinks|(^|[._])w\d+([._]|$)|W_U?[KV]")

_Shape = Literal["tensor", "list", "dict", "object", ""]


def kind_of_wrapped(name: str) -> str:
    """The kind that the `tensors` table has for it: a weight, a cache, or a buffer."""
    if "cache" in name:
        return "kv"
    return "weight" if _WEIGHT.search(name) else "buffer"


class WrappedTensors:
    """One walk over many modules, bounded as a whole."""

    def __init__(self) -> None:
        import torch

        self._passed = frozenset(vars(torch.nn.Module())) | {_CACHE}
        self._shapes: dict[type, _Shape] = {}
        self._barren: set[int] = set()
        self._walked = 0

    def of(self, module: Any) -> Iterator[tuple[str, Any]]:
        """The tensors of a module with the attributes that lead to them, each once.

        Other modules are not entered, nor objects of packages that hold no weights.
        """
        given: set[int] = set()
        for name, item in list(getattr(module, "__dict__", {}).items()):
            if name in self._passed:
                continue
            shape = self._shape(item)
            if not shape or id(item) in self._barren:
                continue
            inside = list(self._inside(name, item, shape))
            if not inside:
                self._barren.add(id(item))
            for path, tensor in inside:
                if id(tensor) not in given:
                    given.add(id(tensor))
                    yield path, tensor

    def _inside(self, name: str, item: Any, shape: _Shape) -> Iterator[tuple[str, Any]]:
        queue = deque([(name, item, shape, 1)])
        visited: set[int] = set()
        while queue and len(visited) < _MOST_OBJECTS and self._walked < _MOST_WALKED:
            name, item, shape, depth = queue.popleft()
            if id(item) in visited:
                continue
            visited.add(id(item))
            if shape == "tensor":
                yield name, item
                continue
            self._walked += 1
            parts = [
                (f"{name}.{key}", value, inner, depth + 1)
                for key, value in _parts(item, shape)
                if (inner := self._shape(value)) and key != _CACHE and id(value) not in self._barren
            ]
            if depth < _DEEPEST:
                queue += parts
            if not parts:
                self._barren.add(id(item))

    def _shape(self, item: Any) -> _Shape:
        kind = type(item)
        found = self._shapes.get(kind)
        if found is None:
            found = self._shapes[kind] = _shape_of(kind)
        return found


def _shape_of(kind: type) -> _Shape:
    import torch

    if issubclass(kind, torch.Tensor):
        return "tensor"
    if issubclass(kind, torch.Size | torch.nn.Module | type):
        return ""
    if issubclass(kind, dict):
        return "dict"
    if issubclass(kind, list | tuple):
        return "list"
    module = kind.__module__
    wraps = module.partition(".")[0] in _PACKAGES and not module.startswith(_CONFIGURATION)
    return "object" if wraps else ""


def _parts(item: Any, shape: _Shape) -> list[tuple[str, Any]]:
    """What an object or a container holds, under the names that it has there."""
    if shape == "list":
        return [(str(number), value) for number, value in enumerate(item[:_MOST_ITEMS])]
    inside = item if shape == "dict" else getattr(item, "__dict__", {})
    return [(str(key), value) for key, value in list(inside.items())[:_MOST_ITEMS]]
