"""Planted savings are found where they were planted, and add up to the gain."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_prof.analyzers.comparing.attribute_gain import summarize
from spark_prof.analyzers.comparing.swap_attribution import (
    FOR_THE_HOST,
    Attribution,
    ComponentGain,
    SwapOnSide,
    Untraced,
)
from spark_prof.analyzers.comparing.swapped_steps import tracing_cost
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle
from tests.rows import each_row

from .swapped_recordings import (
    COST,
    LAYERS,
    STEPS,
    Ran,
    attribute,
    changed,
    record,
    stock,
    swaps,
    untraced_ns,
    with_experts,
)

LM_HEAD = [SwapOnSide("b", "lm_head", "lm_head", "mxfp4")]


def by_component(found: Attribution) -> dict[str, ComponentGain]:
    return {row.component: row for row in found.components}


def test_a_planted_gain_is_found_component_by_component(tmp_path: Path) -> None:
    found = attribute(tmp_path, stock(), with_experts(stock()))
    rows = by_component(found)
    # Of 32 us of experts and 3 us of top-k with 4 gaps, 18 us with one gap are left.
    assert rows["experts"].saved_us == pytest.approx(LAYERS * (32.9 - 17.0))
    assert rows["router"].saved_us == pytest.approx(LAYERS * (3.3 - 1.3))
    still = [row for row in found.components if row.component not in ("experts", "router")]
    assert [row.saved_us for row in still] == pytest.approx([0] * len(still), abs=1e-9)
    assert {row.component for row in found.components if row.touched} == {"experts", "router"}
    assert (rows["experts"].kernels_a, rows["experts"].kernels_b) == (3 * LAYERS, 2 * LAYERS)
    assert found.tracing_us == pytest.approx(COST / 1e3)
    assert found.residual_us == pytest.approx(0, abs=1e-6)
    assert found.adds_up is True
    assert found.moved == ()
    assert {proof.ran for proof in found.proofs} == {"ran"}
    assert found.appeared == found.vanished == ()
    assert found.batch_size == 1
    assert not any("waited" in note or "host" in note for note in found.notes)


def test_all_tables_add_up_to_the_step(tmp_path: Path) -> None:
    wobble = random.Random(5)
    a, b = stock(), with_experts(stock())
    found = attribute(tmp_path, a, b, extra=lambda *_: wobble.randrange(200))
    gap = by_component(found)[FOR_THE_HOST]
    for name, side in (("a", found.a), ("b", found.b)):
        for table in (found.components, found.layers):
            total = sum(getattr(row, f"{name}_us") for row in table)
            assert total == pytest.approx(side.corrected_us)
        kernels = sum(getattr(row, f"{name}_us") for row in found.kernels)
        assert kernels + getattr(gap, f"{name}_us") == pytest.approx(side.corrected_us)
    assert sum(row.saved_us for row in found.components) == pytest.approx(found.explained_us)
    assert found.a.corrected_us == pytest.approx(untraced_ns(a) / 1e3)
    assert found.gain_us is not None
    assert found.residual_us == pytest.approx(found.gain_us - found.explained_us)
    assert found.residual_share == pytest.approx(found.residual_us / found.gain_us)


@each_row("cost", [0, 50, 400, 3000])
def test_what_tracing_costs_is_found_and_taken_off_both_sides(tmp_path: Path, cost: int) -> None:
    a, b = stock(), with_experts(stock())
    found = attribute(tmp_path, a, b, cost=cost)
    assert found.tracing_us == pytest.approx(cost / 1e3, abs=1e-6)
    assert found.a.traced_us - found.a.corrected_us == pytest.approx(found.a.gaps * cost / 1e3)
    assert found.b.traced_us - found.b.corrected_us == pytest.approx(found.b.gaps * cost / 1e3)
    # Experts that start early have two gaps less a layer, which cost nothing to trace.
    assert found.a.gaps - found.b.gaps == 3 * LAYERS
    assert found.b.corrected_us == pytest.approx(untraced_ns(b) / 1e3)


@pytest.mark.parametrize(("off", "adds_up"), [(0.0, True), (1.0, True), (3.0, False)])
def test_the_residual_is_said_and_not_fitted(tmp_path: Path, off: float, adds_up: bool) -> None:
    """Side b is slower than its recording says: that is no component's."""
    a, b = stock(), with_experts(stock())
    untraced = Untraced(untraced_ns(a) / 1e3, untraced_ns(b) / 1e3 + off)
    found = summarize(
        record(tmp_path / "a", a), record(tmp_path / "b", b), swaps("moe", "layers.{}"), untraced
    )
    assert found.residual_us == pytest.approx(-off)
    assert found.adds_up is adds_up
    assert found.b.corrected_us == pytest.approx(untraced_ns(b) / 1e3)


