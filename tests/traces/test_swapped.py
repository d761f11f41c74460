"""What ran in place of vLLM's kernels: by the recording's facts, else by the result beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import spark_prof
from spark_prof.analyzers.finding import Action
from spark_prof.analyzers.findings.next_command import beside_swaps
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.swapped_run import runs_already
from spark_prof.dashboards.render import Layout, render_report
from spark_prof.profiler.facts import RUNNING_SWAPS, _swaps
from spark_prof.swaps.swap_settings import parse_swaps
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.swapped import (
    SWAPS,
    SwappedPlace,
    SwappedSlot,
    fact_of,
    layers_of,
    swapped_places,
    swapped_slots,
)
from tests.rows import each_row

DATA = Path(__file__).parents[1] / "data" / "ab-h100"
B = DATA / "recording-b-1"
SWAPPED = "qkv=mxfp4, o=mxfp4, router=spark_prof, moe=spark_prof, lm_head=mxfp4"


def alone(folder: Path, **facts: Any) -> Path:
    """The recording of side b without its result, its worker's facts changed."""
    path = folder / "alone"
    shutil.copytree(B, path)
    meta = json.loads((path / "meta.json").read_text())
    meta["facts"]["rank0"] |= facts
    (path / "meta.json").write_text(json.dumps(meta))
    return path


def advised(report: Report) -> list[str]:
    return [found.command for found in report.findings if found.command.startswith("spark-prof ab")]


def test_a_report_names_what_is_swapped_and_does_not_advise_it() -> None:
    report = spark_prof.report(B)
    assert f"Swapped by spark-prof: {SWAPPED}" in render_report(report, Layout("text", 200))
    assert "lm-head-not-quantized" not in {found.id for found in report.findings}
    running = ",".join(SWAPPED.split(", "))
    # Both sides of an A/B keep what runs; b tries something else.
    for line in advised(report):
        assert f"--a {running} --b " in line
        assert f"--b {running} --" not in line
    assert not spark_prof.report(DATA / "recording-a-1").run.swaps


def test_weights_are_those_that_ran(tmp_path: Path) -> None:
    rows = layers_of(Bundle(B), 0).set_index("path")
    loaded = Bundle(B).frame("layers", 0).set_index("path")
    assert loaded.loc["lm_head", "weight_dtype"] == "bfloat16"
    assert rows.loc["lm_head", "weight_dtype"] == "mxfp4"
    assert rows.loc["lm_head", "bytes"] < 0.3 * loaded.loc["lm_head", "bytes"]
    kept = "model.layers.0.mlp.router"
    assert rows.loc[kept, "bytes"] == loaded.loc[kept, "bytes"]
    phase = spark_prof.report(B).decode_roofline
    assert phase is not None
    assert all(row.us >= (row.bound_us or 0.0) / row.calls for row in phase.rows if row.calls)


@pytest.mark.slow
def test_the_recording_s_own_facts_come_first(tmp_path: Path) -> None:
    fact = fact_of(swapped_places(Bundle(B), 0))
    told = alone(tmp_path, **fact)
    assert {*swapped_places(Bundle(told), 0)} == {*swapped_places(Bundle(B), 0)}
    assert spark_prof.report(told).run.swaps == spark_prof.report(B).run.swaps
    none = alone(tmp_path / "none", **{SWAPS: []})
    assert swapped_places(Bundle(none), 0) == ()


def test_without_either_the_kernels_names_tell_the_slots_alone(tmp_path: Path) -> None:
    report = spark_prof.report(alone(tmp_path))
    assert {swap.slot for swap in report.run.swaps} == {"qkv", "o", "moe", "router", "lm_head"}
    assert {swap.kernel for swap in report.run.swaps} == {""}
    # Whether lm_head was quantized is not known, so that nobody advises it.
    assert not {"lm-head-not-quantized", "bf16-weights-dominate"} & {f.id for f in report.findings}
    assert not advised(report)


@each_row("text", ["", "{", "[]", '{"recordings": [], "swaps": []}',
                   '{"recordings": [{"folder": "alone"}], "swaps": 3}'])  # fmt: skip
def test_a_damaged_result_tells_nothing(text: str, tmp_path: Path) -> None:
    path = alone(tmp_path)
    (tmp_path / "result.json").write_text(text)
    assert swapped_places(Bundle(path), 0) == ()


QUANTIZED = (SwappedSlot("o", "mxfp4", 24), SwappedSlot("moe", "spark_prof", 24))


@each_row(
    ("options", "b"),
    [
        (("--b", "qkv=spark_prof"), "o=mxfp4,moe=spark_prof,qkv=spark_prof"),
        (("--b=--async-scheduling",), "o=mxfp4,moe=spark_prof --async-scheduling"),
        # What runs stays beside it: in layers that it leaves to vLLM, too.
        (("--b", "layer=spark_prof,o=spark_prof"), "layer=spark_prof,o=mxfp4,moe=spark_prof"),
        (("--b", "o=spark_prof"), None),
        (("--b", "moe=spark_prof,o=mxfp4"), None),
    ],
)
def test_an_a_b_keeps_what_runs(options: tuple[str, ...], b: str | None) -> None:
    found = beside_swaps(Action("ab", options, options[-1]), QUANTIZED)
    assert (found and found.options) == (b and ("--a", "o=mxfp4,moe=spark_prof", "--b", b))
    assert beside_swaps(Action("ab", options), ()) == Action("ab", options)
    files = (SwappedSlot("o", "mine.py:build", 24),)
    assert beside_swaps(Action("ab", options), files) is None


def test_a_norm_does_not_stay_beside_a_layer() -> None:
    running = (SwappedSlot("norm", "spark_prof", 24), SwappedSlot("o", "mxfp4", 24))
    found = beside_swaps(Action("ab", ("--b", "layer=spark_prof")), running)
    assert found is not None
    assert found.options[-1] == "layer=spark_prof,o=mxfp4"
    assert parse_swaps(found.options[-1])


def test_slots_and_components() -> None:
    assert swapped_slots(swapped_places(Bundle(B), 0))[0] == SwappedSlot("qkv", "mxfp4", 24)
    layer = (SwappedSlot("layer", "spark_prof", 24),)
    assert [runs_already(layer, name) for name in ("norm", "experts", "o_proj", "lm_head")] == [
        True, True, False, False,
    ]  # fmt: skip


def test_attention_that_slot_layer_leaves_to_vllm_does_not_run_already() -> None:
    """Of MLA, Mamba or a gated delta net."""
    paths = ("self_attn.kv_a_proj_with_mqa", "mlp.experts")
    places = [SwappedPlace("layer", f"model.layers.2.{path}", "own", "", 9) for path in paths]
    (layer,) = swapped_slots(places)
    assert layer == SwappedSlot("layer", "own", 2, ("experts", "qkv"))
    expected = {"qkv": True, "norm": True, "router": True, "experts": True, "o_proj": False,
                "attention": False, "rope": False, "kv_write": False, "mlp": False}  # fmt: skip
    assert {name: runs_already([layer], name) for name in expected} == expected


def test_a_worker_tells_what_runs_now() -> None:
    row = {"slot": "o", "kernel": "mxfp4", "bits": "changed", "places": {"layers.0.o_proj": 9}}
    worker = SimpleNamespace(**{RUNNING_SWAPS: lambda: [row]})
    assert _swaps(worker) == [row]
    assert _swaps(SimpleNamespace()) == []
