"""One kernel by itself: the program that replays it, and how its file is written."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch

from spark_prof.kernels.bench.configurations import known_config
from spark_prof.kernels.bench.race import Call, RaceSetting, largest_relative_l2, race
from spark_prof.kernels.bench.shapes import DenseShape, ExpertsShape, Layer, Piece
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.registry import ReplacementKernel
from spark_prof.kernels.tuning import TunedShape

_FOR_THIS_PROJECT = re.compile(r"  # (type: ignore|noqa).*")


_USAGE = """

It needs spark-prof and a GPU. It makes random inputs, times the kernel on weights that no cache
holds, and checks its results; with --once it launches it once:

    python {name}
    ncu --set full --kernel-name 'regex:^({entries})$' python {name} --once
"""


@dataclass(frozen=True)
class Replay:
    """A kernel with its inputs; the number of a call is from 0 to `calls` - 1."""

    calls: int
    before: Call  # writes the inputs of a call
    call: Call
    expected: Callable[[], torch.Tensor]  # the exact results of all calls
    tolerance: float  # relative L2
    problem: Callable[[], str] = lambda: ""  # what else is wrong in the end, empty if nothing


def main(work: Callable[[torch.device], Replay], about: str | None) -> int:
    """Times a kernel and checks its results, or launches it once; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="where torch finds it; default cuda")
    parser.add_argument("--once", action="store_true", help="launch it once, for a profiler")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("there is no GPU here that PyTorch can use", file=sys.stderr)
        return 2
    try:
        return _played(work(device), device, once=options.once)
    except KernelError as error:  # such as sizes that the kernel does not take
        print(error, file=sys.stderr)
        return 2


def _played(replay: Replay, device: torch.device, *, once: bool) -> int:
    if once:
        replay.call(0)
        return 0
    expected = replay.expected()
    error = lambda outputs: largest_relative_l2(outputs, expected)  # noqa: E731
    setting = RaceSetting(replay.calls, replay.before, error, replay.tolerance, device)
    (result,) = race({"it": replay.call}, setting)
    wrong = result.failed or replay.problem()
    if wrong or result.us is None:
        print(wrong)
        return 1
    us = result.us
    print(f"{us.median:.2f} us a call [{us.lower:.2f}, {us.upper:.2f}], error {result.error:.2g}")
    return 0


def replay_file(
    kernel: ReplacementKernel,
    piece: Piece,
    tokens: int,
    name: str,
    architecture: str,
    gpu: str,
    processors: int,
    note: str = "",
) -> str:
    """The text of a program that replays a kernel at a piece of work.

    Args:
        name: of the file that it will be in.
        architecture: whose measured configuration it gets, such as sm_90a.
        gpu: the GPU's name, whose own measurements count first.
        processors: its multiprocessors, whose default it gets where nothing was measured.
        note: what else the file shall say at its top.
    """
    shape, form = piece
    if isinstance(shape, DenseShape):
        template, sizes = "matrix", f"{form} {shape.rows} x {shape.columns}"
        values: dict[str, object] = {"ROWS, COLUMNS": (shape.rows, shape.columns)}
        values["FORMAT: WeightFormat"] = form
        work = TunedShape("dense", form, shape.rows, shape.columns, tokens)
    else:
        template, sizes = "experts", f"{form}, {shape.top_k} of {shape.experts} experts"
        values = {"SHAPE": shape, "EXPERTS, TOP_K": (shape.experts, shape.top_k)}
        counts = (tokens, shape.experts, shape.top_k)
        work = TunedShape("moe", form, 2 * shape.intermediate, shape.hidden, *counts)
    if kernel.layer == "choice" and isinstance(shape, ExpertsShape):
        template, sizes = "choice", f"{shape.top_k} of {shape.experts} experts"
    if kernel.tuned_as:
        default: Any = kernel.function("config_for")(work, processors)
        values["CONFIG"] = known_config(default, work, architecture, gpu)
    about = f"{kernel.name} by itself: {sizes}, {tokens} token{'' if tokens == 1 else 's'}."
    if note:
        # Names of kernels are anybody's.
        about += "\n\n" + "".join(c for c in note if c.isprintable() and c not in '"\\')
    entries = "|".join(dict.fromkeys(code.entry for code in kernel.function("codes")()))
    about += _USAGE.format(name=name, entries=entries)
    return _filled(template, about, {**values, "TOKENS": tokens})


def _filled(template: str, about: str, values: Mapping[str, object]) -> str:
    text = files("spark_prof.kernels.bench.replays").joinpath(f"{template}.py").read_text("utf-8")
    text = re.sub(r'\A""".*?"""', lambda _: f'"""{about}"""', text, count=1, flags=re.DOTALL)
    for name, value in values.items():
        value_text = ", ".join(map(repr, value)) if isinstance(value, tuple) else repr(value)
        line = re.compile(rf"^{re.escape(name)} = .*$", re.MULTILINE)
        text = line.sub(lambda _, new=f"{name} = {value_text}": new, text)  # type: ignore[misc]
    return _FOR_THIS_PROJECT.sub("", text)


_SHAPES = {
    "matrix": "ROWSxCOLUMNS",
    "experts": "EXPERTSxTOP_KxHIDDENxINNER",
    "choice": "EXPERTSxTOP_K",
}
_LARGEST = 1 << 24


def shape_of_text(kernel: ReplacementKernel, text: str, form: str) -> Piece:
    """What `--shape` says: as `_SHAPES` has it for the kernel's layer.

    Raises:
        KernelError: it is no such shape.
    """
    weight_format: Any = form
    parts = text.split("x")
    numbers = [int(part) for part in parts if part.isdecimal() and 0 < int(part) < _LARGEST]
    pattern = _SHAPES.get(kernel.layer, "")
    if len(numbers) != len(parts) or len(numbers) != len(pattern.split("x")):
        raise KernelError(f"--shape {text}: of {kernel.name} it is {pattern}")
    if kernel.layer == "matrix":
        slot: Any = kernel.slot
        rows, columns = numbers
        return DenseShape(rows, columns, (Layer("", slot, rows, columns),)), weight_format
    experts, top_k, hidden, inner = (*numbers, 0, 0)[:4]
    if top_k > experts:
        raise KernelError(f"--shape {text}: of {experts} experts a token cannot take {top_k}")
    gpt_oss = form == "mxfp4"
    activation: Any = "swiglu" if gpt_oss else "silu"
    return ExpertsShape(
        "", weight_format, experts, top_k, hidden, inner, activation, gpt_oss
    ), weight_format


def text_of_shape(kernel: ReplacementKernel, shape: DenseShape | ExpertsShape) -> str:
    """A shape as `shape_of_text` reads it."""
    if isinstance(shape, DenseShape):
        return f"{shape.rows}x{shape.columns}"
    sizes = (shape.experts, shape.top_k, shape.hidden, shape.intermediate)
    return "x".join(map(str, sizes[:2] if kernel.layer == "choice" else sizes))
