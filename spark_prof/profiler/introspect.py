"""Reads from the live model what each layer really is, and where its tensors lie.

Weights, formats and the chosen kernel of each module; the address of each tensor, so that a
kernel's arguments name its owner. Tensors that modules hold otherwise than as parameters and
buffers are searched for, bounded.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

from spark_prof.profiler.targets import DRAFTER, models_of
from spark_prof.rules.components import component_of, layer_of
from spark_prof.rules.stored_formats import SCALE, stored_format

_PACKAGES = ("vllm", "triton_kernels", "flashinfer", "compressed_tensors", "spark_prof")
_CONFIGURATION = ("vllm.config", "vllm.distributed")
"""Objects of these modules lead to the whole engine."""

_CACHE = "kv_cache"
_DEEPEST = 6
_MOST_OBJECTS = 200
_MOST_ITEMS = 64
_MOST_WALKED = 100_000

_WEIGHT = re.compile(r"weight|scale|bias|zeros|zero_point|sinks|(^|[._])w\d+([._]|$)|W_U?[KV]")


class WrappedTensors:
    """One walk over many modules, bounded as a whole."""

    def __init__(self) -> None:
        import torch

        self._passed = frozenset(vars(torch.nn.Module())) | {_CACHE}
        self._barren: set[int] = set()
        self._walked = 0

    def of(self, module: Any) -> Iterator[tuple[str, Any]]:
        """The tensors of a module with the attributes that lead to them, each once.

        Other modules are not entered, nor objects of packages that hold no weights.
        """
        earlier: set[int] = set()
        for name, item in list(getattr(module, "__dict__", {}).items()):
            if name in self._passed or not _kind(item) or id(item) in self._barren:
                continue
            inside = list(self._inside(name, item))
            if not inside:
                self._barren.add(id(item))
            for path, tensor in inside:
                if id(tensor) not in earlier:
                    earlier.add(id(tensor))
                    yield path, tensor

    def _inside(self, name: str, item: Any) -> Iterator[tuple[str, Any]]:
        queue = deque([(name, item, 1)])
        visited: set[int] = set()
        while queue and len(visited) < _MOST_OBJECTS and self._walked < _MOST_WALKED:
            name, item, depth = queue.popleft()
            if id(item) in visited:
                continue
            visited.add(id(item))
            if _kind(item) == "tensor":
                yield name, item
                continue
            self._walked += 1
            parts = [
                (f"{name}.{key}", value, depth + 1)
                for key, value in _parts(item)
                if _kind(value) and key != _CACHE and id(value) not in self._barren
            ]
            if depth < _DEEPEST:
                queue += parts
            if not parts:
                self._barren.add(id(item))


def _kind(item: Any) -> str:
    """A tensor, something that may hold one, or an empty string."""
    import torch

    if isinstance(item, torch.Tensor):
        return "tensor"
    if isinstance(item, torch.Size | torch.nn.Module | type):
        return ""
    module = type(item).__module__
    wraps = module.partition(".")[0] in _PACKAGES and not module.startswith(_CONFIGURATION)
    return "holder" if wraps or isinstance(item, dict | list | tuple) else ""


def _parts(item: Any) -> list[tuple[str, Any]]:
    """What an object or a container holds, under the names that it has there."""
    if isinstance(item, list | tuple):
        return [(str(number), value) for number, value in enumerate(item[:_MOST_ITEMS])]
    inside = item if isinstance(item, dict) else getattr(item, "__dict__", {})
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
    tensors = _own_tensors(module)
    method = getattr(module, "quant_method", None)
    scheme = getattr(module, "scheme", None)
    kernel = kernel_of(module)
    if not tensors and method is None and not kernel:
        return None
    largest = max(tensors.values(), key=lambda tensor: tensor.numel(), default=None)
    return {
        "path": path,
        "type": type(module).__name__,
        "layer": layer_of(path),
        "component": component_of(path, type(module).__name__),
        "quant_method": " ".join(type(item).__name__ for item in (method, scheme) if item),
        "kernel": kernel,
        "weight_dtype": "" if largest is None else dtype_name(largest),
        "shape": "" if largest is None else _shape(largest),
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
        "parameters": " ".join(
            f"{name}:{dtype_name(tensor)}:{_shape(tensor)}" for name, tensor in tensors.items()
        ),
    }


def _own_tensors(module: Any) -> dict[str, Any]:
    """Parameters, buffers, and what a kernel library keeps in objects of its own.

    Such as the weights of the Triton experts.
    """
    tensors = dict(module.named_parameters(recurse=False))
    tensors |= {n: b for n, b in module.named_buffers(recurse=False) if n != "cos_sin_cache"}
    addresses = {tensor.data_ptr() for tensor in tensors.values()}
    for name, tensor in WrappedTensors().of(module):
        wrapped = "." in name and not name.startswith("_") and tensor.numel() >= _SMALLEST_WRAPPED
        if wrapped and tensor.data_ptr() not in addresses:
            addresses.add(tensor.data_ptr())
            tensors[name] = tensor
    return tensors


def _shape(tensor: Any) -> str:
    return "x".join(map(str, tensor.shape))


def dtype_name(tensor: Any) -> str:
    """Torch's name of a tensor's element type, such as bfloat16."""
    return str(tensor.dtype).removeprefix("torch.")


def kernel_of(module: Any) -> str:
    """The class names of the implementation that was chosen, empty where a module has none."""
    names = (_name(_at(module, path)) for path in _KERNEL_PATHS)
    return " ".join(dict.fromkeys(name for name in names if name))


def _at(item: Any, path: str) -> Any:
    """What an object holds behind some attributes; None where one is missing."""
    return reduce(lambda value, name: getattr(value, name, None), path.split("."), item)


def _name(item: Any) -> str:
    if item is None:
        return ""
    if hasattr(item, "__func__"):
        return str(item.__func__.__name__)
    if hasattr(item, "name") and hasattr(item, "value"):
        return f"{type(item).__name__}.{item.name}"
    return "" if callable(item) and hasattr(item, "__code__") else type(item).__name__


_MOST_ROWS = 200_000
_STATES = ("conv_state", "ssm_state")
"""The first two tensors that vLLM's Mamba layers and gated delta nets keep, in their order."""

