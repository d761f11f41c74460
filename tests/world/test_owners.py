"""Who owns each kernel of a world: what is true, and never more than was recorded."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.instants import with_own_starts
from spark_prof.traces.bundle import Bundle
from spark_prof.vocabulary import BASIS_CLASSES
from tests.support import ORIGIN
from tests.world.reports import recorded
from tests.world.strategies import worlds
from tests.world.truth import Truth
from tests.world.world import World, owner_of

_PROVEN = {"proven", "derived"}


def placed(bundle: Bundle, world: World, rank: int = 0) -> list[tuple[object, ...]]:
    """Each row: step, name, start and end in ticks, component, layer and class of its basis."""
    rows = with_own_starts(place_kernels(bundle, rank, ["stream"]))
    classes = {basis: kind for kind, bases in BASIS_CLASSES.items() for basis in bases}
    ahead = world.clocks[rank] if world.clocks else 0
    return [
        (row.step, str(row.name), (row.start_ns - ORIGIN - ahead) / world.tick,
         (row.end_ns - ORIGIN - ahead) / world.tick, str(row.component), row.layer,
         classes[str(row.basis)])
        for row in rows.itertuples(index=False)
        if row.step >= 0
    ]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=2 * settings().max_examples)
@given(worlds(ranks=2), st.sampled_from([0, 1]))
def test_each_kernel_has_its_owner(world: World, rank: int) -> None:
    with recorded(world) as (bundle, _):
        found = placed(bundle, world, rank)
    wanted = [
        (one.step, one.launch.name, one.start, one.end, *owner_of(one.launch), "proven")
        for one in Truth(world, rank).ran
    ]
    assert Counter(found) == Counter(wanted)


@settings(max_examples=2 * settings().max_examples)
@given(worlds(), st.data())
def test_ranges_that_are_missing_invent_no_owner(world: World, data: st.DataObject) -> None:
    paths = [module["path"] for module in world.modules]
    hidden = data.draw(st.frozensets(st.sampled_from(paths)))
    with recorded(replace(world, hidden=hidden)) as (bundle, _):
        found = placed(bundle, world)
    truth = {(e.step, e.launch.name, e.start, e.end): owner_of(e.launch) for e in Truth(world).ran}
    assert len(found) == len(Truth(world).ran)
    for *key, component, layer, basis in found:
        true_component, true_layer = truth[tuple(key)]
        if basis in _PROVEN:
            assert component == true_component, (key, component)
        assert layer in (true_layer, -1), (key, layer)
