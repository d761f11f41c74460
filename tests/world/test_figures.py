"""What a report says of a world is what is true of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.summary import summarize
from spark_prof.vocabulary import BASIS_CLASSES
from tests.analyzers.agreeing import contradictions, other_figures, screen_contradictions
from tests.world.reports import Json, figures, figures_of, recorded, report_of
from tests.world.strategies import worlds
from tests.world.truth import Truth, percentile
from tests.world.world import World

NEAR = {"rel": 1e-5, "abs": 2e-3}
PHASES = ("prefill", "decode", "mixed")


def near(value: object) -> object:
    """Equal but for rounding."""
    if value is None:
        return None
    return pytest.approx(value, **NEAR)


def agrees(found: Json, truth: Truth) -> None:
    """Every figure that the truth knows."""
    steps(found, truth)
    sums(found, truth)
    tokens(found, truth)
    typical_steps(found, truth)


def steps(found: Json, truth: Truth) -> None:
    own, of = found["steps"], truth.world.steps
    assert own["count"] == len(of)
    assert own["tokens"] == sum(one.requests * one.tokens + one.prompts for one in of)
    assert own["prompt_tokens"] == sum(one.prompt_tokens for one in of)
    assert (own["left_out"], own["first_uses"]) == (0, 0)
    for phase in PHASES:
        lengths = truth.lengths(phase)
        assert own[phase] == len(lengths)
        if lengths:
            wanted = {"median": percentile(lengths, 0.5), "p99": percentile(lengths, 0.99),
                      "mean": sum(lengths) / len(lengths)}  # fmt: skip
            assert own[f"{phase}_us"] == near(wanted)


def sums(found: Json, truth: Truth) -> None:
    """Of all steps and of each phase."""
    for book in found["books"]:
        phases = () if book["phase"] == "all" else (book["phase"],)
        assert book["step_us"] == near(sum(truth.lengths(*phases)))
        assert book["kernels_us"] == near(truth.kernel_us(*phases))
        assert book["copies_us"] == near(truth.copies_us(*phases))
        assert book["gap_us"] == near(truth.gap_us(*phases))
    whole = found["time"]
    assert whole["union_us"] == near(truth.union_us(copies=False))
    assert whole["busy_us"] == near(truth.union_us(copies=True))
    assert whole["residual_us"] == near(whole["step_us"] - whole["busy_us"] - whole["gap_us"])
    for row in found["components"]:
        for phase in PHASES:
            assert row[f"{phase}_us"] == near(truth.by_component(phase).get(row["name"], 0.0))
    assert {row["name"]: row["us"] for row in found["components"]} == near(truth.by_component())
    layers = {(row["layer"], row["component"]): row["us"] for row in found["layers"]}
    assert layers == near(truth.by_layer())
    kernels = {(r["name"], r["component"]): (r["calls"], r["us"]) for r in found["kernels"]}
    assert kernels == {key: near(value) for key, value in truth.by_name().items()}
    assert found["coverage"]["proven"] == near(1.0)
    copies = {r["name"]: (r["kind"], r["calls"], r["us"], r["bytes"])
              for r in found["copies"]["items"]}  # fmt: skip
    assert copies == {n: (k, c, near(us), b) for n, (k, c, us, b) in truth.copies().items()}
    busy = truth.union_us(copies=True)
    assert found["copies"]["share"] == near(found["copies"]["us"] / busy if busy else None)
    assert whole["engine_us"] == near(truth.engine_us())
    size = -(-len(truth.windows) // truth.world.pieces)
    pieces = [truth.windows[n : n + size] for n in range(0, len(truth.windows), size)]
    assert whole["wall_us"] == near(truth.us(sum(own[-1][1] - own[0][0] for own in pieces)))


def tokens(found: Json, truth: Truth) -> None:
    times = found["steps"]
    if truth.token_us() is None:
        assert times["token"] is None
        return
    assert times["token"]["token_us"] == near(truth.token_us())
    assert times["token"]["alone_us"] == near(truth.token_us(None, "decode"))
    sizes = {truth.world.steps[n].requests for n in truth.steps("decode", "mixed")}
    assert {row["batch"]: row["token_us"] for row in times["batches"]} == near(
        {size: truth.token_us(size) for size in sizes}
    )
    for row in (times["token"], *times["batches"]):
        assert row["tokens_per_s_sequence"] == pytest.approx(1e6 / row["token_us"], rel=1e-3)
        chosen = [n for n in truth.steps("decode", "mixed")
                  if row["batch"] in (None, truth.world.steps[n].requests)]  # fmt: skip
        us, given = sum(truth.lengths()[n] for n in chosen), [truth.tokens(n) for n in chosen]
        assert row["tokens_per_s"] == pytest.approx(1e6 * sum(t for _, t in given) / us, rel=1e-3)
        assert row["requests"] == near(sum(r for r, _ in given) / len(given))
    decode = truth.lengths("decode")
    if decode:
        per_step = sum(truth.tokens(n)[0] for n in truth.steps("decode"))
        per_step /= sum(truth.tokens(n)[1] for n in truth.steps("decode"))
        assert times["tpot_us"]["median"] == near(percentile(decode, 0.5) * per_step)
        assert times["tpot_us"]["mean"] == near(truth.token_us(None, "decode"))
        gaps = [truth.us(sum(truth.owners[n][gap].owned for gap in ("host", "launch_gaps")))
                for n in truth.steps("decode")]  # fmt: skip
        assert times["host_gap_us"]["median"] == near(percentile(gaps, 0.5))
        assert times["host_gap_us"]["mean"] == near(sum(gaps) / len(gaps))
    parts = times["token"]["typical_us"], times["token"]["uneven_us"], times["token"]["prompts_us"]
    assert sum(parts) == near(times["token"]["token_us"])


def typical_steps(found: Json, truth: Truth) -> None:
    """Each tick of a window has one owner."""
    for step in found["tokens"]:
        chosen = [n for n in truth.steps(step["phase"]) if step["batch_size"] in
                  (None, truth.world.steps[n].requests)]  # fmt: skip
        lengths = [truth.lengths()[n] for n in chosen]
        assert step["steps"] == len(chosen)
        assert step["step"]["median"] == near(percentile(lengths, 0.5))
        assert sum(row["charged_us"] for row in step["rows"]) == near(step["step"]["median"])
        parts = [truth.owners[n] for n in chosen]
        named = {row["name"]: row for row in step["rows"]}
        assert named.keys() == {name for part in parts for name in part if name in
                                ("host", "launch_gaps") or part[name].summed}  # fmt: skip
        for name, row in named.items():
            owned = [truth.us(part[name].owned) for part in parts]
            wanted = {
                "mean": sum(owned) / len(owned), "median": percentile(owned, 0.5),
                "p10": percentile(owned, 0.1), "p90": percentile(owned, 0.9),
                "p99": percentile(owned, 0.99),
            }  # fmt: skip
            assert row["spread"] == near(wanted), name
            for figure, kind in (("summed_us", "summed"), ("alone_us", "alone")):
                values = [truth.us(getattr(part[name], kind)) for part in parts]
                assert min(values) - 2e-3 <= row[figure] <= max(values) + 2e-3, (name, figure)
            assert min(owned) - 2e-3 <= row["charged_us"] <= max(owned) + 2e-3
            assert row["share"] == near(row["charged_us"] / step["step"]["median"])
            layers = truth.layers_of(name, step["phase"])
            assert row["layers"] == layers
            assert row["per_layer_us"] == near(row["charged_us"] / layers if layers else None)
        beside = sum(row["summed_us"] - row["charged_us"] for row in step["rows"])
        assert step["overlap_us"] == near(beside)
        if step["ms_per_token"] is not None:
            own = sum(row["ms_per_token"] for row in step["rows"])
            # Rows are rounded to whole ns.
            assert 1e3 * own == pytest.approx(step["token"]["typical_us"], rel=1e-5, abs=2e-2)
            assert 1e3 * step["ms_per_token"] == near(step["token"]["token_us"])


@settings(max_examples=2 * settings().max_examples)
@given(worlds())
def test_every_figure_is_the_true_one(world: World) -> None:
    with recorded(world) as (bundle, _):
        report = summarize(bundle)
    found = figures_of(report)
    agrees(found, Truth(world))
    assert [row for row in found["invariants"] if row["ok"] is False] == []
    assert contradictions(found) == []
    assert screen_contradictions(report) == []
    assert other_figures(report) == []


@pytest.mark.slow
@given(worlds(ranks=2), st.sampled_from([0, 1]))
def test_every_rank_has_its_own(world: World, rank: int) -> None:
    with recorded(world) as (bundle, _):
        found = figures(bundle, rank)
    truths = [Truth(world, number) for number in range(2)]
    agrees(found, truths[rank])
    for row, truth in zip(found["ranks"], truths, strict=True):
        assert row["step_us"] == near(sum(truth.lengths()))
        assert row["kernels_us"] == near(truth.kernel_us())
        assert row["gap_us"] == near(truth.gap_us())
        assert row["collective_us"] == near(truth.by_component().get("collective", 0.0))


@pytest.mark.slow
@given(worlds(ranks=3, phases=("decode",), overlaps=False))
def test_who_waits_in_a_collective(world: World) -> None:
    world = replace(world, tick=1000)
    found = report_of(world)
    waits = [Truth(world, rank).wait_us() for rank in range(3)]
    assert [row["wait_us"] for row in found["ranks"]] == [near(us) for us in waits]
    assert found["collectives"]["matched"] == world.layers * len(world.steps)
    assert found["collectives"]["wait_us"] == near(sum(waits) / 3)
    assert sum(row["wait_us"] for row in found["collectives"]["items"]) == near(sum(waits) / 3)
    assert {(row["after"], row["layer"]) for row in found["collectives"]["items"]} == {
        ("o_proj", layer) for layer in range(world.layers)
    }


@pytest.mark.slow
@given(worlds(overlaps=False), st.data())
def test_what_is_not_recorded_is_not_covered(world: World, data: st.DataObject) -> None:
    paths = [module["path"] for module in world.modules]
    hidden = data.draw(st.frozensets(st.sampled_from(paths), min_size=1))
    with recorded(replace(world, hidden=hidden)) as (bundle, _):
        found = figures(bundle)
        rows = place_kernels(bundle, 0)
    rows = rows[(rows["step"] >= 0) & (rows["kind"] == "kernel")]
    took = (rows["end_ns"] - rows["start_ns"]).to_numpy()
    placed, basis = rows["placed"].to_numpy(), rows["basis"].astype(str)
    share = {kind: basis.isin(bases).to_numpy() for kind, bases in BASIS_CLASSES.items()}
    known = share["proven"] | share["derived"]
    named = (rows["component"] != "other").to_numpy()
    for name, chosen in {
        "layer": placed & known, "component": named & known, "proven": placed & share["proven"],
        "derived": placed & share["derived"], "guessed": share["guessed"],
        "placed": placed & (known | share["guessed"]),
        "unknown": share["unknown"] | (known & ~placed),
    }.items():  # fmt: skip
        if all(row["ok"] is not False for row in found["invariants"]):
            assert found["coverage"][name] == near(took[chosen].sum() / took.sum()), name


@pytest.mark.slow
@given(worlds(phases=("decode",)))
def test_a_first_use_is_in_no_time_of_a_step(world: World) -> None:
    """The first step compiles: eight times as much host time as all its kernels take."""
    usual = replace(world.steps[0], ahead=0)
    first = replace(usual, host=8 * sum(each.ticks + 30 for each in usual.launches))
    world = replace(world, pieces=1).with_steps([first, usual, usual])
    found, truth = report_of(world), Truth(world)
    assert found["steps"]["first_uses"] == 1
    assert found["steps"]["decode_us"]["mean"] == near(sum(truth.lengths()[1:]) / 2)
    assert found["time"]["step_us"] == near(sum(truth.lengths()))
    assert found["steps"]["token"]["token_us"] == near(sum(truth.lengths()[1:]) / 2 / usual.tokens)