_BITS = ("num_bits", "weight_bits", "quant_type.size_bits", "bits")
"""Where quantization methods, schemes and configurations keep the bits of a packed weight."""

Row = dict[str, Any]
_Format = Callable[[str, str], str]


def describe_tensors(worker: Any) -> list[Row]:
    """The rows of the `tensors` table, at most 200,000, of a worker whose caches are there.

    Every parameter and buffer of the model and of its drafter, what kernel libraries keep in
    objects of their own, the caches of each layer, and on a GPU the segments of its memory. A
    tensor that several modules hold has a row for each; a module that several layers share has
    one, with layer -1. Takes about 20 us a tensor, and touches none of their data.
    """
    runner = worker.model_runner
    device = getattr(runner, "device", None)
    tensors = _TensorRows(getattr(device, "type", ""))
    holders = _holders(runner)
    for holder in holders.values():
        tensors.add_module(holder)
    tensors.add_wrapped(holders.values())
    tensors.add_caches(_layers_with_caches(worker), holders)
    tensors.add_other_caches(getattr(runner, "kv_caches", None) or ())
    tensors.rows += _segments()
    return tensors.rows[:_MOST_ROWS]


@dataclass
class _ModulePath:
    """A path of a module, for the rows of what it holds."""

    path: str
    layer: int
    component: str


@dataclass
class _Holder:
    """A module with the paths that rows of it have: one for each component that it counts to."""

    module: Any
    places: list[_ModulePath]

    @property
    def type(self) -> str:
        return type(self.module).__name__


