"""The Python files of one unzipped vLLM wheel, parsed when they are first asked for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any


class SourceTree:
    """The sources under a folder that holds `vllm/`; nothing of them is ever imported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parse = cache(self._parse)
        self.bindings = cache(self._bindings)
        self.is_generator = cache(_is_generator)
        self.body = cache(_body)
        self.entries = cache(self._entries)
        self.path = cache(self._path)
        self.verdicts: dict[tuple[Any, ...], Any] = {}  # what has been found out before

    def _path(self, module: str) -> Path | None:
        """The file of a module, None where there is none."""
        base = self.folder.joinpath(*module.split("."))
        for path in (base / "__init__.py", base.with_suffix(".py")):
            if path.is_file():
                return path
        return None

    def _parse(self, module: str) -> ast.Module | None:
        path = self.path(module)
        return ast.parse(path.read_text("utf-8")) if path else None

    def is_package(self, module: str) -> bool:
        """Whether the module is a folder."""
        path = self.path(module)
        return path is not None and path.name == "__init__.py"

    def _entries(self, module: str, name: str) -> dict[str, ast.expr]:
        """The values of a dictionary that a module has under a name, by their keys."""
        statement = self.bindings(module).get(name)
        value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
        if not isinstance(value, ast.Dict):
            return {}
        pairs = zip(value.keys, value.values, strict=True)
        return {str(k.value): v for k, v in pairs if isinstance(k, ast.Constant)}

    def _bindings(self, module: str) -> dict[str, ast.stmt]:
        """The statement that binds each name of a module: the first of its branches wins."""
        bindings: dict[str, ast.stmt] = {}
        tree = self.parse(module)
        for statement in _statements(tree.body if tree else []):
            for name in _names(statement):
                bindings.setdefault(name, statement)
        return bindings


def _is_generator(node: ast.FunctionDef) -> bool:
    return any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in ast.walk(node))


def _body(node: ast.ClassDef) -> dict[str, ast.stmt]:
    """The statements of a class body by the names that they bind; the first wins."""
    bindings: dict[str, ast.stmt] = {}
    for statement in node.body:
        for name in _names(statement):
            bindings.setdefault(name, statement)
    return bindings


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        match statement:
            case ast.If():
                yield from _statements(statement.body)
                yield from _statements(statement.orelse)
            case ast.Try():
                yield from _statements(statement.body)
                for handler in statement.handlers:
                    yield from _statements(handler.body)
            case _:
                yield statement


def _names(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef():
            yield statement.name
        case ast.Assign():
            for target in statement.targets:
                if isinstance(target, ast.Attribute):  # an attribute that a class gets later
                    yield ast.unparse(target)
                else:
                    yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
            yield name
        case ast.Import() | ast.ImportFrom():
            for alias in statement.names:
                yield alias.asname or alias.name.split(".")[0]
