"""How long pieces are, told what their steps cost."""

from __future__ import annotations

from spark_prof.profiler.process import PauseLog
from spark_prof.profiler.window import PieceLength
from tests.rows import each_row


def settled(costs: list[float], fixed_s: float = 0.0) -> list[int]:
    """The length of each piece, where a step of the n-th piece costs the n-th of so many s."""
    length, found = PieceLength(256, fixed_s), []
    for cost in costs:
        found.append(length.steps)
        length.wrote(length.steps, fixed_s + length.steps * cost)
    return found


@each_row("cost", [0.00001, 0.0005, 0.003, 0.0149, 0.015, 0.3])
def test_a_piece_takes_as_long_as_it_may(cost: float) -> None:
    found = settled([cost] * 20)
    assert found[0] == 1
    assert found[-1] == max(1, min(256, int(0.015 / cost)))
    assert max(found) == found[-1]


def test_one_slow_piece_changes_nothing_and_lasting_slowness_does() -> None:
    usual = settled([0.0015] * 10)
    assert settled([*[0.0015] * 6, 0.2, *[0.0015] * 3]) == usual
    assert settled([*[0.0015] * 6, *[0.007] * 4])[-1] == 2


@each_row(("fixed_s", "steps"), [(0.001, 14), (0.005, 10), (0.0075, 7), (0.05, 50), (3.0, 256)])
def test_what_every_piece_costs_makes_none_shorter(fixed_s: float, steps: int) -> None:
    """On a slow disk a piece takes twice what an empty one does, not one step for ever."""
    assert settled([0.001] * 20, fixed_s)[-1] in (steps - 1, steps)


def test_a_backend_whose_cost_does_not_grow_has_the_pieces_that_were_asked_for() -> None:
    length = PieceLength(256)
    length.wrote(256, 3.0)
    assert length.steps == 256


def test_pauses_are_counted_where_a_step_waited() -> None:
    pauses = PauseLog()
    assert pauses.end() == 0
    for _ in range(2):
        with pauses.measured():
            pass
    first = pauses.end()
    with pauses.measured():
        pass
    pauses.forget()
    assert pauses.end() == 0
    assert first > 0
    assert pauses.figures() == {"count": 1, "total_ns": first, "longest_ns": first}
