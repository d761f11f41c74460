"""Tiles of symbols that libstdc++ gives no name: real ones, cut ones and hostile ones.

symbols.csv holds kernels of the vLLM 0.33.0 wheel, with sides and strides as c++filt -r shows them.
"""

from __future__ import annotations

import csv
import random
from pathlib import Path

from spark_prof.analyzers.shapes.cutlass_tile import Node, nodes, template_of
from spark_prof.analyzers.shapes.tiles import tile_of
from spark_prof.traces.demangle import demangler
from tests.rows import each_row

with open(Path(__file__).with_name("symbols.csv"), encoding="utf-8") as _file:
    SYMBOLS = [tuple(row.values()) for row in csv.DictReader(_file)]

LONGEST = max((row[0] for row in SYMBOLS), key=len)


@each_row("row", SYMBOLS)
def test_the_tile_of_a_symbol(row: tuple[str, ...]) -> None:
    symbol, *numbers = row
    found = tile_of(symbol)
    assert found is not None
    assert [found.first, found.second, found.depth, found.token_rows] == list(map(int, numbers))


def test_nothing_else_could_name_them() -> None:
    demangle = demangler()
    assert [demangle(symbol) for symbol, *_ in SYMBOLS] == [symbol for symbol, *_ in SYMBOLS]


def written(node: Node) -> str:
    """A node as C++ would have it, without its namespaces."""
    inner = ",".join(written(argument) for argument in node.arguments)
    return f"{node.name}<{inner}>" if node.arguments else node.name


@each_row(
    ("symbol", "means"),
    [
        ("_Z1fIN2ns1CILi128EEEEvT_", "f<C<128>>"),
        ("_Z1fIN2ns1CILi128EEES2_EvT_", "f<C<128>,C<128>>"),  # f is S_, ns S0_, ns::C S1_
        ("_Z1fIN2ns1CILi128EEENS0_1DIiEEEvT_", "f<C<128>,D<i>>"),
        ("_Z1fIN2ns1CILi128EEES1_ILi64EEEvT_", "f<C<128>,C<64>>"),
        ("_Z1fIJiPKfEEvT_", "f<<i,P<K<f>>>>"),
        ("_ZN2ns1fILb1ELin3EEEvv", "f<1,n3>"),
        ("_Z1fISt5tupleEvT_", "f<tuple>"),
    ],
)
def test_a_short_symbol(symbol: str, means: str) -> None:
    root = template_of(symbol)
    assert root is not None
    assert written(root) == means


def test_every_cut_is_unreadable_or_says_no_more() -> None:
    whole = template_of(LONGEST)
    assert whole is not None
    names = [node.name for node in nodes(whole)]
    for length in range(len(LONGEST)):
        found = template_of(LONGEST[:length])
        if found is not None:
            assert [node.name for node in nodes(found)] == names


def test_noise_in_a_symbol_ends() -> None:
    rng = random.Random(4)
    for _ in range(500):
        letters = list(LONGEST)
        for _ in range(rng.randint(1, 30)):
            letters[rng.randrange(2, len(letters))] = rng.choice("NEIJLSTPK_0123456789abcZX\x00é٣")
        found = tile_of("".join(letters))
        assert found is None or 0 < found.first <= 1 << 14


@each_row(
    "symbol",
    ["_Z", "_ZN", "_Z1", "_Z9999x", "_ZS_", "_ZSZZZZ_", "_Z1fI" + "J" * 9000, "_Z1fI" + "P" * 9000,
     "_Z1fI" + "N1aI" * 4000, "_Z1f" + "IiE" * 9000, "_Z1fI" + "i" * 90_000 + "E",
     "_Z1fILi" + "9" * 5000 + "EE", "_Z1fI" + "1aI" * 4000, "_ZN" + "1a" * 9000],
)  # fmt: skip
def test_hostile_symbols(symbol: str) -> None:
    assert tile_of(symbol) is None
    assert tile_of(symbol + "E") is None


def test_what_refers_to_itself_many_times_is_not_expanded() -> None:
    # Each template holds the one before twice: 2 to the power of 60, written out.
    parts = ["_Z1fI1aIiE"]
    parts += [f"1bIS{number}_S{number}_E" for number in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    found = template_of("".join(parts) + "Ev")
    assert found is None or len(list(nodes(found))) < 200
