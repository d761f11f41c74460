"""Python's operators and builtins on values that may be unknown."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable
from typing import Any

from scripts.vllm_oracles.values import (
    Atom,
    CannotTellError,
    Class,
    Function,
    Instance,
    Member,
    Preset,
    Unknown,
    text_of,
)

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
_COMPARE: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
}


def binary(op: ast.operator, left: Any, right: Any) -> Any:
    """`left op right`."""
    if _unknown(left) or _unknown(right) or type(op) not in _BINARY:
        return Unknown(f"{text_of(left)} {type(op).__name__} {text_of(right)}")
    try:
        return _BINARY[type(op)](left, right)
    except TypeError as error:
        raise CannotTellError(str(error)) from error


def compare(op: ast.cmpop, left: Any, right: Any) -> Any:
    """`left op right` for one of a chain of comparisons."""
    match op:
        case ast.Is() | ast.IsNot():
            if isinstance(left, Preset) and right is None:
                return isinstance(op, ast.IsNot)
            if _unknown(left) or _unknown(right):
                test = Unknown(f"{text_of(left)} is {text_of(right)}")
                return test if isinstance(op, ast.Is) else negated(test)
            same = left is right or (not isinstance(left, list) and left == right)
            return same if isinstance(op, ast.Is) else not same
        case ast.In() | ast.NotIn():
            is_in = contains(right, left)
            if isinstance(is_in, Unknown):
                return is_in if isinstance(op, ast.In) else negated(is_in)
            return is_in if isinstance(op, ast.In) else not is_in
    sign, call = _COMPARE[type(op)]
    left, right = _plain(left), _plain(right)
    if _unknown(left) or _unknown(right):
        if sign == "!=":
            return negated(Unknown(f"{text_of(left)} == {text_of(right)}"))
        return Unknown(f"{text_of(left)} {sign} {text_of(right)}")
    try:
        return call(left, right)
    except TypeError as error:
        raise CannotTellError(str(error)) from error


def negated(value: Any) -> Any:
    """`not value`, for a value whose truth nobody has decided yet."""
    text = value.text
    return Unknown(text[4:] if text.startswith("not ") else f"not {text}")


def contains(container: Any, item: Any) -> Any:
    """`item in container`."""
    if _unknown(container):
        return Unknown(f"{text_of(item)} in {text_of(container)}")
    if isinstance(container, str):
        if isinstance(item, str):
            return item in container
        return Unknown(f"{text_of(item)} in {container!r}")
    items = list(container)
    if not items:
        return False
    if _unknown(item) or any(map(_unknown, items)):
        if any(item is element or (not _unknown(element) and item == element) for element in items):
            return True
        return Unknown(f"{text_of(item)} in {text_of(items)}")
    return item in items


def _plain(value: Any) -> Any:
    """A named tuple as a tuple, which is how it compares."""
    if isinstance(value, Instance) and is_named_tuple(value.of):
        return tuple(value.fields.values())
    return value


def is_named_tuple(of: Class) -> bool:
    """Whether a class says that it is a NamedTuple."""
    return any(ast.unparse(base).endswith("NamedTuple") for base in of.node.bases)


def _unknown(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_unknown, value))
    return isinstance(value, (Unknown, Preset))


def unknown_among(values: Iterable[Any]) -> bool:
    """Whether one of the values is unknown."""
    return any(map(_unknown, values))


def plain_builtins(truth: Callable[[Any], bool]) -> dict[str, Callable[..., Any]]:
    """Python's builtins by name; `truth` decides what is unknown."""

    def guarded(call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def answer(*args: Any, **named: Any) -> Any:
            if unknown_among(args):
                return Unknown(f"{name}({', '.join(map(text_of, args))})")
            return call(*args, **named)

        return answer

    def following(items: Iterable[Any], *default: Any) -> Any:
        return next(iter(items), *default)

    calls: dict[str, Callable[..., Any]] = {
        "len": len, "list": list, "set": set, "tuple": tuple, "dict": dict, "int": int,
        "float": float, "str": str, "min": min, "max": max, "range": range, "abs": abs,
        "sum": sum, "sorted": sorted, "frozenset": frozenset, "enumerate": enumerate,
        "zip": zip, "reversed": reversed, "repr": repr, "iter": iter,
    }  # fmt: skip
    return {name: guarded(call, name) for name, call in calls.items()} | {
        "any": lambda items: any(truth(item) for item in items),
        "all": lambda items: all(truth(item) for item in items),
        "bool": lambda value=False: value if _unknown(value) else truth(value),
        "next": following,
        "print": lambda *_args, **_named: None,
        "callable": lambda value: isinstance(value, Function),
    }


def python_type_is(value: Any, name: str) -> bool | None:
    """Whether a value is of a type of Python's own; None where the name is no such type."""
    kinds: dict[str, Any] = {
        "str": str, "int": int, "float": float, "bool": bool, "list": list, "tuple": tuple,
        "dict": dict, "set": set, "type": Class, "Enum": Member, "enum.Enum": Member,
        "torch.dtype": Atom,
    }  # fmt: skip
    return isinstance(value, kinds[name]) if name in kinds else None
