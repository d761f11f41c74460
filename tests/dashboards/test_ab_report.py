"""The report of `spark-prof ab`: complete snapshots, its first line, and what no snapshot shows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from rich.cells import cell_len

from spark_prof.ab.accuracy_gate import LogitFigures
from spark_prof.ab.result import Gate, Range, TrialError, from_json, read_result
from spark_prof.analyzers.comparing.swap_attribution import FOR_THE_HOST
from spark_prof.dashboards.ab_answer import agreement, answer, doubts, headline
from spark_prof.dashboards.ab_report import render_ab
from spark_prof.dashboards.section import Layout
from tests.docs.pages import ROOT
from tests.rows import each_row

from .ab_sample import AB_SAMPLES, FASTER, gain_of
from .page import Page, check_page

FAILED = AB_SAMPLES["ab_gate_failed"]


@pytest.mark.parametrize("name", ["ab_faster", "ab_hostile"])
@pytest.mark.parametrize(("kind", "ending"), [("text", "txt"), ("md", "md")])
def test_snapshot(name: str, kind: str, ending: str, snapshot: Callable[[str, str], None]) -> None:
    snapshot(f"{name}.{ending}", render_ab(AB_SAMPLES[name], Layout(kind)))


@pytest.mark.slow
@each_row("sample", AB_SAMPLES)
def test_the_first_line_is_the_answer_and_all_fits_the_terminal(sample: str) -> None:
    result = AB_SAMPLES[sample]
    first = render_ab(result, Layout("text", 2000)).splitlines()[0]
    assert first == answer(result)
    assert json.loads(render_ab(result, Layout("json")))["answer"] == first
    for width in (60, 100, 200):
        text = render_ab(result, Layout("text", width))
        assert max(map(cell_len, text.splitlines())) <= width
        assert width != 100 or sample == "ab_hostile" or "…" not in text


def test_a_gain_is_told_with_its_interval_and_what_the_side_says() -> None:
    assert answer(replace(FASTER, runs=FASTER.runs[:1])) == (
        "moe=spark_prof is 1.335 x faster per token than stock (95 % 1.333 to 1.336) at batch 1: "
        "2.70 -> 2.02 ms; same tokens but for near ties"
    )


def test_a_side_of_many_swaps_is_called_by_its_letter() -> None:
    a, b = FASTER.sides
    many = replace(FASTER, sides=(a, replace(b, name=",".join(["moe=spark_prof"] * 4))))
    assert answer(many) == answer(FASTER).replace("moe=spark_prof", "b", 1)


def test_parts_of_a_layer_say_how_far_off_they_were_on_trial() -> None:
    [rank] = FASTER.swaps
    error = partial(TrialError, row=0, tokens="", beyond=False)
    parts = tuple(
        replace(swap, slot="layer", line=f"{part}: mxfp4", layer_error=error(off))
        for layer, swap in enumerate(rank.swaps)
        for part, off in (("attention", 0.001), ("experts", 0.01 + layer / 1e3))
    )
    text = render_ab(replace(FASTER, swaps=(replace(rank, swaps=parts),)), Layout("md"))
    assert "attention: mxfp4, on trial at most 0.001 off (4 x)" in text
    assert "experts: mxfp4, on trial at most 0.013 off (4 x)" in text


def test_a_slower_side_is_not_faster() -> None:
    slower = replace(FASTER.runs[0], estimate=gain_of(2000.0, 2500.0, 0.004))
    line = answer(replace(FASTER, runs=(slower,)))
    assert line.startswith("moe=spark_prof is not faster than stock: it needs 1.250 x (95 % 1.244 ")


def test_an_interval_with_a_gain_in_it_does_not_say_that_there_is_none() -> None:
    for gain, off, told in ((1.01, 0.05, False), (1.4, 0.6, False), (1.001, 0.002, True)):
        run = replace(FASTER.runs[0], estimate=gain_of(2000.0 * gain, 2000.0, off))
        line = answer(replace(FASTER, runs=(run,)))
        assert line.startswith("moe=spark_prof is not faster than stock") is told, line
        assert ("is unclear whether" in line and "; give more --seconds;" in line) is not told, line


def test_what_takes_from_the_answer_is_in_the_first_lines() -> None:
    result = read_result(ROOT / "benchmarks/results/ab/qwen3-30b-a3b-nvfp4.json")
    first = " ".join(render_ab(result, Layout()).partition("\n\n")[0].split())
    assert "Changed too, though not swapped: attention 539.3 us to 462.0 us." in first
    assert "side a is 0.9984 x as fast as itself, so that nothing below 0.18 % counts." in first
    steady = replace(FASTER, attributions=())
    assert list(doubts(steady)) == []
    busy = replace(steady.machine, others=Range(0.2, 3.13))
    told = ["Meanwhile other programs kept up to 3.1 processors busy."]
    assert list(doubts(replace(steady, machine=busy))) == told


def test_an_old_result_tells_the_detectable_effect_of_the_rule_or_none() -> None:
    [run, *_] = FASTER.runs
    old = replace(FASTER, runs=(replace(run, estimate=replace(run.estimate, detectable=0.9)),))
    assert "Minimum detectable effect: 0.2 % (80 % power)" in render_ab(old, Layout())
    assert render_ab(old, Layout("json")) == render_ab(replace(FASTER, runs=(run,)), Layout("json"))
    assert from_json(render_ab(FASTER, Layout("json")).encode()) == FASTER
    few = replace(old, runs=(replace(run, estimate=replace(run.estimate, quads=12)),))
    text = " ".join(render_ab(few, Layout()).split())
    assert "Minimum detectable effect: not known (that takes 20 quads, and 12 count;" in text
    [written] = json.loads(render_ab(few, Layout("json")))["runs"]
    assert written["estimate"]["detectable"] is None


def test_a_failed_gate_claims_no_time() -> None:
    assert answer(FAILED).startswith("moe=spark_prof fails the gate: KL divergence is 0.31 nats")
    assert not any("x" in value for _, value in headline(FAILED))
    text = render_ab(FAILED, Layout())
    assert "none of these times counts" in text
    assert len(re.findall("  not counted  ", text)) == len(FAILED.runs)
    assert json.loads(render_ab(FAILED, Layout("json")))["exit_code"] == 1


def test_a_side_that_quantizes_is_not_the_kernel_alone() -> None:
    quantized = AB_SAMPLES["ab_quantized_two_engines"]
    assert ", by quantization + kernel;" in answer(quantized)
    assert answer(quantized).endswith("98.1 % of the tokens agree, KL 0.0041 nats")
    assert "quantization" not in answer(FASTER)


def test_only_what_was_compared_agrees() -> None:
    assert [agreement(share) for share in (1.0, 0.99999, None)] == ["100 %", "99.9 %", "-"]
    assert answer(replace(FASTER, gates=())).endswith("what it says was not compared")
    nothing = LogitFigures(0, 0, None, 0, None, None, None, None)
    gate = Gate(1, replace(FASTER.gates[0].verdict, figures=nothing))
    found = replace(FASTER, gates=(gate,), runs=FASTER.runs[:1])
    assert answer(found).endswith("- of the tokens agree, KL -")


@each_row("sample", AB_SAMPLES)
def test_the_page_has_only_its_own_tags_and_loads_nothing(sample: str) -> None:
    drawn = {kind: render_ab(AB_SAMPLES[sample], Layout(kind)) for kind in ("text", "md", "html")}
    page = Page(drawn["html"])
    check_page(page)
    charts = "".join(script for script in page.scripts if "Plotly.newPlot(" in script[:2000])
    assert not re.search(r"<[a-z/!]", charts, re.I)
    assert not any("\x1b" in text for text in drawn.values())
    assert not any("<script>alert" in drawn[kind] for kind in ("md", "html"))


def test_a_gain_that_is_none_is_not_shared_out() -> None:
    none = replace(FASTER, runs=(replace(FASTER.runs[0], estimate=gain_of(2700.0, 2701.0, 0.01)),))
    drawn = render_ab(none, Layout("md"))
    assert "Of the gain" not in drawn
    assert "| unknown | no gain to add up to; residual 2.00 us |" in drawn
    assert "Of the gain" in render_ab(FASTER, Layout("md"))
    # Where side b waits for a slow host, what the device alone saves is still held to its parts.
    [found] = FASTER.attributions
    assert found.gain_us
    for off_us, holds in ((2.0, "yes"), (0.04 * (found.gain_us + 600), "no")):
        waits = replace(
            found.components[0], component=FOR_THE_HOST, a_us=0, b_us=600, saved_us=-600
        )
        behind = replace(found, components=(*found.components, waits), residual_us=off_us)
        drawn = render_ab(replace(none, attributions=(behind,)), Layout("md"))
        assert f"within 3 % | {holds} | no gain is told of the step, whose time the host" in drawn


@each_row(
    ("positions", "ties", "same"),
    [
        (2048, 4, True), (32, 7, True), (32, 15, True), (32, 16, False), (32, 30, False),
        (256, 256, False), (8, 0, True), (8, 1, False),
    ],
)  # fmt: skip
def test_the_tokens_are_the_same_where_more_than_rounding_decides(
    positions: int, ties: int, same: bool
) -> None:
    verdict = FASTER.gates[0].verdict
    assert verdict.figures
    clear = None if ties == positions else 1.0
    counts = replace(verdict.figures, positions=positions, near_ties=ties, clear_agreement=clear)
    for agree in (1.0, 0.9):
        figures = replace(counts, agreement=agree)
        result = replace(FASTER, gates=(Gate(1, replace(verdict, figures=figures)),))
        assert ("same tokens" in answer(result)) == same
        assert any("tokens agree" in name for name, _ in headline(result)) == same
        share = "all" if clear is None else f"{ties} of them"
        assert same or answer(result).endswith(
            f"all 4 swapped layers agree, each tried alone; at {positions} positions "
            f"{agreement(agree)} of the tokens agree, {share} near ties, KL 0.00021 nats"
        )


RANDOM = "(random weights; only a real checkpoint can tell more)"


@each_row(
    ("arguments", "engine_says", "random_weights"),
    [
        (("m", "--load-format", "dummy"), False, True),
        (("m", "--load-format=dummy"), False, True),
        (("m", "--load_format", "dummy"), False, True),
        (("m", "--load-format", "auto", "--load-format", "dummy"), False, True),
        (("m", "--load-format", "dummy", "--load-format", "auto"), False, False),
        (("m", "--load-format", "auto"), False, False),
        (("m", "--served-model-name", "dummy"), False, False),
        (("--load-format",), False, False),
        (("m", "--config", "x"), True, True),
    ],
)
def test_random_weights_tell_of_the_layers_alone(
    arguments: tuple[str, ...], engine_says: bool, random_weights: bool
) -> None:
    for side in (0, 1):
        sides = list(FASTER.sides)
        sides[side] = replace(sides[side], arguments=arguments)
        result = replace(FASTER, sides=(sides[0], sides[1]), random_weights=engine_says)
        expected = f"all 4 swapped layers agree, each tried alone {RANDOM}"
        assert answer(result).endswith(expected) == random_weights
        assert any("tokens agree" in name for name, _ in headline(result)) != random_weights
    # Layers that were not tried, that quantize, or that failed, do not agree.
    verdict = result.gates[0].verdict
    first, *others = verdict.layers
    for layers, words in (
        ((), "no layer was tried alone"),
        ((first,), "1 of 1 swapped layers agree"),
        ((replace(first, bits="changed"), *others), "all 4 swapped layers are within their bounds"),
        ((replace(first, passed=False), *others), "3 of 4 swapped layers agree"),
    ):
        line = answer(replace(result, gates=(Gate(1, replace(verdict, layers=layers)),)))
        assert (words in line) == random_weights


RESULTS = [
    *sorted((ROOT / "benchmarks" / "results" / "ab").glob("*.json")),
    *sorted((ROOT / "tests" / "data").glob("ab-*/result.json")),
]


@each_row("path", RESULTS)
def test_runs_with_random_weights_claim_no_tokens(path: Path) -> None:
    """Every format has the same document, so of the others one result is enough."""
    result = read_result(path)
    for kind in ("text", "md", "html", "json") if path == RESULTS[0] else ("text",):
        drawn = render_ab(result, Layout(kind, 2000))
        assert "same tokens" not in drawn
        assert RANDOM in drawn or not any(run.estimate.gain for run in result.runs)


def test_a_deep_model_on_eight_ranks_fits_a_forum_post() -> None:
    [rank], [found] = FASTER.swaps, FASTER.attributions
    layers = range(96)
    places = [*product(("qkv", "o", "moe", "router", "norm"), layers)]
    module, proof = rank.swaps[0], replace(found.proofs[0], new=("x" * 400,))
    modules = tuple(replace(module, slot=s, name=f"model.layers.{n}.{s}") for s, n in places)
    proofs = tuple(replace(proof, slot=slot, layer=layer) for slot, layer in places)
    kernels = tuple(replace(row, name=f"{n}{'y' * 2000}") for n in layers for row in found.kernels)
    gains = tuple(replace(row, layer=layer) for layer in layers for row in found.layers[:4])
    sizes = (1, 2, 4, 8, 16)
    deep = replace(
        FASTER,
        swaps=tuple(replace(rank, rank=n, swaps=modules) for n in range(8)),
        runs=tuple(replace(FASTER.runs[0], requests=size) for size in sizes),
        gates=tuple(replace(FASTER.gates[0], requests=size) for size in sizes),
        attributions=(replace(found, layers=gains, kernels=kernels, proofs=proofs),),
    )
    # GitHub takes 65,536 characters, Discourse by default 32,000.
    assert len(render_ab(deep, Layout("md"))) < 32_000
