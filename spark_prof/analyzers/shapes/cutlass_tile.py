"""The tile of a CUTLASS 3 kernel whose symbol nothing demangled.

libstdc++ gives no name for a symbol of more than 1,024 characters, so that the longest kernels keep
theirs. What stands in it is written once and then referred to (S1_), by the Itanium C++ ABI, 5.1.10
(itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling); nothing is expanded here, as that could grow
without bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from spark_prof.analyzers.shapes.shape_rows import Tile

_DEEPEST = 100
_MOST_NODES = 20_000
_LENGTH = re.compile(r"[0-9]{1,4}")
_VALUE = re.compile(r"n?[0-9]{1,18}")
_REFERENCE = re.compile(r"S([0-9A-Z]{0,4})_")
_PARAMETER = re.compile(r"T[0-9]{0,3}_")
_BUILTIN = frozenset("vwbcahstijlmxynofdegz")


@dataclass(frozen=True, eq=False)
class Node:
    """A type, a template or a value."""

    name: str  # without its namespaces; a value's digits
    arguments: tuple[Node, ...] = ()  # of the template; of a pack its parts


def template_of(symbol: str) -> Node | None:
    """The function that a symbol names, with its template arguments; None for what is no such."""
    if not symbol.startswith("_Z"):
        return None
    try:
        return _Reader(symbol).function()
    except (_UnreadableError, ValueError):
        return None


def nodes(root: Node) -> Iterator[Node]:
    """The node and everything in it, each once, what is written first first."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            waiting += reversed(node.arguments)


class _UnreadableError(Exception):
    """A symbol that is cut short, or holds what no kernel's name needs."""


class _Reader:
    """Walks over a symbol once, and keeps what may be referred to later."""

    def __init__(self, symbol: str) -> None:
        self._text, self._at = symbol, 2
        self._seen: list[Node] = []
        self._made = 0

    def function(self) -> Node:
        return self._name(0)

    def _type(self, depth: int) -> Node:
        letter = self._peek()
        if letter in _BUILTIN:
            self._at += 1
            return Node(letter)
        if letter in "PROKV":
            self._at += 1
            return self._keep(Node(letter, (self._argument(depth + 1),)))
        return self._name(depth)

    def _name(self, depth: int) -> Node:
        """A name with its template arguments; each of its beginnings can be referred to."""
        nested = self._peek() == "N"
        self._at += nested
        node: Node | None = None
        while True:
            letter = self._peek()
            if letter == "E" and nested and node is not None:
                self._at += 1
                return node
            if letter == "I" and node is not None:
                node = self._keep(Node(node.name, self._arguments("I", depth)))
            elif letter.isdecimal() and (nested or node is None):
                node = self._keep(Node(self._source_name()))
            elif letter == "S" and node is None:
                node = self._reference()
            elif letter == "T" and node is None:
                node = self._keep(Node(self._match(_PARAMETER)))
            elif node is not None and not nested:
                return node
            else:
                raise _UnreadableError

    def _reference(self) -> Node:
        if self._text.startswith("St", self._at):
            self._at += 2
            return self._keep(Node(self._source_name()))
        match = _REFERENCE.match(self._text, self._at)
        if match is None:
            raise _UnreadableError
        self._at = match.end()
        index = int(match[1], 36) + 1 if match[1] else 0
        if index >= len(self._seen):
            raise _UnreadableError
        return self._seen[index]

    def _arguments(self, opening: str, depth: int) -> tuple[Node, ...]:
        self._at += len(opening)
        found = []
        while self._peek() != "E":
            found.append(self._argument(depth + 1))
        self._at += 1
        return tuple(found)

    def _argument(self, depth: int) -> Node:
        """A type, a value or a pack of them."""
        self._made += 1
        if depth > _DEEPEST or self._made > _MOST_NODES:
            raise _UnreadableError
        letter = self._peek()
        if letter == "J":
            return Node("", self._arguments("J", depth))
        if letter == "L":
            self._at += 1
            self._type(depth)
            value = Node(self._match(_VALUE))
            if self._peek() != "E":
                raise _UnreadableError
            self._at += 1
            return value
        return self._type(depth)

    def _source_name(self) -> str:
        length = int(self._match(_LENGTH))
        name = self._text[self._at : self._at + length]
        self._at += length
        return name

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise _UnreadableError
        self._at = match.end()
        return match[0]

    def _keep(self, node: Node) -> Node:
        self._seen.append(node)
        return node

    def _peek(self) -> str:
        if self._at >= len(self._text):
            raise _UnreadableError
        return self._text[self._at]


_LONGEST = 1 << 14
_LARGEST = 1 << 14
_TILE, _RESULT_STRIDE = 1, 6
"""Arguments of CollectiveEpilogue: policy, tile, epilogue tile, C, its stride, D, its stride.

From cutlass/epilogue/collective/sm90_epilogue_tma_warpspecialized.hpp and its siblings.
"""


def cutlass_tile(symbol: str) -> Tile | None:
    """The tile of one block, from the arguments of its epilogue; None for other symbols.

    A result that lies in memory by columns is the transpose of PyTorch's: tokens are second then.
    """
    root = template_of(symbol) if len(symbol) <= _LONGEST else None
    epilogue = (
        next((n for n in nodes(root) if n.name == "CollectiveEpilogue"), None) if root else None
    )
    arguments = list(_flat(epilogue)) if epilogue else []
    if len(arguments) <= _RESULT_STRIDE:
        return None
    sides = [_constant(part) for part in _tuple(arguments[_TILE])]
    if len(sides) != 3 or None in sides:
        return None
    first, second, depth = (side or 0 for side in sides)
    if not all(0 < side <= _LARGEST for side in (first, second, depth)):
        return None
    contiguous = [_constant(part) == 1 for part in _tuple(arguments[_RESULT_STRIDE])][:2]
    by_columns, by_rows = contiguous == [True, False], contiguous == [False, True]
    rows = second if by_columns else first if by_rows or first == second else None
    return Tile("CUTLASS 3", first, second, depth, rows)


def _flat(node: Node) -> Iterator[Node]:
    """Its arguments, those of a pack among them."""
    for argument in node.arguments:
        if argument.name:
            yield argument
        else:
            yield from argument.arguments


def _tuple(node: Node) -> tuple[Node, ...]:
    """The parts of a cute::tuple, also of a pointer to one; empty for something else."""
    if node.name == "P" and node.arguments:
        node = node.arguments[0]
    return tuple(_flat(node)) if node.name == "tuple" else ()


def _constant(node: Node) -> int | None:
    """The number of a cute::C; None for a type whose value only the launch knows."""
    if node.name != "C" or not node.arguments or not node.arguments[0].name.isdecimal():
        return None
    return int(node.arguments[0].name)
