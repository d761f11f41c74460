"""Where each rank of a run stands, for all sizes of its parallel groups."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_prof.analyzers.rank_layout import layout_of, parallel_of
from spark_prof.traces.bundle import Bundle

MANY = settings(max_examples=20 * settings().max_examples)


def recorded(ranks: list[int], facts: dict[str, Any], *, experts: bool = False) -> Bundle:
    """A recording of these ranks, all of which tell the same of the run."""
    modules = pd.DataFrame({"component": ["experts" if experts else "mlp"]})
    return cast(Bundle, SimpleNamespace(
        ranks=ranks, facts=lambda rank: facts, frame=lambda name, rank, columns: modules
    ))  # fmt: skip


def sizes(tensor: int, pipeline: int = 1, data: int = 1) -> dict[str, Any]:
    return {"parallel": {"tensor": tensor, "pipeline": pipeline, "data": data}}


@MANY
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.booleans(), st.data())
def test_each_rank_is_in_the_team_of_its_place(
    tensor: int, pipeline: int, data: int, experts: bool, drawn: st.DataObject
) -> None:
    places = {
        (replica * pipeline + stage) * tensor + place: (replica, stage)
        for replica in range(data) for stage in range(pipeline) for place in range(tensor)
    }  # fmt: skip
    ranks = sorted(drawn.draw(st.sets(st.sampled_from(sorted(places)), min_size=1)))
    bundle = recorded(ranks, sizes(tensor, pipeline, data), experts=experts)
    layout = layout_of(bundle)
    assert [rank for team in layout.teams for rank in team.ranks] == ranks
    for team in layout.teams:
        assert {places[rank] for rank in team.ranks} == {(team.replica, team.stage)}
        assert team.size == tensor
    assert sorted((*layout.missing, *ranks)) == sorted(places)
    assert layout.output_ranks == {
        min(rank for rank, place in places.items() if place == (replica, pipeline - 1))
        for replica in range(data)
    }
    assert layout.crosses_replicas is (experts and data > 1)
    told = parallel_of(bundle, ranks[0])
    assert (told.world, told.shape) == (len(places), (len(places), tensor, pipeline, data))
    words = [f"tensor parallel {tensor}"] * (tensor > 1)
    words += [f"pipeline parallel {pipeline}"] * (pipeline > 1) + [f"{data} replicas"] * (data > 1)
    assert told.described == (", ".join(words) or "1 rank")


@MANY
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 30))
def test_replicas_that_know_nothing_of_each_other_are_as_many_as_have_ranks(
    tensor: int, pipeline: int, highest: int
) -> None:
    layout = layout_of(recorded([0, highest] if highest else [0], sizes(tensor, pipeline)))
    assert layout.data == highest // (tensor * pipeline) + 1
    assert (layout.told_replicas, layout.crosses_replicas) == (1, False)


@pytest.mark.parametrize("last", [0, 1, 5])
def test_without_sizes_all_ranks_are_one_team(last: int) -> None:
    layout = layout_of(recorded([*{0, last}], {}))
    told = parallel_of(recorded([*{0, last}], {}), 0)
    assert (layout.tensor, layout.sizes_known) == (last + 1, False)
    assert (told.tensor, told.pipeline, told.data) == (None, None, None)
    assert told.described == f"{last + 1} rank{'s' if last else ''}"
    for world, size in ((last + 1, last + 1), (65536, 65536), (65537, last + 1), ("9", last + 1)):
        assert layout_of(recorded([*{0, last}], {"world_size": world})).tensor == size


@pytest.mark.parametrize(
    ("tensor", "pipeline", "known"),
    [(65535, 1, True), (65536, 1, False), (256, 256, True), (256, 257, False), (0, 1, False)],
)
def test_no_run_has_more_ranks_than_are_written(tensor: int, pipeline: int, known: bool) -> None:
    assert layout_of(recorded([0], sizes(tensor, pipeline))).sizes_known is known