@dataclass
class _TensorRows:
    """Rows, and where they lie."""

    device: str
    rows: list[Row] = field(default_factory=list)
    extents: set[tuple[int, int]] = field(default_factory=set)

    def add_module(self, holder: _Holder) -> None:
        """Adds a module's own parameters and buffers."""
        module = holder.module
        tensors = [("weight", *item) for item in module.named_parameters(recurse=False)]
        tensors += [("buffer", *item) for item in module.named_buffers(recurse=False)]
        if not tensors:
            return
        form = _formats(module, ((name, tensor) for _, name, tensor in tensors))
        for kind, name, tensor in tensors:
            for place in holder.places:
                self._add(place, holder.type, kind, name, tensor, form)

    def add_wrapped(self, holders: Iterable[_Holder]) -> None:
        """Adds what modules hold otherwise; what several layers hold belongs to none."""
        walk = WrappedTensors()
        shared: dict[tuple[int, int], list[tuple[_Holder, str, Any]]] = defaultdict(list)
        for holder in holders:
            for name, tensor in walk.of(holder.module):
                where = _where(tensor, self.device)
                if where is not None and where not in self.extents:
                    shared[where].append((holder, name, tensor))
        for holders_of_tensor in shared.values():
            holder, name, tensor = holders_of_tensor[0]
            place = holder.places[0]
            layers = {place.layer for other, *_ in holders_of_tensor for place in other.places}
            layer = place.layer if len(layers) == 1 else -1
            place = _ModulePath(place.path, layer, place.component)
            form = _formats(holder.module, [(name, tensor)])
            tensor_kind = (
                "kv" if "cache" in name else "weight" if _WEIGHT.search(name) else "buffer"
            )
            self._add(place, holder.type, tensor_kind, name, tensor, form)

    def add_caches(self, layers: Mapping[str, Any], holders: Mapping[int, _Holder]) -> None:
        """Adds the KV cache or the states of each layer, by its name in the forward context."""
        for name, layer in layers.items():
            kind = type(layer).__name__
            is_state = any(base.__name__ == "MambaBase" for base in type(layer).__mro__)
            holder = holders.get(id(layer))
            unheld = _ModulePath(name, layer_of(name), component_of(name, kind))
            place = holder.places[0] if holder else unheld
            form = partial(stored_format, classes=str(getattr(layer, "kv_cache_dtype", "")))
            tensors = _tensors_of_cache(layer.kv_cache)
            for number, tensor in enumerate(tensors):
                if is_state:
                    part = _state_name(layer, number, len(tensors))
                else:
                    part = "kv_cache" if len(tensors) == 1 else f"kv_cache.{number}"
                self._add(place, kind, "state" if is_state else "kv", part, tensor, form)

    def add_other_caches(self, caches: Iterable[Any]) -> None:
        """Adds the runner's caches that no layer has."""
        for number, cache in enumerate(caches):
            for tensor in _tensors_of_cache(cache):
                where = _where(tensor, self.device)
                if where is not None and where not in self.extents:
                    name = f"kv_caches.{number}"
                    self._add(_ModulePath("", -1, ""), "", "kv", name, tensor, stored_format)

    def _add(
        self, place: _ModulePath, kind: str, tensor_kind: str, name: str, tensor: Any, form: _Format
    ) -> None:
        where = _where(tensor, self.device)
        if where is None:
            return
        self.extents.add(where)
        dtype = dtype_name(tensor)
        stored_as = form("kv_cache" if tensor_kind in ("kv", "state") else name, dtype)
        row = {"address": where[0], "bytes": where[1], "kind": tensor_kind, "name": name,
               "module": place.path, "type": kind, "layer": place.layer,
               "component": place.component, "shape": _shape(tensor), "dtype": dtype,
               "format": stored_as}  # fmt: skip
        self.rows.append(row)


