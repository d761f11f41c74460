"""What a piece of syntax says without being run: strings, sets of them, names that stand for them.

Anything else is skipped, never guessed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

_DEPTH = 40


def assigned(tree: ast.AST) -> dict[str, ast.expr]:
    """The values that a module's or a class's own body gives names, the last one of each.

    assigned(ast.parse('A: str = "x"'))["A"] is the constant "x".
    """
    assignments: dict[str, ast.expr] = {}
    for node in statements(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    assignments[target.id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            assignments[node.target.id] = node.value
    return assignments


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a body, also those below if, else, try and with, in order."""
    for node in getattr(tree, "body", ()):
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from statements(node)
            for handler in getattr(node, "handlers", ()):
                yield from statements(handler)
            for name in ("orelse", "finalbody"):
                yield from statements(ast.Module(body=getattr(node, name, []), type_ignores=[]))


def string(node: ast.AST | None) -> str | None:
    """The text of a constant string, also of several that are added; else None."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = string(node.left), string(node.right)
        return None if left is None or right is None else left + right
    return None


def strings(
    node: ast.AST | None, names: Mapping[str, ast.expr], depth: int = _DEPTH
) -> tuple[str, ...]:
    """All constant strings of a Literal, a set, a list, a call of one, or a union of these.

    Names are looked up in `names`; order is kept, each string once.

        strings(ast.parse('Literal["a", "b"]', mode="eval").body, {}) == ("a", "b")
    """
    return tuple(dict.fromkeys(_strings(node, names, depth)))


def _strings(node: ast.AST | None, names: Mapping[str, ast.expr], depth: int) -> Iterator[str]:
    if node is None or depth == 0:
        return
    text = string(node)
    if text is not None:
        yield text
        return
    inner: list[ast.AST | None] = []
    if isinstance(node, ast.Name):
        inner = [names.get(node.id)]
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        inner = list(node.elts)
    elif isinstance(node, ast.Starred):
        inner = [node.value]
    elif isinstance(node, ast.Dict):
        inner = list(node.keys)
    elif isinstance(node, ast.Subscript):  # Literal[...], Annotated[...], Optional[...]
        inner = [node.slice]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.Add):
        inner = [node.left, node.right]
    elif isinstance(node, ast.Call):  # frozenset({...}), get_args(X), list(...)
        inner = list(node.args)
    for part in inner:
        yield from _strings(part, names, depth - 1)


def classes(tree: ast.AST) -> dict[str, ast.ClassDef]:
    """The classes of a module's own body."""
    return {node.name: node for node in statements(tree) if isinstance(node, ast.ClassDef)}


def functions(tree: ast.AST) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a module's, or the methods of a class's, own body."""
    return {
        node.name: node
        for node in statements(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
