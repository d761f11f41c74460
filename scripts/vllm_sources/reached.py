"""What spark-prof's own sources name of vLLM: what they import, and what they call by keyword."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from scripts.vllm_sources import values

PACKAGE = Path(__file__).resolve().parents[2] / "spark_prof"
_MODULE = re.compile(r"vllm(\.[a-z_]\w*)+")
_LOGGER = "vllm.spark_prof"  # a logger's name
_OWN_METHODS = ("run", "spark_prof_stock")  # of what a swap puts into a layer


def reached(folder: Path = PACKAGE) -> frozenset[str]:
    """The names, as `vllm.module:name`, and parameters as `vllm.module:function(parameter)`.

    A text that is a module's name counts as a module; names that stand with it in a tuple, such as
    `("vllm.v1.engine.core", "EngineCore")`, are a class in it and an attribute of that. A method of
    an `InternalCall` may be any class's.
    """
    names: set[str] = set()
    for path in sorted(folder.rglob("*.py")):
        names |= set(_of_file(ast.parse(path.read_bytes())))
    names -= {f"vllm.*:*.{name}" for name in _OWN_METHODS}
    return frozenset(names)


def _of_file(tree: ast.Module) -> Iterator[str]:
    names = values.assigned(tree)
    bound: dict[str, str] = {}  # what a name stands for in this file
    grouped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _is_vllm(node.module or "") and not node.level:
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}:{alias.name}"
                yield f"{node.module}:{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if _is_vllm(alias.name):
                    yield f"{alias.name}:"
                    if alias.asname:
                        bound[alias.asname] = f"{alias.name}:"
        elif isinstance(node, ast.Tuple | ast.List) and len(node.elts) in (2, 3):
            module, *rest = (values.string(part) or "" for part in node.elts)
            if _MODULE.fullmatch(module) and all(re.fullmatch(r"\w+", text) for text in rest):
                grouped.add(id(node.elts[0]))
                yield f"{module}:" + ".".join(rest)
    for node in ast.walk(tree):
        text = values.string(node)
        if text and _MODULE.fullmatch(text) and id(node) not in grouped and text != _LOGGER:
            yield f"{text}:"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = bound.get(node.value.id, "")
            if module.endswith(":"):
                yield module + node.attr
        if isinstance(node, ast.Call):
            if getattr(node.func, "id", "") == "InternalCall" and len(node.args) > 1:
                yield from (f"vllm.*:*.{it}" for it in values.strings(node.args[1], names))
            name = _called(node.func, bound)
            for keyword in node.keywords:
                if name and keyword.arg:
                    yield f"{name}({keyword.arg})"


def _is_vllm(module: str) -> bool:
    return module.split(".")[0] == "vllm"


def _called(node: ast.expr, bound: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        name = bound.get(node.id, "")
        return "" if name.endswith(":") else name
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        module = bound.get(node.value.id, "")
        return module + node.attr if module.endswith(":") else ""
    return ""
