"""What PyTorch's profiler lists among the operators of a CPU and is none: ranges of torch.compile.

Such a range encloses operators, whose time is theirs. What is left of it is Python between
operators: no work, but the gap before the next one. The call of a compiled graph is not among
them, because Inductor's own code runs in it and has no operator (kernel_names.py has its row).
"""

from __future__ import annotations

import re
from collections.abc import Collection

RANGES: tuple[tuple[str, str], ...] = (
    (r"^TorchDynamo Cache Lookup$", "TorchDynamo Cache Lookup"),
    (r"^Torch-Compiled Region\b", "Torch-Compiled Region: 0/0"),
    (r"^Pregraph bytecode$", "Pregraph bytecode"),
    (r"^AOTDispatcher Runtime Wrapper \w+$", "AOTDispatcher Runtime Wrapper Prologue"),
    (r"^graph_\d+_inductor_wrapper_call$", "graph_0_inductor_wrapper_call"),
    (r" \(dynamo_timed\)$", "backend_compile (dynamo_timed)"),
)
"""Patterns, each with an example that is its test."""

_RANGES = re.compile("|".join(pattern for pattern, _ in RANGES))


def ranges_among(names: Collection[str]) -> frozenset[str]:
    """The names that are no operators.

    A phase of compiling has two ranges, one of them called `(dynamo_timed)`: of `backend_compile`,
    `backend_compile (dynamo_timed)` and `aten::mm` the first two.
    """
    ranges = {name for name in names if _RANGES.search(name)}
    suffix = " (dynamo_timed)"
    return frozenset(ranges | {name for name in names if f"{name}{suffix}" in ranges})