@each_row(("ns", "moved"), [(13_500, [("attention", -1.5 * LAYERS)]), (12_500, [])])
def test_a_component_that_moved_by_a_hundredth_of_the_step_is_found(
    tmp_path: Path, ns: int, moved: list[tuple[str, float]]
) -> None:
    b = changed(with_experts(stock()), "self_attn.attn", ns=ns)
    found = attribute(tmp_path, stock(), b)
    assert [(row.component, round(row.saved_us, 6)) for row in found.moved] == moved
    assert by_component(found)["attention"].saved_us == pytest.approx(LAYERS * (12_000 - ns) / 1e3)
    assert found.adds_up


def test_what_scatters_more_than_it_moved_has_not(tmp_path: Path) -> None:
    """1.5 us more in each layer, of a component whose steps lie 100 us apart."""
    chance = random.Random(4)
    b = changed(stock(), "self_attn.attn", ns=13_500)
    where = next(n for n, row in enumerate(stock()) if "self_attn.attn" in row.module)

    def extra(number: int, index: int) -> int:
        return chance.randrange(100_000) if index == where else 0

    found = attribute(tmp_path, stock(), b, LM_HEAD, extra=extra)
    row = by_component(found)["attention"]
    assert 0.01 * found.a.corrected_us < abs(row.saved_us) < row.noise_us
    assert found.moved == ()


def test_layers_and_kernels_say_where_and_a_hiccup_swings_nothing(tmp_path: Path) -> None:
    b = with_experts(stock(), layers=[1])
    b = [*changed(b, "self_attn.attn", name="flash_fwd_splitkv"), Ran("odd", "nobody_knows", 9_000)]

    def extra(number: int, index: int) -> int:
        return 900_000 if number % 7 == 3 and index == 2 else 0

    found = attribute(tmp_path, stock(), b, swaps("moe", "x.{}")[:1], extra=extra)
    saved = {(row.layer, row.component): row.saved_us for row in found.layers if row.saved_us > 0.1}
    assert saved == {(1, "router"): pytest.approx(2.0), (1, "experts"): pytest.approx(15.9)}
    assert [row.layer for row in found.layers][:2] == [None, None]
    gate_up = next(row for row in found.kernels if row.name == "gate_up")
    assert (gate_up.component, gate_up.calls_a, gate_up.calls_b) == ("experts", 0, 1)
    assert (gate_up.a_us, gate_up.b_us) == (0, pytest.approx(11))
    # What comes and goes elsewhere is named.
    assert [row.name for row in found.appeared] == ["flash_fwd_splitkv", "nobody_knows"]
    assert [row.name for row in found.vanished] == ["flash_fwd"]
    assert found.appeared[0].calls_b == LAYERS
    assert [row.component for row in found.moved] == ["other"]
    assert any("of side b have no component" in note for note in found.notes)


def test_only_decode_steps_that_follow_one_count(tmp_path: Path) -> None:
    bundles = [
        record(tmp_path / name, stock(), phases={0: "prefill", 9: "mixed", 10: "decode"})
        for name in "ab"
    ]
    found = summarize(bundles[0], bundles[1], [])
    # The first and the tenth are no decode steps, and the ones after them have none before them.
    assert found.a.steps == STEPS - 4


@each_row(
    ("spoilt", "asked", "says"),
    [
        ({"phases": dict.fromkeys(range(STEPS), "prefill")}, {}, "no two decode steps"),
        ({"steps": 1}, {}, "no two decode steps"),
        ({"watched": 0}, {}, "no two decode steps"),
        ({"decode_requests": 8}, {"batch_size": 4}, "no two decode steps of 4 requests"),
    ],
)
def test_without_steps_there_is_one_line(
    tmp_path: Path, spoilt: dict[str, Any], asked: dict[str, int], says: str
) -> None:
    bundle = record(tmp_path / "a", stock(), **spoilt)
    with pytest.raises(CommandError, match=says):
        summarize(bundle, record(tmp_path / "b", stock()), [], **asked)


def test_notes_say_what_does_not_fit(tmp_path: Path) -> None:
    a = record(tmp_path / "a", stock(), steps=10)
    b = record(tmp_path / "b", stock(), steps=30, context_tokens=200)
    unknown = summarize(a, b, [])
    assert (unknown.gain_us, unknown.residual_us, unknown.adds_up) == (None, None, None)
    assert unknown.a.traced_us == pytest.approx(unknown.a.corrected_us)
    assert any("What tracing costs is not known" in note for note in unknown.notes)
    us = untraced_ns(stock()) / 1e3
    slower = " ".join(summarize(a, b, [], Untraced(2 * us, us)).notes)
    assert "nothing was taken off" in slower
    assert "Side a has 9 recorded steps" in slower
    assert "Side b has" not in slower
    assert "100 tokens on side a and 200 on side b" in slower
    faster = " ".join(summarize(a, b, [], Untraced(us / 2, us)).notes)
    assert "more than all of its gaps" in faster


