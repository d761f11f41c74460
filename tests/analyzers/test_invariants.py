"""What must hold in every report: each check with what breaks it, and all recordings at hand."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import spark_prof
from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.breakdown import sums_of
from spark_prof.analyzers.counters.counter_batches import CounterBatch, Counters, WeightRow
from spark_prof.analyzers.invariants import CHECKS, Figures, kernel_floors
from spark_prof.analyzers.layer_consistency import (
    WHOLE,
    LayerTables,
    kinds_of,
    label_kernels,
    unknown_layers,
    without_layers,
)
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.recorded_run import Clocks
from spark_prof.analyzers.roofline.device_ceilings import memory_us, surely_us
from spark_prof.analyzers.roofline.roofline_rows import Ceilings, RooflinePhase
from spark_prof.analyzers.summary import CheckedReport, summarize, summary_of
from spark_prof.analyzers.views.waterfall import DIFFERENCES, waterfall_of
from spark_prof.dashboards.about_cells import placed_by
from spark_prof.dashboards.render import RENDERERS, Layout, render_report
from spark_prof.rules.gpus import SourcedFigure
from tests.analyzers.roofline.recorded import CONFIG, FIRST, HEAD, LAYERS, bundle
from tests.rows import each_row
from tests.support import layer_row

DATA = Path(__file__).parents[1] / "data"
CAPTURE = "h100-gpt-oss-20b-mxfp4-graphs"


@cache
def facts() -> Figures:
    """What the checks see of a real recording, in which all of them hold."""
    source = spark_prof.load(DATA / CAPTURE)
    found = summary_of(source)
    ran = found.kernels[found.kernels["step"].isin(found.steps.index)]
    return Figures(
        summarize(source),
        ran.loc[~ran["kind"].isin(["memcpy", "memset"]), ["start_ns", "end_ns"]],
        LayerTables.of(source, 0, sums_of(found.kernels, found.steps["phase"])),
    )


def with_layers(**changes: Any) -> Figures:
    """The same with other sums, modules or configuration."""
    return replace(facts(), layers=replace(facts().layers, **changes))


def of(**changes: Any) -> Figures:
    """The same with another part of the report."""
    return replace(facts(), report=replace(facts().report, **changes))


def decode_of(report: Report) -> RooflinePhase:
    assert report.roofline is not None
    assert report.roofline.decode is not None
    return report.roofline.decode


def with_phases(*phases: RooflinePhase) -> Report:
    """The report with these in its roofline."""
    assert facts().report.roofline is not None
    return of(roofline=replace(facts().report.roofline, phases=phases)).report


def broken(report: Report) -> dict[str, str]:
    return {row.id: row.text for row in report.invariants if row.ok is False}


def test_a_real_recording_holds() -> None:
    report = CheckedReport(facts())
    assert {row.id: row.ok for row in report.invariants} == {c.id: True for c in CHECKS}
    assert report.broken == ()
    assert replace(report, invariants=()) == replace(facts().report, invariants=())


def test_a_source_of_nothing_has_nothing_to_look_at() -> None:
    nothing = {"roofline": None, "accounts": (), "layers": (), "kernels": (),
               "components": ()}  # fmt: skip
    tables = facts().layers
    empty = replace(of(**nothing), layers=LayerTables(tables.sums[:0], tables.modules[:0], {}))
    ok = {row.id: row.ok for row in CheckedReport(empty).invariants}
    assert {name for name, value in ok.items() if value is None} == {
        "floor-kernel", "floor-step", "union-once", "layers-alike", "layers-found",
    }  # fmt: skip


def first(name: str, **changes: Any) -> Callable[[Report], dict[str, Any]]:
    """The report's first row of that table changed."""

    def change(report: Report) -> dict[str, Any]:
        row, *others = getattr(report, name)
        return {name: (replace(row, **changes), *others)}

    return change


def _sums(phase: str, **changes: Any) -> Callable[[Report], dict[str, Any]]:
    """The sums of the steps of a phase changed."""

    def change(report: Report) -> dict[str, Any]:
        rows = [
            replace(row, sums=replace(row.sums, **changes))
            if row.sums and row.phase == phase and row.batch_size is None
            else row
            for row in report.accounts
        ]
        return {"accounts": tuple(rows)}

    return change


def _negative_gap(report: Report) -> dict[str, Any]:
    [sums] = [row.sums for row in report.summed_steps if row.phase == "decode"]
    assert sums
    residual_us = sums.residual_us + sums.gap_us + 5.0
    return _sums("decode", gap_us=-5.0, residual_us=residual_us)(report)


