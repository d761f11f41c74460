"""From whom a launch that reads no weight takes its owner."""

from __future__ import annotations

import re
from collections.abc import Sequence as Rows

import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers.attribution.dataflow import Sequence, follow, use_of

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
    rows = Sequence(
        step=np.array(steps or [0] * count, np.int64),
        component=np.array([component for component, _ in owners], np.int64),
        named=np.array([(named or {}).get(n, -1) for n in range(count)], np.int64),
        layer=np.array([layer for _, layer in owners], np.int64),
        role=np.array([component for component, _ in owners], np.int64),
        known=np.array(known, bool),
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


def test_the_producer_before_the_consumer() -> None:
    rows = flow((PRODUCER, "x"), (None, "xy"), (CONSUMER, "y"))
    assert rows[1] == PRODUCER


def test_a_product_takes_no_owner_over() -> None:
    """It reads a weight of its own, whoever shares its input."""
    launches = (PRODUCER, "x"), (None, "xy"), (None, "yz"), (CONSUMER, "x")
    assert flow(*launches)[1:3] == [PRODUCER, PRODUCER]
    assert flow(*launches, products=[1])[1:3] == [UNKNOWN, UNKNOWN]


def test_a_conversion_works_for_its_consumer() -> None:
    rows = flow((PRODUCER, "x"), (None, "xy"), (CONSUMER, "y"), to_consumer=[1])
    assert rows[1] == CONSUMER
    # Without a consumer whose owner is known it counts to its producer.
    rows = flow((PRODUCER, "x"), (None, "xy"), (CONSUMER, "z"), to_consumer=[1])
    assert rows[1] == PRODUCER


def test_what_nobody_wrote_for_works_for_its_consumer() -> None:
    assert flow((PRODUCER, "x"), (None, "y"), (CONSUMER, "y"))[1] == CONSUMER


def test_an_owner_is_handed_on() -> None:
    rows = flow((PRODUCER, "a"), (None, "ab"), (None, "bc"), (None, "cd"), (CONSUMER, "d"))
    assert rows[1:4] == [PRODUCER] * 3


def test_the_nearest_of_several_producers() -> None:
    rows = flow(((C, 3), "x"), (PRODUCER, "y"), (None, "xyz"), (CONSUMER, "z"))
    assert rows[2] == PRODUCER


def test_a_neighbour_s_owner_is_waited_for() -> None:
    """Kernel 3 works on what kernel 2 wrote, whose own owner is not yet known."""
    rows = flow(((C, 3), "z"), (PRODUCER, "x"), (None, "xy"), (None, "yz"))
    assert rows[2:] == [PRODUCER] * 2


def test_who_holds_nothing_that_others_hold_stays_unknown() -> None:
    assert flow((PRODUCER, "x"), (None, "y"), (None, ""), (CONSUMER, "z"))[1:3] == [UNKNOWN] * 2


def test_memory_that_is_used_again_joins_no_layers() -> None:
    """The buffer y belonged to layer 2 before; its next user is that of layer 3."""
    rows = flow(((C, 2), "y"), (PRODUCER, "x"), (None, "y"), (CONSUMER, "y"))
    assert rows[2] == CONSUMER
    rows = flow(((C, 2), "y"), (PRODUCER, "x"), (None, "y"), (CONSUMER, "z"))
    assert rows[2] == UNKNOWN


def test_between_two_layers_it_is_the_producer_s() -> None:
    rows = flow(((A, 2), "x"), (None, "xy"), (CONSUMER, "y"))
    assert rows[1] == (A, 2)


def test_an_unknown_neighbour_is_looked_beyond_in_the_end() -> None:
    """Nothing tells whose kernel 2 is, not even kernel 3 at first; the one before holds y."""
    rows = flow((PRODUCER, "x"), (CONSUMER, "y"), (None, "q"), (None, "qxy"))
    assert rows[2:] == [CONSUMER] * 2


def test_steps_share_nothing() -> None:
    assert flow((PRODUCER, "x"), (None, "x"), steps=[0, 1])[1] == UNKNOWN


def test_a_workspace_of_more_than_a_third_of_the_kernels_tells_nothing() -> None:
    others = [((C, 3), "w")] * 3
    rows = flow(*others, (PRODUCER, "x"), (None, "w"), (CONSUMER, "y"))
    assert rows[4] == UNKNOWN
    rows = flow(*others[:1], (PRODUCER, "x"), (None, "w"), *[(CONSUMER, "y")] * 4)
    assert rows[2] == (C, 3)


@pytest.mark.parametrize("component", [D, -1])
def test_a_name_is_more_exact_than_a_neighbour(component: int) -> None:
    rows = flow((PRODUCER, "x"), (None, "xy"), (CONSUMER, "y"), named={1: component})
    assert rows[1] == (component if component >= 0 else A, 3)


def test_rope_takes_the_layer_alone() -> None:
    """It reads a table that serves all layers, so only its layer is open."""
    rows = flow((PRODUCER, "x"), (None, "xy"), (CONSUMER, "y"), fixed={1: (D, -1)})
    assert rows[1] == (D, 3)
    # What has no layer has none to give.
    rows = flow(((A, -1), "x"), (None, "xy"), (CONSUMER, "y"), fixed={1: (D, -1)})
    assert rows[1] == (D, 3)


def test_a_layer_that_a_range_told_is_kept() -> None:
    rows = flow(((A, 2), "x"), (None, "xy"), (CONSUMER, "y"), fixed={1: (-1, 3)})
    assert rows[1] == CONSUMER


def test_what_a_kernel_surely_reads_decides_whose_it_is() -> None:
    """As in Falcon-H1: it reads what a norm wrote, and writes where attention's data was."""
    norm, attention, mamba = (A, 0), (B, 0), (C, 0)
    rows = flow((norm, "x"), (attention, "y"), (None, "Xy"), (mamba, "y"))
    assert rows[2] == norm
    # Where nothing tells, the nearest one counts.
    assert flow((norm, "x"), (attention, "y"), (None, "xy"), (mamba, "y"))[2] == attention
    # The memory of most kernels is none of a workspace if it is surely read.
    rows = flow((norm, "x"), (attention, "xy"), (None, "Xy"), (mamba, "xy"), (mamba, "x"),
                (mamba, "x"))  # fmt: skip
    assert rows[2] == attention


def test_what_it_reads_belongs_to_a_layer_that_does_not_fit() -> None:
    """Then it stays unknown, though the memory that it writes fits."""
    rows = flow(((A, 7), "x"), ((B, 3), "y"), (None, "Xy"), ((C, 3), "z"))
    assert rows[2] == UNKNOWN
    # What lacks only a layer takes it from whoever fits.
    rows = flow(((A, 7), "x"), ((B, 3), "y"), (None, "Xy"), ((C, 3), "z"), fixed={2: (D, -1)})
    assert rows[2] == (D, 3)


def test_what_is_only_written_tells_nothing_of_who_held_it_before() -> None:
    assert flow((PRODUCER, "x"), (None, "-x"), (CONSUMER, "y"))[1] == UNKNOWN
    assert flow((PRODUCER, "x"), (None, "-x"), (CONSUMER, "x"))[1] == CONSUMER
    # Nor is who only writes it a consumer.
    assert flow((PRODUCER, "y"), (None, "x"), (CONSUMER, "-x"))[1] == UNKNOWN
    # In place, it is read as well.
    assert flow((PRODUCER, "x"), (None, "-xX"), (CONSUMER, "y"))[1] == PRODUCER


def test_what_arguments_are_for() -> None:
    names = ("triton_poi_fused_mul_0",
             "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>(int)",
             "_selective_scan_update_kernel")  # fmt: skip
    words = [(0, 0), (1, 0), (2, 0), (2, 8), (2, 16)]
    arguments = pd.DataFrame(words * 3, columns=["argument", "offset"])
    use = use_of(arguments, np.repeat(np.arange(3), len(words)), names).reshape(3, -1)
    assert use.tolist() == [[1, 0, 0, 0, 0], [0, 0, -1, 1, 1], [0] * 5]
