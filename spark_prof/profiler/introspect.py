"""Reads from the live model what each layer really is: weights, formats and the chosen kernel.

Tensors that modules hold otherwise than as parameters and buffers are searched for, bounded.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Any, Literal

from spark_prof.rules.components import component_of, layer_of

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


_KERNEL_PATHS = (
    "quant_method.kernel",
    "scheme.kernel",
    "quant_method.fp8_linear",
    "quant_method.moe_kernel.fused_experts",
    "quant_method.moe_kernel.impl.fused_experts",
    "quant_method.moe_mk.fused_experts",
    "quant_method.fused_experts",
    "quant_method.mxfp4_backend",
    "quant_method.nvfp4_backend",
    "impl",
    "_forward_method",
)
"""Where vLLM's layers keep the implementation that was chosen, the most telling first."""

_SMALLEST_WRAPPED = 1024


def describe_layers(model: Any) -> list[dict[str, Any]]:
    """One row of the `layers` table for each module with tensors or a kernel of its own."""
    return [row for path, module in model.named_modules() if (row := _describe(path, module))]


def _describe(path: str, module: Any) -> dict[str, Any] | None:
    tensors = list(_own_tensors(module))
    method = getattr(module, "quant_method", None)
    scheme = getattr(module, "scheme", None)
    kernel = kernel_of(module)
    if not tensors and method is None and not kernel:
        return None
    largest = max(tensors, key=lambda item: item[1].numel(), default=None)
    return {
        "path": path,
        "type": type(module).__name__,
        "layer": layer_of(path),
        "component": component_of(path, type(module).__name__),
        "quant_method": " ".join(type(item).__name__ for item in (method, scheme) if item),
        "kernel": kernel,
        "weight_dtype": dtype_name(largest[1]) if largest else "",
        "shape": "x".join(map(str, largest[1].shape)) if largest else "",
        "bytes": sum(tensor.numel() * tensor.element_size() for _, tensor in tensors),
        "parameters": " ".join(
            f"{name}:{dtype_name(tensor)}:{'x'.join(map(str, tensor.shape))}"
            for name, tensor in tensors
        ),
    }


def _own_tensors(module: Any) -> Iterator[tuple[str, Any]]:
    found = dict(module.named_parameters(recurse=False))
    found |= {n: b for n, b in module.named_buffers(recurse=False) if n != "cos_sin_cache"}
    yield from found.items()
    seen = {tensor.data_ptr() for tensor in found.values()}
    for name, tensor in _wrapped_tensors(module):
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            yield name, tensor


def _wrapped_tensors(module: Any) -> Iterator[tuple[str, Any]]:
    """What a kernel library keeps in objects of its own, such as the Triton experts' weights."""
    for name, tensor in WrappedTensors().of(module):
        if "." in name and not name.startswith("_") and tensor.numel() >= _SMALLEST_WRAPPED:
            yield name, tensor


def dtype_name(tensor: Any) -> str:
    """Torch's name of a tensor's element type, such as bfloat16."""
    return str(tensor.dtype).removeprefix("torch.")


def kernel_of(module: Any) -> str:
    """The class names of the implementation that was chosen, empty where a module has none."""
    names = []
    for path in _KERNEL_PATHS:
        item = module
        for part in path.split("."):
            item = getattr(item, part, None)
            if item is None:
                break
        else:
            names.append(_name(item))
    return " ".join(dict.fromkeys(name for name in names if name))


def _name(item: Any) -> str:
    if hasattr(item, "__func__"):
        return str(item.__func__.__name__)
    if hasattr(item, "name") and hasattr(item, "value"):
        return f"{type(item).__name__}.{item.name}"
    return "" if callable(item) and hasattr(item, "__code__") else type(item).__name__