def _first_part(**changes: Any) -> Callable[[Report], dict[str, Any]]:
    """The first part of the typical decode step changed."""

    def change(report: Report) -> dict[str, Any]:
        rows = [
            replace(row, parts=(replace(row.parts[0], **changes), *row.parts[1:]))
            if row is report.decode_step
            else row
            for row in report.accounts
        ]
        return {"accounts": tuple(rows)}

    return change


@each_row(
    ("change", "check", "gone"),
    [
        (_sums("all", union_us=1e9), "union-once", lambda report: report.summed_steps == ()),
        (first("components", us=-8.26), "no-negative", lambda report: report.components == ()),
        (_negative_gap, "no-negative",
         lambda report: "decode" not in {row.phase for row in report.summed_steps}),
        (_first_part(us=1e3), "adds-up", lambda report: not report.decode_step),
        (_first_part(exclusive_us=-1.0), "no-negative", lambda report: not report.decode_step),
        (lambda report: {"kernels": report.kernels[1:]}, "adds-up",
         lambda report: report.kernels == ()),
    ],
)  # fmt: skip
def test_a_figure_that_cannot_be_is_left_out(
    change: Callable[[Report], dict[str, Any]], check: str, gone: Callable[[Report], bool]
) -> None:
    report = CheckedReport(of(**change(facts().report)))
    assert check in broken(report)
    assert gone(report)
    assert RENDERERS["text"](report)  # what is left is drawn without it


def test_a_kernel_faster_than_its_bytes_has_no_floor(tmp_path: Path) -> None:
    # 622 MB take 170 us at the data sheet's 3.35 TB/s, the 50 MB of the cache left out.
    report = summarize(bundle(tmp_path / "b", us=(8.0, 3.0, 6.0, 4.0, 100.0)))
    assert "100.00 us a call" in broken(report)["floor-kernel"]
    assert "170." in broken(report)["floor-kernel"]
    phase = decode_of(report)
    assert report.roofline is not None
    rows = {row.name: row for row in phase.rows}
    assert (rows[HEAD].floor_us, rows[HEAD].needed_bytes, rows[HEAD].left_us) == (None,) * 3
    assert rows[FIRST].floor_us is not None
    assert phase.floor_us == pytest.approx(sum((r.floor_us or 0) * r.calls for r in phase.rows))
    known = [row for row in phase.rows if row.floor_us is not None]
    assert phase.placed_us == pytest.approx(sum(row.us * row.calls for row in known))
    needed = sum((row.needed_bytes or 0) * row.calls for row in known)
    assert phase.needed_bytes == pytest.approx(needed)
    assert "lm_head" not in {row.component for row in report.roofline.weights}
    parts = waterfall_of(report).parts
    assert min(part.us for part in parts if part.kind not in DIFFERENCES) >= 0
    line = "takes 100.00 us a call in decode steps"
    for form, draw in RENDERERS.items():
        drawn = " ".join(draw(report).split())
        assert line in drawn, form
        assert form == "json" or drawn.index(line) < drawn.rindex("ecorded"), form
    (row,) = (r for r in json.loads(RENDERERS["json"](report))["invariants"] if r["ok"] is False)
    assert (row["id"], list(row)) == ("floor-kernel", ["id", "ok", "text", "where"])


@each_row(("phase", "off", "fails"), [
    ("decode", 0.1, False), ("decode", -0.0005, False), ("decode", -0.1, True),
    ("prefill", 0.1, False), ("prefill", -0.1, True),
])  # fmt: skip
def test_every_phase_s_kernels_are_held_against_the_bytes_of_a_call(
    phase: str, off: float, *, fails: bool
) -> None:
    """One of 24 calls a step; times have whole nanoseconds, so it may be longer by one."""
    decode, roofline = decode_of(facts().report), facts().report.roofline
    assert roofline is not None
    experts = next(row for row in decode.rows if row.calls == 24 and row.floor_us)
    least = surely_us(experts, roofline.ceilings) / 24
    assert least > 1
    row = replace(experts, step_us=(least + off) * experts.calls)
    quick = replace(decode, phase=phase, rows=(row,))
    report = with_phases(*([] if phase == "decode" else [decode]), quick)
    found = kernel_floors(report, facts().kernels)
    assert [one.key for one in found or ()] == [(phase, *row.place)] * fails


