"""The kernels that a swap may name: the package's own, a file's, an installed package's.

A file is Python that is executed in every process of the engine, with its folder at the end of
`sys.path`. Whoever names it on a command line, or in the environment, asks for that.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import zlib
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from spark_prof.errors import CommandError
from spark_prof.kernels.kernel_error import KernelError, reason
from spark_prof.swaps.builders import BUILDERS
from spark_prof.swaps.layers import (
    Builder,
    Layer,
    Replacement,
)

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
    names = [*BUILDERS, *sorted(brought)]
    near = get_close_matches(kernel, names, 1)
    hint = f"did you mean {near[0]}?" if near else f"give {', '.join(names)} or FILE.py:FUNCTION"
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
    builder = getattr(module, function, None)
    if builder is None:
        raise CommandError(f"{path} has no function {function or '(none was named)'}")
    return builder


def _from_entry_point(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:  # an installed package may raise anything
        where = f"{point.value} of the entry points {GROUP}"
        raise CommandError(f"{point.name}: {where} cannot be loaded: {reason(error)}") from error


def _checked(kernel: str, builder: Any) -> Builder:
    """A builder whose answer is what it must be."""
    if not callable(builder):
        raise CommandError(f"{kernel} is not a function; it is of type {type(builder).__name__}")

    def build(layer: Layer) -> Replacement | None:
        answer = builder(layer)
        if answer is not None and not isinstance(answer, Replacement):
            raise KernelError(
                f"{kernel} returned a {type(answer).__name__}; a builder returns a"
                " spark_prof.swaps.layers.Replacement or None"
            )
        return answer

    return build
