"""What an expression of vLLM's sources can be while they are read and not run."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class CannotTellError(Exception):
    """The sources do something here that this reader does not follow."""


class RaisedError(Exception):
    """The sources raise: the name of the exception, and its text as far as it is known."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name, self.text = name, text


@dataclass(frozen=True)
class Unknown:
    """A value that only a running vLLM has: `text` is how the sources get it."""

    text: str


@dataclass(frozen=True)
class Atom:
    """A constant of another package that is only compared: a dtype of torch."""

    path: str


@dataclass(frozen=True)
class Module:
    """A module of vLLM."""

    name: str


@dataclass(frozen=True)
class Class:
    """A class of vLLM; two of one module and name are the same."""

    module: str
    name: str
    node: ast.ClassDef = field(compare=False, repr=False)


@dataclass(frozen=True)
class Member:
    """A member of an enumeration."""

    of: Class
    name: str
    value: Any = field(compare=False)


@dataclass
class Function:
    """A function, a method (then `bound` is what it is called on) or a lambda."""

    module: str
    node: ast.FunctionDef | ast.Lambda
    outer: list[dict[str, Any]]
    bound: Any = None
    owner: Class | None = None


@dataclass
class Builtin:
    """Something that this reader answers itself."""

    call: Callable[..., Any]


@dataclass(eq=False)
class Instance:
    """An object of a class of vLLM; equal where the fields are equal."""

    of: Class
    fields: dict[str, Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Instance) and (self.of, self.fields) == (other.of, other.fields)

    def __hash__(self) -> int:
        return hash((self.of, repr(sorted(self.fields.items(), key=lambda item: item[0]))))


@dataclass
class Preset:
    """An object whose attributes are given beforehand: an ordinary deployment, an ordinary layer.

    A name that starts with one of `false` is False, any other that is not given is unknown.
    """

    name: str
    facts: dict[str, Any]
    false: tuple[str, ...] = ()

    def get(self, attribute: str) -> Any:
        """The value of an attribute."""
        if attribute in self.facts:
            return self.facts[attribute]
        return False if attribute.startswith(self.false or ("\0",)) else self.unknown(attribute)

    def unknown(self, attribute: str) -> Unknown:
        """What stands for an attribute that is not given."""
        return Unknown(f"{self.name}.{attribute}")


def text_of(value: Any) -> str:
    """A value as conditions and reasons show it."""
    match value:
        case Unknown(text):
            return text
        case Atom(path):
            return path
        case Class():
            return value.name
        case Member():
            return f"{value.of.name}.{value.name}"
        case Instance():
            return value.of.name
        case Preset():
            return value.name
        case Function():
            return getattr(value.node, "name", "lambda")
        case Module():
            return value.name.rsplit(".", 1)[-1]
        case list() | tuple() | set() | frozenset():
            return "[" + ", ".join(map(text_of, value)) + "]"
    return repr(value)
