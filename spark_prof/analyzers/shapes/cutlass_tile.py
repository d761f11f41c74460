"""The tile of a CUTLASS 3 kernel whose symbol nothing demangled."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.shapes.mangled import Node, nodes, template_of
from spark_prof.analyzers.shapes.model import Tile

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
