"""What a name stands for in a module of vLLM, through imports and base classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from scripts.vllm_sources import values
from scripts.vllm_sources.sources import Sources

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Scope:
    """A module, in which names are looked up."""

    sources: Sources
    module: str


@dataclass(frozen=True)
class Definition:
    """What a name stands for: a value, a class or a function, and where that is written."""

    node: ast.AST
    scope: Scope


def find(
    name: str, scope: Scope, visited: set[tuple[str, str]] | None = None
) -> Iterator[Definition]:
    """All that a name is given in a module, also by imports from vLLM; a module is its tree.

    A name that is given twice, as under `if TYPE_CHECKING` and `else`, is found twice.
    """
    tree = scope.sources.tree(scope.module)
    visited = set() if visited is None else visited
    if tree is None or (scope.module, name) in visited:
        return
    visited.add((scope.module, name))
    for node in values.statements(tree):
        if isinstance(node, ast.ClassDef | _Function):
            if node.name == name:
                yield Definition(node, scope)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    yield from _module(alias.name, scope)
        elif isinstance(node, ast.ImportFrom):
            yield from _imported(node, name, scope, visited)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            flat = [part for t in targets for part in getattr(t, "elts", (t,))]
            if any(isinstance(t, ast.Name) and t.id == name for t in flat):
                yield Definition(node.value or ast.Constant(None), scope)
    if scope.sources.path_of(f"{scope.module}.{name}"):
        yield from _module(f"{scope.module}.{name}", scope)


def _module(name: str, scope: Scope) -> Iterator[Definition]:
    tree = scope.sources.tree(name)
    if tree is not None:
        yield Definition(tree, Scope(scope.sources, name))


def _imported(
    node: ast.ImportFrom, name: str, scope: Scope, visited: set[tuple[str, str]]
) -> Iterator[Definition]:
    source = node.module or ""
    if node.level:
        parts = scope.module.split(".")
        package = scope.sources.path_of(scope.module).endswith("/__init__.py")
        parts = parts[: len(parts) - node.level + package]
        source = ".".join([*parts, *filter(None, [source])])
    for alias in node.names:
        if alias.name == "*" or (alias.asname or alias.name) == name:
            target = name if alias.name == "*" else alias.name
            yield from find(target, Scope(scope.sources, source), visited)


_COMPUTED = ast.IfExp | ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.Lambda | ast.BoolOp


def strings(node: ast.AST | None, scope: Scope, *, choices: bool = False) -> tuple[str, ...]:
    """The strings that a type allows: of a Literal, of an Enum; or those of a list of choices.

    A string that stands alone in a type is a type that is written as text, not a value. Of choices
    that are only known when vLLM runs there are none.
    """
    if choices and any(isinstance(part, _COMPUTED) for part in ast.walk(node or ast.Tuple([]))):
        return ()
    return tuple(dict.fromkeys(_strings(node, scope, choices, set())))


def _strings(
    node: ast.AST | None, scope: Scope, in_literal: bool, visited: set[tuple[int, bool]]
) -> Iterator[str]:
    if node is None or (id(node), in_literal) in visited:
        return
    visited.add((id(node), in_literal))
    text = values.string(node)
    if text is not None:
        if in_literal:
            yield text
        elif (parsed := _expression(text)) is not None:
            yield from _strings(parsed, scope, in_literal, visited)
    elif isinstance(node, ast.Name | ast.Attribute):
        for definition in looked_up(node, scope):
            if isinstance(definition.node, ast.ClassDef):
                yield from members(definition)
            elif not isinstance(definition.node, ast.Module | _Function):
                yield from _strings(definition.node, definition.scope, in_literal, visited)
    elif isinstance(node, ast.Subscript):
        literal = in_literal or _last(node.value) == "Literal"
        yield from _strings(node.slice, scope, literal, visited)
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        for part in node.elts:
            yield from _strings(part, scope, in_literal, visited)
    elif isinstance(node, ast.Starred):
        yield from _strings(node.value, scope, in_literal, visited)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.Add):
        yield from _strings(node.left, scope, in_literal, visited)
        yield from _strings(node.right, scope, in_literal, visited)
    elif isinstance(node, ast.Call):
        for part in node.args:  # get_args(X), list(X), frozenset({...})
            yield from _strings(part, scope, True, visited)


def looked_up(node: ast.AST, scope: Scope) -> Iterator[Definition]:
    """What a name, or an attribute of a module, stands for."""
    if isinstance(node, ast.Name):
        yield from find(node.id, scope)
    elif isinstance(node, ast.Attribute):
        for definition in looked_up(node.value, scope):
            if isinstance(definition.node, ast.Module):
                yield from find(node.attr, definition.scope)


def lineage(definition: Definition) -> Iterator[Definition]:
    """A class and those that it is made from, each once, as far as they are vLLM's."""
    waiting, visited = [definition], set()
    while waiting:
        it = waiting.pop(0)
        if not isinstance(it.node, ast.ClassDef) or id(it.node) in visited:
            continue
        visited.add(id(it.node))
        yield it
        for base in it.node.bases:
            inner = base.value if isinstance(base, ast.Subscript) else base
            waiting += looked_up(inner, it.scope)


def members(definition: Definition) -> tuple[str, ...]:
    """The names of an Enum's members; none of another class."""
    node = definition.node
    if not isinstance(node, ast.ClassDef) or not _is_enum(definition):
        return ()
    return tuple(name for name in values.assigned(node) if not name.startswith("_"))


def _is_enum(definition: Definition) -> bool:
    return any(
        _last(base) in ("Enum", "StrEnum", "IntEnum", "IntFlag")
        for it in lineage(definition)
        for base in getattr(it.node, "bases", ())
    )


def _last(node: ast.AST) -> str:
    """The last word of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None
