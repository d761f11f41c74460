"""Whether a vLLM has a name: a module, a function, its parameters, a class, its attributes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from scripts.vllm_sources import values
from scripts.vllm_sources.scan import scan
from scripts.vllm_sources.scope import Definition, Scope, find, lineage
from scripts.vllm_sources.sources import Sources, module_of

_NAME = re.compile(r"([\w.*]+):([\w.*]*)(?:\((\w+)\))?")


def has_name(sources: Sources, name: str) -> bool:
    """Whether these sources have a name.

    `vllm.envs:` is a module, `vllm.x:C.y` an attribute of a class or of one of its bases, also one
    that a method gives to self, and `vllm.x:f(p)` a parameter. With `vllm.x.*:*.y` any class of any
    module below will do, or an object that a module gives y.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return False
    module, path, parameter = match[1], match[2], match[3] or ""
    if "*" in module:
        return any(
            path[2:] in scan(sources, it).attributes for it in _below(sources, module, path[2:])
        )
    if not path:
        return sources.path_of(module) != ""
    first, *rest = path.split(".")
    return any(_has(it, rest, parameter) for it in find(first, Scope(sources, module)))


def _below(sources: Sources, pattern: str, word: str) -> Iterator[str]:
    """The files of a pattern of modules that have a word."""
    for path, text in sources.texts.items():
        if word.encode() in text and fnmatchcase(module_of(path), pattern):
            yield path


def _has(definition: Definition, path: list[str], parameter: str) -> bool:
    node = definition.node
    if path:
        if isinstance(node, ast.ClassDef):
            return any(_has(it, path[1:], parameter) for it in _members(definition, path[0]))
        return False
    if not parameter:
        return True
    if isinstance(node, ast.ClassDef):
        return any(_has(it, [], parameter) for it in _members(definition, "__init__")) or (
            parameter in {name for name, _ in _fields(definition)}
        )
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        every = node.args
        names = [arg.arg for arg in (*every.posonlyargs, *every.args, *every.kwonlyargs)]
        return parameter in names or every.kwarg is not None
    return True  # what is called is no function that can be read


def _fields(definition: Definition) -> Iterator[tuple[str, Definition]]:
    """The names that a class's body and its methods give, also those of its bases."""
    for it in lineage(definition):
        for part in values.statements(it.node):
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield part.name, Definition(part, it.scope)
            elif isinstance(part, ast.AnnAssign | ast.Assign):
                targets = part.targets if isinstance(part, ast.Assign) else [part.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        yield target.id, Definition(part.value or target, it.scope)
        for inner in ast.walk(it.node):
            if (
                isinstance(inner, ast.Attribute)
                and isinstance(inner.ctx, ast.Store)
                and isinstance(inner.value, ast.Name)
                and inner.value.id == "self"
            ):
                yield inner.attr, Definition(inner, it.scope)


def _members(definition: Definition, name: str) -> Iterator[Definition]:
    for field, it in _fields(definition):
        if field == name:
            yield it
