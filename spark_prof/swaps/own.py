"""The kernels that a swap may name: the package's own, a file's, an installed package's.

Of the package's, `spark_prof`, `spark_prof!`, `mxfp4` and `fp8`, all that is slow happens when a
layer is built: packing, choosing a configuration for every number of tokens, compiling. What a
layer cannot have is a KernelError, whose line says why.

A file is Python that is executed in every process of the engine, with its folder at the end of
`sys.path`. Whoever names it on a command line, or in the environment, asks for that.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import torch

from spark_prof.errors import CommandError
from spark_prof.kernels.dense import LinearConfig, choose_linear, default_config, dense_code, linear
from spark_prof.kernels.dispatch import Choice, Config
from spark_prof.kernels.kernel_error import KernelError, reason
from spark_prof.kernels.moe import choose_moe, down_code, gate_up_code, moe, pack_experts
from spark_prof.kernels.operands import LARGEST_BATCH
from spark_prof.kernels.pack import PackedLinear, pack_linear
from spark_prof.kernels.quantize_at_load import LoadFormat, quantize_linear
from spark_prof.kernels.routing import build as build_router
from spark_prof.kernels.routing import routed
from spark_prof.kernels.runtime.launch import prepare
from spark_prof.swaps.layers import (
    Bits,
    Builder,
    ExpertsLayer,
    Layer,
    LinearLayer,
    Replacement,
    RouterLayer,
)

_COUNTS = range(1, LARGEST_BATCH + 1)


def build_kept(layer: Layer, insist: bool) -> Replacement:
    """The package's kernel, which computes with the checkpoint's own bits.

    `spark_prof!` insists: also for numbers of tokens at which nobody measured it to be faster.
    """
    with torch.no_grad():
        if isinstance(layer, LinearLayer):
            return _kept_linear(layer, insist)
        if isinstance(layer, ExpertsLayer):
            return _kept_experts(layer, insist)
        if isinstance(layer, RouterLayer):
            return _router(layer)
    raise KernelError("spark_prof has no kernel for a norm alone; give norm=FILE.py:FUNCTION")


def build_quantized(layer: Layer, kind: LoadFormat) -> Replacement:
    """A BF16 weight quantized here, and the package's kernel for what it became.

    It runs for every number of tokens up to 16: a layer whose results changed with the batch size
    more than it must would be worse than one that is a little slower.
    """
    if not isinstance(layer, LinearLayer):
        raise KernelError(f"{kind} is for the weight of one matrix, which {layer.name} is not")
    if not isinstance(layer.weight, torch.Tensor):
        raise KernelError(f"the weight of {layer.name} is quantized already; give spark_prof")
    with torch.no_grad():
        quantized = quantize_linear(layer.slot, layer.weight.detach(), kind)
        packed = pack_linear(quantized.weight)
    configs = {
        count: choose_linear(packed, count, insist=True).config
        or default_config(packed.rows, packed.columns, count)
        for count in _COUNTS
    }
    return _linear(packed, configs, "changed", quantized.line)


BUILDERS: Mapping[str, Builder] = {
    "spark_prof": partial(build_kept, insist=False),
    "spark_prof!": partial(build_kept, insist=True),
    "mxfp4": partial(build_quantized, kind="mxfp4"),
    "fp8": partial(build_quantized, kind="fp8"),
}
"""What each kernel name of a swap stands for."""


def _kept_linear(layer: LinearLayer, insist: bool) -> Replacement:
    packed = pack_linear(layer.weight)
    configs = _chosen(partial(choose_linear, packed), insist)
    line = f"{packed.format} {packed.rows} x {packed.columns}"
    return _linear(packed, configs, "kept", f"{line}, {_counts_in_words(configs)}")


def _linear(
    packed: PackedLinear, configs: Mapping[int, LinearConfig], bits: Bits, line: str
) -> Replacement:
    form, columns = packed.format, packed.columns
    codes = [dense_code(form, columns, count, config) for count, config in configs.items()]
    prepare(codes, packed.weights.device)

    def run(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return linear(x, packed, bias, None, configs[len(x)])

    held = 0 if packed.format == "bf16" else packed.bytes  # read where vLLM has it
    return Replacement(run, LARGEST_BATCH, bits, held, line, _fits(configs))


def _kept_experts(layer: ExpertsLayer, insist: bool) -> Replacement:
    gate_up, down, router = layer.gate_up, layer.down, layer.router
    in_place = isinstance(gate_up, torch.Tensor)
    if in_place and not layer.stays:
        raise KernelError(
            f"vLLM lays the BF16 experts of {layer.name} out anew, for which a second copy would be"
            " needed; give --moe-backend triton"
        )
    _try_routing(router, gate_up.device)
    # Copies: vLLM goes on to lay its own out anew.
    gate_up_bias = None if layer.gate_up_bias is None else layer.gate_up_bias.clone()
    down_bias = None if layer.down_bias is None else layer.down_bias.clone()
    packed = pack_experts(gate_up, down, gate_up_bias, down_bias, layer.activation)
    configs = _chosen(partial(choose_moe, packed, router.top_k), insist)
    form, activation = packed.gate_up.format, packed.activation.name
    codes = [
        code
        for count, config in configs.items()
        for code in (
            gate_up_code(form, packed.hidden, activation, count, config),
            down_code(form, packed.intermediate, count, config),
        )
    ]
    prepare(codes, packed.down.weights.device)

    def run(x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return moe(x, logits, packed, router, None, configs[len(x)])

    size = f"{packed.count} experts, {packed.gate_up.rows} x {packed.hidden}"
    line = f"{packed.gate_up.format} {size}, {_counts_in_words(configs)}"
    held = 0 if in_place else packed.gate_up.bytes + packed.down.bytes
    held += sum(bias.nbytes for bias in (gate_up_bias, down_bias) if bias is not None)
    return Replacement(run, LARGEST_BATCH, "kept", held, line, _fits(configs))


def _router(layer: RouterLayer) -> Replacement:
    here = "cuda" if torch.cuda.is_available() else "cpu"
    _try_routing(layer, torch.device(here) if layer.correction is None else layer.correction.device)
    line = f"{layer.top_k} of {layer.experts} experts, 1 to {LARGEST_BATCH} tokens"
    return replace(build_router(layer), line=line)


def _try_routing(router: RouterLayer, device: torch.device) -> None:
    """Routes one token: compiles the kernel, for logits of both dtypes, or says what it cannot."""
    for dtype in (torch.bfloat16, torch.float32):
        routed(torch.zeros((1, router.experts), dtype=dtype, device=device), router)


def _fits(configs: Mapping[int, object]) -> Callable[[int], bool] | None:
    return None if len(configs) == LARGEST_BATCH else lambda tokens: tokens in configs


def _chosen(choose: Callable[..., Choice[Config]], insist: bool) -> dict[int, Config]:
    """The configurations for the numbers of tokens for which the kernel is chosen."""
    chosen = {count: choose(count, insist=insist) for count in _COUNTS}
    configs = {count: each.config for count, each in chosen.items() if each.config is not None}
    if not configs:
        way_out = "" if insist else "; spark_prof! runs it where nobody measured it"
        raise KernelError(f"not chosen for any number of tokens: {chosen[1].why}{way_out}")
    return configs


def _counts_in_words(configs: Mapping[int, object]) -> str:
    """For which numbers of tokens: `1 to 8 and 10 tokens`."""
    runs: list[list[int]] = []
    for count in sorted(configs):
        if runs and runs[-1][-1] == count - 1:
            runs[-1].append(count)
        else:
            runs.append([count])
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"{' and '.join(parts)} tokens"


GROUP = "spark_prof.kernels"


@cache
def load_builder(kernel: str) -> Builder:
    """The package's own builder of that name, a file's function or an entry point's.

    A file is executed once a process.
    """
    if kernel in BUILDERS:
        return BUILDERS[kernel]
    path, colon, function = kernel.rpartition(":")
    if colon and path.endswith(".py"):
        return _checked(kernel, _from_file(Path(path), function))
    if kernel.endswith(".py"):
        raise CommandError(f"{kernel}: name the function too, such as {kernel}:build")
    brought = {point.name: point for point in entry_points(group=GROUP)}
    if kernel in brought:
        return _checked(kernel, _from_entry_point(brought[kernel]))
    known = [*BUILDERS, *sorted(brought)]
    near = get_close_matches(kernel, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"give {', '.join(known)} or FILE.py:FUNCTION"
    raise CommandError(f"there is no kernel {kernel}; {hint}")


def _from_file(path: Path, function: str) -> Any:
    if not os.path.isfile(path):  # false for what is no name of a file, too
        raise CommandError(f"{path} is no file; give the path of your kernel")
    path = path.resolve()
    # What lies beside the file can be imported, but takes the place of nothing.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    name = f"spark_prof_own_{path.stem}_{zlib.crc32(bytes(path)):08x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CommandError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Triton and dataclasses look a function's module up by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise CommandError(f"{path} cannot be loaded: {reason(error)}") from error
    found = getattr(module, function, None)
    if found is None:
        raise CommandError(f"{path} has no function {function or '(none was named)'}")
    return found


def _from_entry_point(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:  # an installed package may raise anything
        where = f"{point.value} of the entry points {GROUP}"
        raise CommandError(f"{point.name}: {where} cannot be loaded: {reason(error)}") from error


def _checked(kernel: str, found: Any) -> Builder:
    """A builder whose answer is what it must be."""
    if not callable(found):
        raise CommandError(f"{kernel} is not a function; it is of type {type(found).__name__}")

    def build(layer: Layer) -> Replacement | None:
        answer = found(layer)
        if answer is not None and not isinstance(answer, Replacement):
            raise KernelError(
                f"{kernel} returned a {type(answer).__name__}; a builder returns a"
                " spark_prof.swaps.layers.Replacement or None"
            )
        return answer

    return build