def test_arithmetic_is_held_against_the_gpu_s_highest_clock() -> None:
    """The peaks of this H100 stand on 1,830 MHz; one may reach 1,980."""
    decode = decode_of(facts().report)
    row = replace(decode.rows[0], calls=1.0, step_us=9.5, floor_us=10.0, streamed_bytes=0.0,
                  limiter="arithmetic")  # fmt: skip
    report = with_phases(replace(decode, rows=(row,)))
    assert kernel_floors(report, facts().kernels) != []
    gpu = replace(report.gpu, clocks=Clocks(1980, 1980, ()))
    assert kernel_floors(replace(report, gpu=gpu), facts().kernels) == []


@each_row(("fast", "held"), [("kernel", {"qkv"}), ("step", set()), ("none", {"qkv", "lm_head"})])
def test_what_counters_read_is_held_against_no_weights_that_are_not_read(
    fast: str, held: set[str]
) -> None:
    decode = decode_of(facts().report)
    rows = tuple(
        replace(row, step_us=0.01 * row.calls, left_us=0.0) if row.component == "lm_head" else row
        for row in decode.rows
    )
    if fast == "kernel":
        decode = replace(decode, rows=rows)
    elif fast == "step":
        decode = replace(decode, step_us=1.0)
    weights = tuple(WeightRow(name, 1e6, None, 1e6, "") for name in ("qkv", "lm_head"))
    batch = CounterBatch(1, 8, True, 0.0, 1.0, None, (), weights)
    counters = Counters(2.0, 100, 200.0, (batch,), (), ())
    report = CheckedReport(of(roofline=with_phases(decode).roofline, counters=counters))
    assert report.counters is not None
    (found,) = report.counters.batches
    assert {row.component for row in found.weights} == held


def test_a_kernel_within_the_tolerance_is_at_its_floor(tmp_path: Path) -> None:
    # 622 MB take 205 us for a reader; the data sheet's bandwidth and the cache allow 170.
    report = summarize(bundle(tmp_path / "b", us=(8.0, 3.0, 6.0, 4.0, 180.0)))
    assert report.broken == ()
    (row,) = (row for row in decode_of(report).rows if row.name == HEAD)
    assert row.floor_us == pytest.approx(180.0)
    assert row.left_us == 0.0
    # 622 MB at the 3.03 TB/s of a reader are 25 us more, which nothing hides.
    assert decode_of(report).over_us == pytest.approx(25.0, abs=1.0)
    drawn = " ".join(render_report(report, Layout(), whole=True).split())
    assert "Cut off it: by how much kernels" in drawn


def test_a_step_within_the_tolerance_is_at_its_floor() -> None:
    decode = decode_of(facts().report)
    quick = replace(decode, step_us=0.95 * (decode.floor_us or 0.0))
    found = CheckedReport(of(roofline=with_phases(quick).roofline))
    assert "floor-step" not in broken(found)
    assert decode_of(found).of_floor == pytest.approx(1.0)
    assert quick.floor_us is not None
    over_us = decode_of(found).over_us - decode_of(facts().report).over_us
    assert over_us == pytest.approx(0.05 * quick.floor_us)


def test_a_lower_bound_above_the_step_gives_no_share(tmp_path: Path) -> None:
    """Experts that count as something else are counted whole: the bound of a hybrid's step."""
    pattern = {"hybrid_override_pattern": "E", "n_routed_experts": 128}
    whole = layer_row("backbone.layers.0.mixer", 0, "ssm", bytes=30 << 30,
                      parameters="w13_weight:uint8:128x15360x16384")  # fmt: skip
    report = summarize(
        bundle(tmp_path / "b", layers=(*LAYERS, whole), model_config=CONFIG | pattern)
    )
    assert "which weights it reads is not known" in broken(report)["floor-step"]
    phase = decode_of(report)
    assert report.roofline is not None
    assert (phase.floor_us, phase.of_floor, report.roofline.weights) == (None, None, ())
    assert "memory" not in {answer.id for answer in report.answers}
    found = waterfall_of(report)
    assert found.floor_us is None
    assert found.no_floor == broken(report)["floor-step"]
    assert "of the time is that bound" not in RENDERERS["text"](report)