@each_row("more", [0, 40])
@each_row("host_ahead", [False, True])
def test_waits_for_the_host_are_what_is_left_of_the_measured_step(
    tmp_path: Path, more: int, host_ahead: bool
) -> None:
    """The host is slowed by the recording, and waited for on side b without it, too.

    Where it was seen to be ahead, what is measured beyond the device's own time is a residual.
    """
    a, b = stock(), with_experts(stock())
    late = [changed(rows, ".0.self_attn.o_proj", gap=90_000) for rows in (a, b)]
    bundles = [record(tmp_path / name, rows) for name, rows in zip("ab", late, strict=True)]
    # The host's gap takes the place of a device's on both sides.
    a_us, b_us = (untraced_ns(rows) / 1e3 - 0.3 for rows in (a, b))
    untraced = Untraced(a_us, b_us + more, host_ahead)
    found = summarize(*bundles, swaps("moe", "model.layers.{}.mlp.experts"), untraced)
    row = by_component(found)[FOR_THE_HOST]
    if host_ahead:
        assert (row.a_us, row.b_us, row.saved_us) == (0.0, 0.0, 0.0)
        assert found.residual_us == pytest.approx(-more, abs=3)
        assert found.adds_up is (more == 0)
        assert "the host was seen to be ahead" in found.notes[0]
        return
    # Up to 2 us between steps are not told apart from what tracing costs.
    assert row.a_us == pytest.approx(1.0, abs=1.1)
    assert row.b_us == pytest.approx(1.0 + more, abs=2.1)
    assert by_component(found)["experts"].saved_us == pytest.approx(LAYERS * (32.9 - 17.0), abs=2)
    assert found.explained_us == pytest.approx(found.gain_us)
    assert (found.residual_us, found.adds_up) == (None, None)
    assert "The host is the slower one" in found.notes[0]


@each_row(("more", "off"), [(0, 0), (40, 0), (40, 5)])
def test_what_the_device_alone_needs_checks_the_components(
    tmp_path: Path, more: int, off: int
) -> None:
    """The host is waited for, and that row is measured; what is off is no component's."""
    a, b = stock(), with_experts(stock())
    late = [changed(rows, ".0.self_attn.o_proj", gap=90_000) for rows in (a, b)]
    bundles = [record(tmp_path / name, rows) for name, rows in zip("ab", late, strict=True)]
    a_us, b_us = (untraced_ns(rows) / 1e3 - 0.3 for rows in (a, b))
    untraced = Untraced(a_us, b_us + more + off, device_us=(a_us, b_us + off))
    found = summarize(*bundles, swaps("moe", "model.layers.{}.mlp.experts"), untraced)
    row = by_component(found)[FOR_THE_HOST]
    assert (row.a_us, row.b_us) == (0.0, pytest.approx(more))
    assert found.residual_us == pytest.approx(-off, abs=1)
    if off or not more:
        assert found.adds_up is (off == 0)
    assert "beyond what the device alone needs" in found.notes[0]


@each_row("seed", range(50))
def test_what_is_taken_off_is_the_excess(seed: int) -> None:
    chosen = random.Random(seed)
    gaps = np.array([chosen.randrange(2000) for _ in range(chosen.randrange(1, 200))], np.int64)
    excess = chosen.uniform(0, 1.2 * float(gaps.sum()))
    left = np.maximum(gaps - tracing_cost(gaps, excess), 0)
    assert (left >= 0).all()
    assert float(gaps.sum() - left.sum()) == pytest.approx(min(excess, gaps.sum()), abs=1e-6)


ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests/data"
ON_H100 = 48
SWAPS = [
    SwapOnSide("b", slot, path.format(number), "spark_prof")
    for number in range(ON_H100)
    for slot, path in (
        ("moe", "model.layers.{}.mlp.experts"),
        ("o", "model.layers.{}.self_attn.o_proj"),
        ("qkv", "model.layers.{}.self_attn.qkv_proj"),
    )
]


def test_two_recordings_of_the_same_thing() -> None:
    a = Bundle(DATA / "h100-qwen3-30b-a3b-nvfp4-graphs")
    b = Bundle(DATA / "code-h100/qwen3-30b-a3b-nvfp4")
    twice = summarize(a, b, SWAPS, Untraced(4200.0, 4206.0))
    assert [row for row in twice.components if abs(row.saved_us) >= 0.01 * 4200] == []
    assert twice.moved == ()
    assert twice.appeared == twice.vanished == ()
    assert twice.residual_share is twice.adds_up is None
    assert twice.a.corrected_us == pytest.approx(4200)
    assert sum(row.a_us for row in twice.components) == pytest.approx(4200)
    assert sum(row.b_us for row in twice.layers) == pytest.approx(twice.b.corrected_us)
    # Found on the first recording, what tracing costs brings the second one to 0.1 %.
    assert twice.b.corrected_us == pytest.approx(4206, rel=1e-3)
    assert 0.1 < twice.tracing_us < 1.0
    # Swaps that never were did not run.
    assert [proof.ran for proof in twice.proofs] == ["did not run"] * len(SWAPS)
    experts = next(proof for proof in twice.proofs if proof.slot == "moe")
    assert ["marlin_moe" in name for name in experts.left] == [True, True]
