"""From whom a launch that reads no weight takes its owner."""

from __future__ import annotations

import re
from collections.abc import Sequence as Rows
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.dataflow import LaunchSequence, follow, use_of
from tests.rows import each_row

A, B, C, D = 1, 2, 3, 4
UNKNOWN = (-1, -1)

Launch = tuple[tuple[int, int] | None, str]


def flow(*launches: Launch, to_consumer: Rows[int] = (), steps: Rows[int] = (),
         named: dict[int, int] | None = None, fixed: dict[int, tuple[int, int]] | None = None,
         products: Rows[int] = (),
         ) -> list[tuple[int, int]]:  # fmt: skip
    """Component and layer of launches: the proven ones, None for unknown, and what each holds.

    A capital letter is what it surely reads; a `-` before a letter says that it only writes it.
    """
    known = [owner is not None for owner, _ in launches]
    owners = [(fixed or {}).get(n, owner or UNKNOWN) for n, (owner, _) in enumerate(launches)]
    count = len(launches)
    rows = LaunchSequence(
        step=np.array(steps or [0] * count, np.int64),
        component=np.array([component for component, _ in owners], np.int64),
        named=np.array([(named or {}).get(n, -1) for n in range(count)], np.int64),
        layer=np.array([layer for _, layer in owners], np.int64),
        role=np.array([component for component, _ in owners], np.int64),
        settled=np.array(known, bool),
        to_consumer=np.isin(np.arange(count), to_consumer),
        product=np.isin(np.arange(count), products),
    )
    held = [
        (n, ord(word[-1].lower()), -1 if len(word) > 1 else int(word.isupper()))
        for n, (_, holds) in enumerate(launches)
        for word in re.findall("-?[a-zA-Z]", holds)
    ]
    got = follow(rows, pd.DataFrame(held, columns=["holder", "address", "use"], dtype=np.int64))
    found = list(zip(rows.component.tolist(), rows.layer.tolist(), strict=True))
    assert got.tolist() == [before != after for before, after in zip(owners, found, strict=True)]
    return found


PRODUCER, CONSUMER = (A, 3), (B, 3)


ATTENTION, NORM, MAMBA = (B, 0), (A, 0), (C, 0)
WORKSPACE = ((C, 3), "w")