def test_what_a_kernel_surely_takes() -> None:
    row = replace(decode_of(facts().report).rows[0], calls=10.0, streamed_bytes=2e7, floor_us=9.0,
                  limiter="memory")  # fmt: skip
    sheet = Ceilings("x", data_sheet=SourcedFigure(1e12, ""), reached=SourcedFigure(9e11, ""),
                     l2_bytes=50_000_000)  # fmt: skip
    # 200 MB a step, of which 50 may lie in the cache, at 1 TB/s.
    assert surely_us(row, sheet) == pytest.approx(150.0)
    assert memory_us(4e7, sheet) == 0.0
    # A reader that was faster than the data sheet says so.
    assert memory_us(2.5e8, replace(sheet, reached=SourcedFigure(2e12, ""))) == pytest.approx(100.0)
    # Nobody knows its cache: no known one is larger, and 200 MB may fit or not.
    assert memory_us(2e8, replace(sheet, l2_bytes=None)) < 150.0
    assert memory_us(2e8, Ceilings("x")) == 0.0
    busy = replace(row, limiter="arithmetic", floor_us=30.0)
    assert surely_us(busy, sheet, clock=1.2) == pytest.approx(250.0)
    measured = replace(sheet, peak_source="measured here on Monday", peaks_measured=True)
    assert surely_us(busy, measured) == pytest.approx(150.0)


def test_layers_of_a_kind_that_differ_are_not_known() -> None:
    sums = facts().layers.sums.copy()
    (place, *_) = np.flatnonzero(
        (sums["layer"] == 5) & (sums["component"] == "qkv") & (sums["phase"] == "decode")
    )
    sums.loc[sums.index[place], "calls"] *= 2
    wrong = with_layers(sums=sums)
    assert unknown_layers(wrong.layers) == {(5, "qkv")}
    report = CheckedReport(wrong)
    assert list(broken(report)) == ["layers-alike"]
    assert "5 differ in qkv" in broken(report)["layers-alike"]
    counted = {p.name for row in report.accounts for p in row.parts if p.per_layer_us is not None}
    before = {p.name for row in facts().report.accounts for p in row.parts if p.layers}
    assert counted == before - {"qkv"}
    assert {row.layers for row in report.conversions.attributed} == {0}


def parts(rows: pd.DataFrame) -> set[tuple[int, str]]:
    return set(rows[["layer", "component"]].itertuples(index=False, name=None))


def test_a_layer_that_is_not_known_is_no_layer_of_any_figure() -> None:
    source = spark_prof.load(DATA / "architectures" / "deepseek-v2" / "eager")
    found = summary_of(source)
    (text,) = found.report.failed("layers-")
    exported = label_kernels(source, 0)
    shown = {
        "layers": {(row.layer, row.component) for row in found.report.layers},
        "explorer and comparison": parts(found.kernels),
        "exports and queries": parts(exported),
    }
    unknown = unknown_layers(LayerTables.of(source, 0, sums_of(
        place_kernels(source, 0), found.steps["phase"]
    )))  # fmt: skip
    assert unknown & {(2, "router"), (3, "router")}
    assert all((n, "attention") in named for n in range(4) for named in shown.values())
    assert {what: named for what, named in shown.items() if unknown & named} == {}
    times: Counter[object] = Counter()
    for row in found.report.layers:
        times[row.layer] += round(row.us * 1e3)
    ran = exported[exported["step"].isin(found.steps.index)]
    ran = ran[~ran["kind"].isin(["memcpy", "memset"])]
    exported_ns = (ran["end_ns"] - ran["start_ns"]).groupby(ran["layer"]).sum()
    assert times.pop(None) == exported_ns.pop(-1)
    assert times == exported_ns.to_dict()
    # Only what has no layer by its nature counts as placed among them.
    own = found.report.coverage
    assert own.placed < 1
    assert own.proven + own.derived + own.guessed + own.unknown == pytest.approx(1)
    for form, draw in RENDERERS.items():
        assert text.split(":")[0] in " ".join(draw(found.report).split()), form
    assert text in placed_by(found.report)


def without_norm(sums: pd.DataFrame, layer: int) -> pd.DataFrame:
    return sums[(sums["layer"] != layer) | (sums["component"] != "norm")]


def dense(layer: int) -> pd.DataFrame:
    """The model's modules, where that layer has no experts."""
    modules = facts().layers.modules
    experts = modules["layer"].eq(layer) & modules["component"].eq("experts")
    return modules.assign(component=modules["component"].astype(str).where(~experts, "mlp"))


@each_row(("layer", "holds"), [(0, True), (23, True), (7, False)])
def test_norms_may_be_fused_with_what_is_outside_the_layers(layer: int, holds: bool) -> None:
    found = CheckedReport(with_layers(sums=without_norm(facts().layers.sums, layer)))
    assert ("layers-alike" not in broken(found)) == holds


def test_of_two_layers_the_first_may_lack_the_norm() -> None:
    """Of two alike, the one that is not at the border is the usual one."""
    sums = facts().layers.sums
    found = with_layers(sums=without_norm(sums[sums["layer"].isin([0, 1, 23])], 0),
                        modules=dense(23))  # fmt: skip
    assert "layers-alike" not in broken(CheckedReport(found))


