"""Which options vLLM's engines take, and which values of those that take only some."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from scripts.vllm_sources import values
from scripts.vllm_sources.scope import Found, Scope, find, lineage, looked_up, strings
from scripts.vllm_sources.sources import SourceError, Sources
from scripts.vllm_sources.tables import Key

_MODULE = "vllm.engine.arg_utils"
_CONFIGS = "vllm.config"
_DEPTH = 3


def engine_options(sources: Sources) -> frozenset[Key]:
    """Each option with an empty value, and with each value that it takes where those are fixed.

    Fields of an option that takes a configuration are options with a dot, as vLLM has them:
    ("--compilation-config.cudagraph_mode", "FULL"). An alias has the values of its option.

    Raises:
        SourceError: the options are not where they were in any version.
    """
    tree = sources.tree(_MODULE)
    calls = [] if tree is None else [node for node in ast.walk(tree) if _adds(node)]
    if tree is None or not calls:
        raise SourceError(f"vLLM {sources.version}: no options in {_MODULE}")
    scope = Scope(sources, _MODULE)
    held = _held(tree)
    removed = _removed(tree, held)
    found: set[Key] = set()
    for call in calls:
        origin = Field("", "")
        for keyword in call.keywords:
            if keyword.arg is None:
                origin = _field(keyword.value, held)
        listed = next((k.value for k in call.keywords if k.arg == "choices"), None)
        for flag in filter(_is_long, map(values.string, call.args)):
            assert flag is not None
            found.add((flag, ""))
            if listed is not None:
                found |= {(flag, value) for value in strings(listed, scope, choices=True)}
            for annotation in _annotations(origin, scope):
                found |= _of_type(flag, annotation, _DEPTH)
            for dropped in removed.get(origin, ()):
                found -= {(flag, value) for value in _constants(dropped, scope)}
    return frozenset(found)


def _adds(node: ast.AST) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "add_argument"
    )


def _is_long(flag: str | None) -> bool:
    return flag is not None and flag.startswith("--")


@dataclass(frozen=True)
class Field:
    """A field of a class of configuration; a class alone where its name is empty."""

    config: str
    name: str


def _field(node: ast.expr, held: Mapping[str, Field]) -> Field:
    """What `x`, `x["field"]` or `get_kwargs(C)` holds; an empty one where that is not known."""
    if isinstance(node, ast.Name):
        return held.get(node.id, Field("", ""))
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "get_kwargs" and node.args:
        return Field(getattr(node.args[0], "id", ""), "")
    if isinstance(node, ast.Subscript) and (name := values.string(node.slice)):
        outer = _field(node.value, held)
        return Field(outer.config, name) if outer.config and not outer.name else Field("", "")
    return Field("", "")


def _held(tree: ast.Module) -> dict[str, Field]:
    """What the variables in `x = get_kwargs(C)` and `y = x["field"]` hold."""
    held: dict[str, Field] = {}
    assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    for node in sorted(assignments, key=lambda node: node.lineno):
        target = node.targets[0]
        if isinstance(target, ast.Name) and (field := _field(node.value, held)).config:
            held[target.id] = field
    return held


def _removed(tree: ast.Module, held: Mapping[str, Field]) -> dict[Field, list[ast.expr]]:
    """What `x["field"]["choices"].remove(value)` drops."""
    removed: dict[Field, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "remove"
            and isinstance(node.func.value, ast.Subscript)
            and values.string(node.func.value.slice) == "choices"
        ):
            removed.setdefault(_field(node.func.value.value, held), []).extend(node.args)
    return removed


def _constants(node: ast.expr, scope: Scope) -> Iterator[str]:
    """The text of a constant, also by its name."""
    for found in [Found(node, scope), *looked_up(node, scope)]:
        if (text := values.string(found.node)) is not None:
            yield text


def _annotations(field: Field, scope: Scope) -> Iterator[Found]:
    """The types that a class of configuration, or one of its bases, gives a field."""
    if field.name:
        for found in find(field.config, scope):
            yield from (kind for name, kind in fields(found) if name == field.name)


def fields(found: Found) -> Iterator[tuple[str, Found]]:
    """The fields of a dataclass with their types, also those of its bases."""
    for it in lineage(found):
        for node in values.statements(it.node):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                kind = ast.unparse(node.annotation)
                if not node.target.id.startswith("_") and "ClassVar" not in kind:
                    yield node.target.id, Found(node.annotation, it.scope)


def _of_type(flag: str, kind: Found, depth: int) -> set[Key]:
    """The values of an option, and the fields of a configuration that it takes."""
    found: set[Key] = {(flag, value) for value in strings(kind.node, kind.scope)}
    if depth:
        for config in _classes(kind):
            for name, inner in fields(config):
                found.add((f"{flag}.{name}", ""))
                found |= _of_type(f"{flag}.{name}", inner, depth - 1)
    return found


def _classes(kind: Found) -> Iterator[Found]:
    """The classes of configurations in a type."""
    node = kind.node
    text = values.string(node)
    if text is not None:
        try:
            node = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError):
            return
    if isinstance(node, ast.BinOp):
        yield from _classes(Found(node.left, kind.scope))
        yield from _classes(Found(node.right, kind.scope))
    elif isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Optional":
        yield from _classes(Found(node.slice, kind.scope))
    elif isinstance(node, ast.Name | ast.Attribute):
        for found in looked_up(node, kind.scope):
            if isinstance(found.node, ast.ClassDef) and found.scope.module.startswith(_CONFIGS):
                yield found