CASES: tuple[tuple[str, Rows[Launch], dict[str, Any], dict[int, tuple[int, int]]], ...] = (
    ("the producer before the consumer",
     [(PRODUCER, "x"), (None, "xy"), (CONSUMER, "y")], {}, {1: PRODUCER}),
    ("who shares an input", [(PRODUCER, "x"), (None, "xy"), (None, "yz"), (CONSUMER, "x")], {},
     {1: PRODUCER, 2: PRODUCER}),
    ("a product, which reads a weight of its own, takes no owner over",
     [(PRODUCER, "x"), (None, "xy"), (None, "yz"), (CONSUMER, "x")], {"products": [1]},
     {1: UNKNOWN, 2: UNKNOWN}),
    ("a conversion works for its consumer",
     [(PRODUCER, "x"), (None, "xy"), (CONSUMER, "y")], {"to_consumer": [1]}, {1: CONSUMER}),
    ("without a known consumer it counts to its producer",
     [(PRODUCER, "x"), (None, "xy"), (CONSUMER, "z")], {"to_consumer": [1]}, {1: PRODUCER}),
    ("what nobody wrote for works for its consumer",
     [(PRODUCER, "x"), (None, "y"), (CONSUMER, "y")], {}, {1: CONSUMER}),
    ("an owner is handed on",
     [(PRODUCER, "a"), (None, "ab"), (None, "bc"), (None, "cd"), (CONSUMER, "d")], {},
     dict.fromkeys((1, 2, 3), PRODUCER)),
    ("the nearest of several producers",
     [((C, 3), "x"), (PRODUCER, "y"), (None, "xyz"), (CONSUMER, "z")], {}, {2: PRODUCER}),
    ("kernel 3 works on what kernel 2 wrote, whose own owner is not yet known",
     [((C, 3), "z"), (PRODUCER, "x"), (None, "xy"), (None, "yz")], {}, {2: PRODUCER, 3: PRODUCER}),
    ("who holds nothing that others hold stays unknown",
     [(PRODUCER, "x"), (None, "y"), (None, ""), (CONSUMER, "z")], {}, {1: UNKNOWN, 2: UNKNOWN}),
    ("the buffer y belonged to layer 2 before; its next user is that of layer 3",
     [((C, 2), "y"), (PRODUCER, "x"), (None, "y"), (CONSUMER, "y")], {}, {2: CONSUMER}),
    ("memory that is used again joins no layers",
     [((C, 2), "y"), (PRODUCER, "x"), (None, "y"), (CONSUMER, "z")], {}, {2: UNKNOWN}),
    ("between two layers it is the producer's",
     [((A, 2), "x"), (None, "xy"), (CONSUMER, "y")], {}, {1: (A, 2)}),
    ("nothing tells whose kernel 2 is, not even kernel 3 at first; the one before holds y",
     [(PRODUCER, "x"), (CONSUMER, "y"), (None, "q"), (None, "qxy")], {},
     {2: CONSUMER, 3: CONSUMER}),
    ("steps share nothing", [(PRODUCER, "x"), (None, "x")], {"steps": [0, 1]}, {1: UNKNOWN}),
    ("a workspace of more than a third of the kernels tells nothing",
     [WORKSPACE, WORKSPACE, WORKSPACE, (PRODUCER, "x"), (None, "w"), (CONSUMER, "y")], {},
     {4: UNKNOWN}),
    ("what two of seven hold is none",
     [WORKSPACE, (PRODUCER, "x"), (None, "w"), *[(CONSUMER, "y")] * 4], {}, {2: (C, 3)}),
    ("a name is more exact than a neighbour",
     [(PRODUCER, "x"), (None, "xy"), (CONSUMER, "y")], {"named": {1: D}}, {1: (D, 3)}),
    ("rope reads a table that serves all layers, so only its layer is open",
     [(PRODUCER, "x"), (None, "xy"), (CONSUMER, "y")], {"fixed": {1: (D, -1)}}, {1: (D, 3)}),
    ("what has no layer has none to give",
     [((A, -1), "x"), (None, "xy"), (CONSUMER, "y")], {"fixed": {1: (D, -1)}}, {1: (D, 3)}),
    ("a layer that a range told is kept",
     [((A, 2), "x"), (None, "xy"), (CONSUMER, "y")], {"fixed": {1: (-1, 3)}}, {1: CONSUMER}),
    ("Falcon-H1 reads what a norm wrote, and writes where attention's data was",
     [(NORM, "x"), (ATTENTION, "y"), (None, "Xy"), (MAMBA, "y")], {}, {2: NORM}),
    ("where nothing tells what is read, the nearest one counts",
     [(NORM, "x"), (ATTENTION, "y"), (None, "xy"), (MAMBA, "y")], {}, {2: ATTENTION}),
    ("the memory of most kernels is none of a workspace if it is surely read",
     [(NORM, "x"), (ATTENTION, "xy"), (None, "Xy"), (MAMBA, "xy"), (MAMBA, "x"), (MAMBA, "x")], {},
     {2: ATTENTION}),
    ("it reads what belongs to a layer that does not fit, though what it writes fits",
     [((A, 7), "x"), ((B, 3), "y"), (None, "Xy"), ((C, 3), "z")], {}, {2: UNKNOWN}),
    ("what lacks only a layer takes it from whoever fits",
     [((A, 7), "x"), ((B, 3), "y"), (None, "Xy"), ((C, 3), "z")], {"fixed": {2: (D, -1)}},
     {2: (D, 3)}),
    ("what is only written tells nothing of who held it before",
     [(PRODUCER, "x"), (None, "-x"), (CONSUMER, "y")], {}, {1: UNKNOWN}),
    ("before the first proven launch only that one's layer fits",
     [(None, "x"), (PRODUCER, "y"), ((C, 1), "x")], {}, {0: UNKNOWN}),
    ("nor does any layer fit behind what has none",
     [((D, -1), "z"), (None, "x"), (PRODUCER, "y"), ((C, 1), "x")], {}, {1: UNKNOWN}),
    ("it works for who reads it", [(PRODUCER, "x"), (None, "-x"), (CONSUMER, "x")], {},
     {1: CONSUMER}),
    ("who only writes it is no consumer", [(PRODUCER, "y"), (None, "x"), (CONSUMER, "-x")], {},
     {1: UNKNOWN}),
    ("in place, it is read as well", [(PRODUCER, "x"), (None, "-xX"), (CONSUMER, "y")], {},
     {1: PRODUCER}),
)  # fmt: skip


@each_row("what, launches, given, wanted", CASES)
def test_whose_launches_are(
    what: str, launches: Rows[Launch], given: dict[str, Any], wanted: dict[int, tuple[int, int]]
) -> None:
    found = flow(*launches, **given)
    assert {n: found[n] for n in wanted} == wanted, what


def test_what_arguments_are_for() -> None:
    names = ("triton_poi_fused_mul_0",
             "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>(int)",
             "_selective_scan_update_kernel", "triton_poi_fused_zeros_1",
             "triton_poi_fused_0")  # fmt: skip
    words = [(0, 0), (1, 0), (2, 0), (2, 8), (2, 16)]
    arguments = pd.DataFrame(words * 5, columns=["argument", "offset"])
    use = use_of(arguments, np.repeat(np.arange(5), len(words)), names).reshape(5, -1)
    assert use.tolist() == [[1, 0, 0, 0, 0], [0, 0, -1, 1, 1], [0] * 5, [-1] * 5, [1, 0, 0, 0, 0]]