@each_row(("layer", "part", "holds"), [(0, "qkv", True), (0, "o_proj", False), (7, "qkv", False)])
def test_a_first_norm_in_one_kernel_with_its_matrices_may_differ(
    layer: int, part: str, holds: bool
) -> None:
    """It has nothing to add up yet."""
    sums = facts().layers.sums
    here = (sums["layer"] == layer) & (sums["component"] == part)
    sums = sums.assign(calls=sums["calls"].where(~here, 2 * sums["calls"]))
    found = CheckedReport(with_layers(sums=sums, normed=frozenset({"qkv"})))
    assert ("layers-alike" not in broken(found)) == holds


def test_the_matrices_behind_a_norm_are_those_of_slot_layer() -> None:
    names = ("linear_attn.in_proj_qkvz", "self_attn.qkv_proj", "mlp.experts", "self_attn.attn")
    places = {f"model.layers.0.{name}": 9 for name in names}
    swaps = [
        {"slot": "layer", "kernel": "own", "bits": "kept", "places": places},
        {"slot": "o", "kernel": "own", "bits": "kept", "places": {"layers.0.self_attn.o_proj": 9}},
    ]
    bundle: Any = SimpleNamespace(frame=lambda *_: None, facts=lambda _: {"swaps": swaps})
    assert LayerTables.of(bundle, 0, pd.DataFrame()).normed == {"ssm", "qkv"}


def test_layers_of_two_kinds_may_differ() -> None:
    sums = facts().layers.sums
    sums = sums[(sums["layer"] != 5) | (sums["component"] != "experts")]
    assert "layers-alike" in broken(CheckedReport(with_layers(sums=sums)))
    assert "layers-alike" not in broken(CheckedReport(with_layers(sums=sums, modules=dense(5))))


def test_what_has_no_layer_by_nature_keeps_its_place() -> None:
    """The embedding's kernel that ran in a layer's range."""
    rows = pd.DataFrame({"layer": [3, 3, 4], "component": ["embedding", "qkv", "qkv"],
                         "placed": True})  # fmt: skip
    found = without_layers(rows, frozenset({(3, WHOLE)}))
    assert found["layer"].tolist() == [-1, -1, 4]
    assert found["placed"].tolist() == [True, False, True]


def test_of_a_layer_only_the_part_that_differs_is_unknown() -> None:
    rows = pd.DataFrame({"layer": [3, 3, 4], "component": ["collective", "qkv", "collective"],
                         "placed": True})  # fmt: skip
    found = without_layers(rows, frozenset({(3, "collective")}))
    assert found["layer"].tolist() == [-1, 3, 4]
    assert found["placed"].tolist() == [False, True, True]


@each_row("known", ["layers", "config"])
def test_layers_that_are_missing_leave_no_layer_known(known: str) -> None:
    sums, modules = facts().layers.sums, facts().layers.modules
    wrong = with_layers(
        sums=sums.assign(layer=sums["layer"].clip(upper=20)),
        modules=modules if known == "layers" else modules[:0],
    )
    assert (
        "has 24 layers, the report 21: 21, 22, 23" in broken(CheckedReport(wrong))["layers-found"]
    )
    assert unknown_layers(wrong.layers) >= {(layer, WHOLE) for layer in range(21)}


def frame(*rows: tuple[int, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["layer", "component"])


def test_kinds_of_layers() -> None:
    hybrid = {"num_hidden_layers": 5, "hybrid_override_pattern": "MEM*E"}
    mixers = ("ssm", "experts", "ssm", "attention", "experts")
    rows = [(n, name) for n, mixer in enumerate(mixers) for name in ("norm", mixer)]
    by_turns = kinds_of(hybrid, frame((-1, "lm_head"), *rows))
    assert by_turns[0] == by_turns[2] != by_turns[1] == by_turns[4] != by_turns[3]
    dense_first = kinds_of(
        {"num_hidden_layers": 3, "n_routed_experts": 8},
        frame(*((n, "attention") for n in range(3)), (0, "mlp"), (1, "experts"), (2, "experts")),
    )
    assert dense_first[0] != dense_first[1] == dense_first[2]
    assert kinds_of({"num_hidden_layers": 2}, frame()) == {0: "full", 1: "full"}
    assert kinds_of({"num_hidden_layers": 2, "n_routed_experts": 8}, frame()) == {}


def test_every_check_says_what_it_is() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    page = (DATA.parents[1] / "docs" / "report.md").read_text(encoding="utf-8")
    for check in CHECKS:
        assert check.holds.endswith(".")
        assert f"`{check.id}`" in page