def _formats(module: Any, tensors: Iterable[tuple[str, Any]]) -> _Format:
    """What tells the format of each of a module's tensors from its name and type."""
    if getattr(module, "quant_method", None) is None:
        return stored_format
    quantization = (
        _at(module, path) for path in ("quant_method", "scheme", "quant_method.quant_config")
    )
    parts = [part for part in quantization if part is not None]
    classes = " ".join([*(type(part).__name__ for part in parts), kernel_of(module)])
    dtypes = ((name, dtype_name(tensor)) for name, tensor in tensors)
    scales = frozenset(dtype for name, dtype in dtypes if stored_format(name, dtype) == SCALE)
    return partial(stored_format, classes=classes, scales=scales, bits=_bits(*parts))


def _bits(*parts: Any) -> int:
    """Bits of a packed weight, as the first that tells them has it; AWQ knows no other than 4."""
    for value in (_at(part, path) for part in parts for path in _BITS):
        if type(value) is int:
            return value
    return 4 if any("awq" in type(part).__name__.lower() for part in parts) else 0


def _holders(runner: Any) -> dict[int, _Holder]:
    """The modules of the model and its drafter by their id."""
    paths: dict[int, tuple[Any, list[str]]] = {}
    for prefix, model in models_of(runner):
        for path, module in model.named_modules(remove_duplicate=False):
            full = prefix + path if path else prefix.rstrip(".")
            paths.setdefault(id(module), (module, []))[1].append(full)
    return {
        key: _Holder(module, _places(module, module_paths))
        for key, (module, module_paths) in paths.items()
    }


def _places(module: Any, paths: list[str]) -> list[_ModulePath]:
    """The first path of each component; no layer where the module is in several."""
    layers = {layer_of(path) for path in paths}
    layer = layers.pop() if len(layers) == 1 else -1
    places: dict[tuple[str, bool], _ModulePath] = {}
    for path in paths:
        component = component_of(path, type(module).__name__)
        places.setdefault(
            (component, path.startswith(DRAFTER)), _ModulePath(path, layer, component)
        )
    return list(places.values())


def _layers_with_caches(worker: Any) -> dict[str, Any]:
    """The layers of vLLM that have a cache, by the names with which attention finds them."""
    configs = (worker.model_runner, getattr(worker, "vllm_config", None))
    contexts = (_at(config, "compilation_config.static_forward_context") for config in configs)
    layers: dict[Any, Any] = next(filter(None, contexts), {})
    return {str(name): it for name, it in layers.items() if hasattr(it, "kv_cache")}


def _tensors_of_cache(cache: Any) -> list[Any]:
    """A tensor, a list of one for each virtual engine, or a tuple of states; flat."""
    while isinstance(cache, list | tuple) and len(cache) == 1:
        cache = cache[0]
    if not isinstance(cache, list | tuple):
        return [cache]
    return [tensor for item in cache for tensor in _tensors_of_cache(item)]


def _state_name(layer: Any, number: int, of: int) -> str:
    if of == 1:
        return _STATES[0 if "conv" in str(getattr(layer, "mamba_type", "")).lower() else 1]
    return _STATES[number] if number < len(_STATES) else f"state.{number}"


def _where(tensor: Any, device: str) -> tuple[int, int] | None:
    """Where a tensor begins and how many bytes it spans; None for one without memory there."""
    try:
        if type(tensor).__name__ == "FakeTensor" or not tensor.numel():
            return None
        if tensor.device.type != (device or tensor.device.type):
            return None
        address = int(tensor.data_ptr())
        last = sum((n - 1) * abs(s) for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    except Exception:  # a sparse one, a subclass that holds others
        return None
    return (address, (last + 1) * tensor.element_size()) if address else None


def _segments() -> list[Row]:
    """The segments of PyTorch's allocator on this process's GPU."""
    import torch

    if not torch.cuda.is_available():
        return []
    device = torch.cuda.current_device()
    empty = {"name": "", "module": "", "type": "", "layer": -1, "component": "", "shape": "",
             "dtype": "", "format": ""}  # fmt: skip
    return [
        {"address": int(segment["address"]), "bytes": int(segment["total_size"]),
         "kind": "pool" if any(segment.get("segment_pool_id", ())) else "memory"} | empty
        for segment in torch.cuda.memory_snapshot()
        if segment.get("device", device) == device
    ]  # fmt: skip
