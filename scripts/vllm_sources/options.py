"""Which options vLLM's engines take, and which values of those that take only some."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from scripts.vllm_sources import values
from scripts.vllm_sources.scope import Definition, Scope, find, lineage, looked_up, strings
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
    field_of = _variable_fields(tree)
    removed = _removed(tree, field_of)
    keys: set[Key] = set()
    for call in calls:
        origin = Field("", "")
        for keyword in call.keywords:
            if keyword.arg is None:
                origin = _field(keyword.value, field_of)
        listed = next((k.value for k in call.keywords if k.arg == "choices"), None)
        for flag in filter(_is_long, map(values.string, call.args)):
            assert flag is not None
            keys.add((flag, ""))
            if listed is not None:
                keys |= {(flag, value) for value in strings(listed, scope, choices=True)}
            for annotation in _annotations(origin, scope):
                keys |= _of_type(flag, annotation, _DEPTH)
            for dropped in removed.get(origin, ()):
                keys -= {(flag, value) for value in _constants(dropped, scope)}
    return frozenset(keys)


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


def _field(node: ast.expr, field_of: Mapping[str, Field]) -> Field:
    """What `x`, `x["field"]` or `get_kwargs(C)` holds; an empty one where that is not known."""
    if isinstance(node, ast.Name):
        return field_of.get(node.id, Field("", ""))
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "get_kwargs" and node.args:
        return Field(getattr(node.args[0], "id", ""), "")
    if isinstance(node, ast.Subscript) and (name := values.string(node.slice)):
        outer = _field(node.value, field_of)
        return Field(outer.config, name) if outer.config and not outer.name else Field("", "")
    return Field("", "")


def _variable_fields(tree: ast.Module) -> dict[str, Field]:
    """What the variables in `x = get_kwargs(C)` and `y = x["field"]` hold."""
    field_of: dict[str, Field] = {}
    assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    for node in sorted(assignments, key=lambda node: node.lineno):
        target = node.targets[0]
        if isinstance(target, ast.Name) and (field := _field(node.value, field_of)).config:
            field_of[target.id] = field
    return field_of


def _removed(tree: ast.Module, field_of: Mapping[str, Field]) -> dict[Field, list[ast.expr]]:
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
            removed.setdefault(_field(node.func.value.value, field_of), []).extend(node.args)
    return removed


def _constants(node: ast.expr, scope: Scope) -> Iterator[str]:
    """The text of a constant, also by its name."""
    for definition in [Definition(node, scope), *looked_up(node, scope)]:
        if (text := values.string(definition.node)) is not None:
            yield text


def _annotations(field: Field, scope: Scope) -> Iterator[Definition]:
    """The types that a class of configuration, or one of its bases, gives a field."""
    if field.name:
        for definition in find(field.config, scope):
            yield from (kind for name, kind in fields(definition) if name == field.name)


def fields(definition: Definition) -> Iterator[tuple[str, Definition]]:
    """The fields of a dataclass with their types, also those of its bases."""
    for it in lineage(definition):
        for node in values.statements(it.node):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                kind = ast.unparse(node.annotation)
                if not node.target.id.startswith("_") and "ClassVar" not in kind:
                    yield node.target.id, Definition(node.annotation, it.scope)


def _of_type(flag: str, kind: Definition, depth: int) -> set[Key]:
    """The values of an option, and the fields of a configuration that it takes."""
    keys: set[Key] = {(flag, value) for value in strings(kind.node, kind.scope)}
    if depth:
        for config in _classes(kind):
            for name, inner in fields(config):
                keys.add((f"{flag}.{name}", ""))
                keys |= _of_type(f"{flag}.{name}", inner, depth - 1)
    return keys


def _classes(kind: Definition) -> Iterator[Definition]:
    """The classes of configurations in a type."""
    node = kind.node
    text = values.string(node)
    if text is not None:
        try:
            node = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError):
            return
    if isinstance(node, ast.BinOp):
        yield from _classes(Definition(node.left, kind.scope))
        yield from _classes(Definition(node.right, kind.scope))
    elif isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Optional":
        yield from _classes(Definition(node.slice, kind.scope))
    elif isinstance(node, ast.Name | ast.Attribute):
        for definition in looked_up(node, kind.scope):
            if isinstance(definition.node, ast.ClassDef) and definition.scope.module.startswith(
                _CONFIGS
            ):
                yield definition
