"""One walk through a file, for all that is looked for in each; equal files are walked once."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scripts.vllm_sources.sources import Sources

LEVELS: Mapping[str, str] = {
    "info": "INFO", "info_once": "INFO", "warning": "WARNING", "warning_once": "WARNING",
    "warn": "WARNING", "error": "ERROR", "error_once": "ERROR", "exception": "ERROR",
    "critical": "ERROR", "fatal": "ERROR",
}  # fmt: skip
"""Methods of a logger, and the level that the line bears; not those for debugging."""

_LOGGER = re.compile(r"(?:^|_)log(?:ger)?$", re.I)
_VARIABLE = re.compile(r"VLLM_[A-Z0-9][A-Z0-9_]*[A-Z0-9]")
_FIELD = re.compile(r"\{[^{}]{0,60}\}")
_LONGEST = 700
_MOST_FORMS = 20  # of one call
_TEXTS = ast.Constant | ast.JoinedStr | ast.BinOp | ast.Call


@dataclass(frozen=True)
class Scan:
    """What a file has."""

    lines: tuple[tuple[str, str], ...]  # level and format of each log call
    attributes: frozenset[str]  # members of its classes, and attributes that it gives any object
    variables: frozenset[str]  # constants that are spelt as vLLM's environment variables


_scans: dict[bytes, Scan] = {}


def scan(sources: Sources, path: str) -> Scan:
    """What a file has."""
    digest = hashlib.sha256(sources.texts[path]).digest()
    if digest not in _scans:
        _scans[digest] = _scanned(sources.parse(path))
    return _scans[digest]


def _scanned(tree: ast.Module) -> Scan:
    calls: list[tuple[str, ast.expr]] = []
    texts: dict[str, list[ast.expr]] = {}
    attributes, variables = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and _VARIABLE.fullmatch(node.value):
                variables.add(node.value)
        elif isinstance(node, ast.Attribute):
            if isinstance(node.ctx, ast.Store):
                attributes.add(node.attr)
        elif isinstance(node, ast.Call):
            level = LEVELS.get(node.func.attr, "") if isinstance(node.func, ast.Attribute) else ""
            if level and node.args and _LOGGER.search(_last(node.func)):
                calls.append((level, node.args[0]))
        elif isinstance(node, ast.Assign):
            if isinstance(node.targets[0], ast.Name) and isinstance(node.value, _TEXTS):
                texts.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.ClassDef):
            attributes.update(_members(node))
    lines = [
        (level, form[:_LONGEST])
        for level, it in calls
        for form in [*_forms(it, texts)][:_MOST_FORMS]
    ]
    return Scan(tuple(dict.fromkeys(lines)), frozenset(attributes), frozenset(variables))


def _last(node: ast.expr) -> str:
    """Of `self.logger.info` the word before the method."""
    holder = node.value if isinstance(node, ast.Attribute) else node
    return holder.attr if isinstance(holder, ast.Attribute) else getattr(holder, "id", "")


def _members(node: ast.ClassDef) -> Iterator[str]:
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield part.name
        elif isinstance(part, ast.AnnAssign | ast.Assign):
            targets: Sequence[ast.expr]
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _forms(
    node: ast.expr, texts: Mapping[str, Iterable[ast.expr]], depth: int = 4
) -> Iterable[str]:
    """The formats that an expression may be; none where it is put together at run time."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        parts = [p.value if isinstance(p, ast.Constant) else "%s" for p in node.values]
        return ["".join(map(str, parts))]
    if not depth:
        return []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        right = list(_forms(node.right, texts, depth - 1)) or ["%s"]
        left = list(_forms(node.left, texts, depth - 1))
        return [a + b for a in left[:_MOST_FORMS] for b in right[:_MOST_FORMS]]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _forms(node.left, texts, depth - 1)
    if isinstance(node, ast.IfExp):
        return [*_forms(node.body, texts, depth - 1), *_forms(node.orelse, texts, depth - 1)]
    if isinstance(node, ast.Name):
        expressions = [*texts.get(node.id, ())][:_MOST_FORMS]
        return [form for value in expressions for form in _forms(value, texts, depth - 1)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "format":
            return [_FIELD.sub("%s", f) for f in _forms(node.func.value, texts, depth - 1)]
        if node.func.attr in ("strip", "lstrip", "rstrip"):
            return [form.strip() for form in _forms(node.func.value, texts, depth - 1)]
    return []
