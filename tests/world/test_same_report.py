"""What changes nothing that a report shows, and what changes only what it has to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_prof.analyzers.ranks.rank_clocks import wanted_shifts
from spark_prof.datasets.opened import opened
from spark_prof.exporters.shared_recording import share
from spark_prof.exporters.table_folder import Selection, write_tables
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.merge_ranks import join_bundles, move_clocks, open_parts
from tests.world.reports import Json, differences, figures, leaves, recorded, report_of
from tests.world.strategies import worlds
from tests.world.truth import Truth
from tests.world.world import NAMES, World

_IN_ORDER = ("modules", "layers", "tensors", "engine")
"""Tables whose order is that of the model, or of the scheduler's batches."""


def permuted(bundle: Bundle, seed: int) -> Bundle:
    """The bundle, its tables with their rows in another order."""
    random = np.random.default_rng(seed)
    for name in bundle.meta.tables:
        if name.partition("-")[0] not in _IN_ORDER:
            rows = pq.read_table(bundle.path / name)
            pq.write_table(rows.take(pa.array(random.permutation(len(rows)))), bundle.path / name)
    return Bundle(bundle.path)


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(worlds(), st.integers(1, 99))
def test_other_shapes_of_the_recording(world: World, seed: int) -> None:
    """Written in another order, exported as tables and read again, or shared."""
    with recorded(world) as (bundle, folder):
        plain = figures(bundle)
        exported, shared = folder / "exported", folder / "shared.zip"
        exported.mkdir()
        write_tables(bundle, Selection(), exported, "parquet")
        assert differences(plain, figures(Bundle(exported))) == []
        share(bundle, shared)
        with opened(str(shared)) as again:
            assert differences(plain, figures(again)) == []
        assert differences(plain, figures(permuted(bundle, seed))) == []
    assert differences(plain, report_of(replace(world, shuffled=seed))) == []


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(worlds(ranks=2, phases=("decode",)), st.sampled_from([0, 3_600_000_000_000]))
def test_two_hosts_merged(world: World, late: int) -> None:
    """A clock that is ahead changes no figure of a rank, and is told."""
    whole = replace(world, clocks=(0, late))
    with recorded(whole) as (bundle, folder):
        plain = [figures(bundle, rank) for rank in range(2)]
        parts = [whole.bundle(folder / f"part{rank}", [rank]).path for rank in range(2)]
        (folder / "merged").mkdir()
        joined = join_bundles(open_parts(parts), folder / "merged")
        assert [figures(joined, rank) for rank in range(2)] == plain
        found = figures(move_clocks(joined, *wanted_shifts(joined)), 1)
        for table in ("components", "layers", "kernels", "copies"):
            assert differences(of_all_steps(plain[1][table]), of_all_steps(found[table])) == []


def of_all_steps(table: Any) -> Json:
    """Its figures without those of the typical step, which may be another one in another window."""
    names = ("per_step", "per_token", "share")
    return {path: value for path, value in leaves(table) if not any(n in path for n in names)}


@pytest.mark.slow
@given(worlds(), st.sampled_from([2, 3]))
def test_every_time_is_as_many_times_as_long(world: World, factor: int) -> None:
    plain, longer = report_of(world), report_of(replace(world, tick=factor * world.tick))
    assert differences(_scalable(plain), _scalable(longer), factor) == []


def _scalable(found: Json) -> Json:
    """Without a sentence, and what is held against a time that does not grow, as a small kernel."""
    left_out = ("shapes", "roofline", "verdict")
    return {key: value for key, value in found.items() if key not in left_out}


@pytest.mark.slow
@given(worlds(overlaps=False), st.data())
def test_a_gap_is_no_time_of_a_kernel(world: World, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(world.steps) - 1))
    place = data.draw(st.integers(1, len(world.steps[number].launches) - 1))
    ticks = data.draw(st.integers(1, 30))
    steps = [replace(one, ahead=0) for one in world.steps]
    world = world.with_steps(steps)
    plain, later = report_of(world), report_of(world.with_gap(number, place, ticks))
    for table in ("components", "layers", "kernels", "copies"):
        assert differences(of_all_steps(plain[table]), of_all_steps(later[table])) == []
    us = ticks * world.tick / 1e3
    for name in ("step_us", "gap_us"):
        assert abs(later["time"][name] - plain["time"][name] - us) < 2e-3
    for name in ("sum_us", "union_us", "busy_us", "copies_us", "overlap_us", "residual_us"):
        assert abs(later["time"][name] - plain["time"][name]) < 2e-3


@pytest.mark.slow
@given(worlds(), st.sampled_from(["gemm", "moe", "flash", "quantize"]))
def test_an_unknown_name_loses_its_labels_only(world: World, name: str) -> None:
    plain, unnamed = report_of(world), report_of(world.renamed(NAMES[name], "never_seen_kernel"))
    for table in ("books", "components", "steps", "time", "tokens"):
        assert differences(plain[table], unnamed[table]) == []
    layers = [[{**row, "basis": ""} for row in found["layers"]] for found in (plain, unnamed)]
    assert differences(*layers) == []
    rows = [row for row in unnamed["kernels"] if row["name"] == "never_seen_kernel"]
    assert all(row["engine"] == "unknown" and row["precision"] is None for row in rows)
    assert unnamed["conversions"]["us"] <= plain["conversions"]["us"] + 1e-6


@pytest.mark.slow
@given(worlds(overlaps=False, phases=("decode",)))
def test_conversions_are_what_only_changes_a_format(world: World) -> None:
    found, truth = report_of(world)["conversions"], Truth(world)
    known = [NAMES[name] for name in ("quantize", "cast")]
    times = {key: us for key, (_, us) in truth.by_name().items() if key[0] in known}
    assert abs(found["us"] - sum(times.values())) < 2e-3
    charged: dict[tuple[str, str], float] = {}
    for row in found["charged"]:
        key = row["name"], row["component"]
        charged[key] = charged.get(key, 0.0) + row["us"]
        assert row["gemm"] is (row["consumer"] in (NAMES["gemm"], NAMES["moe"]))
        assert row["layers"] == world.layers
    assert charged.keys() == times.keys()
    assert all(abs(charged[key] - us) < 2e-3 for key, us in times.items())
