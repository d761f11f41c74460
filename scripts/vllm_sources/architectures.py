"""Which model architectures get breakable CUDA graphs without being asked."""

from __future__ import annotations

import ast

from scripts.vllm_sources import values
from scripts.vllm_sources.sources import SourceError, Sources

_MODULE = "vllm.config.vllm"
_TABLE = "DEFAULT_BREAKABLE_CUDAGRAPH_ARCHITECTURES"  # from 0.29
_VARIABLE = "VLLM_USE_BREAKABLE_CUDAGRAPH"


def breakable_architectures(sources: Sources) -> frozenset[str]:
    """The architectures for which vLLM sets VLLM_USE_BREAKABLE_CUDAGRAPH=1 on an NVIDIA GPU.

    Raises:
        SourceError: the place is not where it was in any version.
    """
    tree = sources.tree(_MODULE)
    if tree is not None:
        names = values.assigned(tree)
        architectures = values.strings(names.get(_TABLE), names) or _in_a_condition(tree)
        if architectures:
            return frozenset(architectures)
    raise SourceError(
        f"vLLM {sources.version}: no list of architectures with breakable CUDA graphs in {_MODULE}"
    )


def _in_a_condition(tree: ast.Module) -> tuple[str, ...]:
    """The tuple in `if "VLLM_USE_..." not in os.environ and any(a in (...) ...)` (to 0.28)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and any(
            values.string(part) == _VARIABLE for part in ast.walk(node.test)
        ):
            for part in ast.walk(node.test):
                if isinstance(part, ast.Tuple) and (architectures := values.strings(part, {})):
                    return architectures
    return ()
