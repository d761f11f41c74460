"""Reads from the live model what each layer really is: weights, formats and the chosen kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spark_prof.profiler.wrapped import WrappedTensors
from spark_prof.rules.components import component_of, layer_of

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
    """One row of the `layers` table for each module with tensors of its own or a kernel choice.

    Args:
        model: a torch.nn.Module whose weights are loaded.
    """
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
        "weight_dtype": _dtype(largest[1]) if largest else "",
        "shape": "x".join(map(str, largest[1].shape)) if largest else "",
        "bytes": sum(tensor.numel() * tensor.element_size() for _, tensor in tensors),
        "parameters": " ".join(
            f"{name}:{_dtype(tensor)}:{'x'.join(map(str, tensor.shape))}"
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


def _dtype(tensor: Any) -> str:
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
