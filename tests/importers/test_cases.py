"""Small traces with a truth: what tells steps, what counts as a kernel, what a screen says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_time import GAPS
from spark_prof.analyzers.summary import summarize
from spark_prof.analyzers.views.waterfall import waterfall_of
from spark_prof.dashboards.render import Layout, render_report
from spark_prof.dashboards.render.json_report import record_of, write
from spark_prof.errors import CommandError
from spark_prof.importers.imported_steps import ImportedSteps
from spark_prof.importers.sources import open_source
from tests.analyzers.agreeing import contradictions, screen_contradictions
from tests.importers.test_impossible_times import GRAPH, START, K, queue, reported, trace
from tests.rows import each_row

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "cases"


def annotation(name: str, ts: float, dur: float, cat: str = "user_annotation") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur,
            "args": {}}  # fmt: skip


def training(count: int = 10, cat: str = "user_annotation", also: str = "") -> str:
    """Steps of 500 us: four kernels, the optimizer's range, and its kernel launched after it."""
    kernels, ranges = [], []
    for n in range(count):
        host, gpu = START + 40 * n, START + 4000 + 500 * n
        for place, name in enumerate(("volta_sgemm_64x64_tn", "forward", "backward", "grads")):
            kernels.append(K(gpu + 105 * place, 100, name=name, launched=host + 3 * place))
        ranges.append(annotation("Optimizer.step#SGD.step", host + 12, 20, cat))
        if also:
            ranges.append(annotation(f"Optimizer.step#{also}.step", host + 12, 5, cat))
        name = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<T>()"
        kernels.append(K(gpu + 420, 30, name=name, launched=host + 37))
    return trace(kernels, ranges)


@each_row(
    ("text", "steps"),
    [
        (training(), 10),
        (training(cat="Operator"), 10),  # before PyTorch 2.0
        (training(also="AdamW"), 10),  # two optimizers in each step
        (training(2), 2),
    ],
)
def test_repeated_optimizer_steps_are_steps(tmp_path: Path, text: str, steps: int) -> None:
    report = reported(tmp_path, text)
    assert report.steps.count == report.steps.unknown == steps
    assert report.run.steps_by == "optimizer steps"
    assert report.run.training
    assert sum(row.calls for row in report.kernels) == 5 * steps
    assert sum(row.us for row in report.kernels) == pytest.approx(430 * steps)
    if steps == 10:
        assert waterfall_of(report).us == pytest.approx(500)
        assert "A training step takes 500.0 us, the median of 10 steps" in screen(report)


@pytest.mark.parametrize("size", [4, 5, 12])
def test_optimizer_steps_follow_each_other_over_windows_of_any_size(size: int) -> None:
    ends = 100 * np.arange(1, 13)
    steps = ImportedSteps(7)
    for begin in range(0, 12, size):
        frame = pd.DataFrame({"end_ns": ends[begin : begin + size]})
        frame["start_ns"], frame["name"] = frame["end_ns"] - 20, "Optimizer.step#SGD.step"
        steps.add_markers(frame.astype({"name": "category"}))
    assert steps.told_by == "optimizer steps"
    found = steps.frame()
    assert found["end_ns"].tolist() == ends.tolist()
    assert found["start_ns"].tolist() == [7, *ends[:-1].tolist()]


def test_one_optimizer_step_tells_none(tmp_path: Path) -> None:
    assert reported(tmp_path, training(1)).run.steps_by == "nothing"


@each_row(
    ("ranges", "steps", "by"),
    [
        ([annotation(f"ProfilerStep#{n}", START - 1000 + 120 * n, 119) for n in range(5)], 5,
         "ranges"),
        ([annotation(f"iteration {n}", START - 1000 + 120 * n, 119, "Operator") for n in range(5)],
         5, "ranges"),
        # Marks: each begins a step.
        ([annotation(f"step {n}", START - 1000 + 120 * n, 0) for n in range(5)], 5, "ranges"),
        ([annotation("warm-up", START - 1000, 300)], 0, "nothing"),
        ([], 0, "nothing"),
    ],
)  # fmt: skip
def test_what_tells_steps(
    tmp_path: Path, ranges: list[dict[str, Any]], steps: int, by: str
) -> None:
    report = reported(tmp_path, trace(queue(), ranges))
    assert (report.steps.count, report.run.steps_by) == (steps, by)
    assert sum(row.calls for row in report.kernels) == 50


@each_row("count", [1, 2, 3, 40])
def test_where_nothing_tells_steps_nothing_is_said_of_one(tmp_path: Path, count: int) -> None:
    report = reported(tmp_path, trace([*queue(count)]))
    whole = 12 * count - 2
    assert report.wall_us == pytest.approx(whole)
    record = record_of(report)
    assert record["steps"]["count"] == record["steps"]["unknown"] == 0
    assert record["steps"]["unknown_us"]["median"] is None
    assert screen(report).count("nothing tells its steps") == 1
    for whole_report in (False, True):
        text = " ".join(render_report(report, Layout(), whole=whole_report).split())
        assert not re.search(r"(?<!\w)(a|each|per|every|median|of 1) (step|token)\b", text, re.I)
        assert "batch size" not in text or "at this batch size?" in text
    assert not report.findings


def test_copies_alone_are_a_recording(tmp_path: Path) -> None:
    copies = [K(k.ts, 10, name="Memcpy HtoD (Pinned -> Device)", launched=k.launched,
                cat="gpu_memcpy") for k in queue(5)]  # fmt: skip
    report = reported(tmp_path, trace(copies, launch="cudaMemcpyAsync"))
    assert report.copies.us == pytest.approx(50)
    assert report.wall_us == pytest.approx(58)
    assert "The recording lasts 58.0 us" in screen(report)


def test_only_kernels_count_as_kernels_in_graphs(tmp_path: Path) -> None:
    work = [
        K(START + 100 * lap + 8 * n, 5, number=9 + lap, node=1 + n, launched=START + 100 * lap - 50,
          **({"name": "Memset (Device)", "cat": "gpu_memset"} if n % 4 == 3 else {"name": f"k{n}"}))
        for lap in range(4) for n in range(12)
    ]  # fmt: skip
    report = reported(tmp_path, trace(work, launch=GRAPH))
    assert any(note.startswith("lost: 36 kernels ran in CUDA graphs") for note in report.notes)
    assert sum(row.calls for row in report.kernels) == 36


def test_the_range_profiler_is_named(tmp_path: Path) -> None:
    ranges = [annotation(f"kernel_{n}", START + 50 * n, 40, "cuda_profiler_range") for n in (0, 1)]
    launch = trace([K(START, "no", launched=START - 9)], ranges)
    events = json.loads(launch)
    events["traceEvents"] = [e for e in events["traceEvents"] if e["cat"] != "kernel"]
    with pytest.raises(CommandError, match=r"range profiler \(2 cuda_profiler_range events\)"):
        reported(tmp_path, json.dumps(events))


def test_layers_that_ranges_name_without_a_component_are_places(tmp_path: Path) -> None:
    kernels = [K(START + 12 * n, launched=START - 900 + 10 * n, name="mine") for n in range(48)]
    ranges = [annotation(f"layer_{n}", START - 901 + 60 * n, 59) for n in range(8)]
    report = reported(tmp_path, trace(kernels, ranges))
    assert [row.layer for row in report.layers] == list(range(8))
    text = " ".join(render_report(report, Layout("text", 100), whole=True).split())
    assert "has a place here" not in text
    assert "Everything has a layer or a component; 100.0 % lacks the other of the two." in text
    assert "carry no range" not in text


def on_amd(**device: Any) -> str:
    """A trace of an AMD GPU whose properties are those."""
    known = {"id": 0, "computeMajor": 9, "computeMinor": 4, "numSms": 304,
             "totalGlobalMem": 206_141_652_992}  # fmt: skip
    document = json.loads(trace(queue(), launch="hipLaunchKernel"))
    return json.dumps(document | {"deviceProperties": [known | device]})


def test_names_of_kernels_say_nothing_of_the_units_of_an_amd_gpu(tmp_path: Path) -> None:
    report = reported(tmp_path, on_amd(name="AMD Instinct MI300X"))
    assert {(row.engine, row.evidence) for row in report.kernels} == {("unknown", "unknown")}
    assert "cuda-core" not in screen(report)
    assert {row.engine for row in reported(tmp_path, trace(queue())).kernels} == {"cuda-core"}


@pytest.mark.slow
@each_row(
    ("device", "name"),
    [
        ({"name": "AMD Radeon 8060S"}, "AMD Radeon 8060S"),
        ({"name": ""}, "AMD Instinct MI300X"),
        ({}, "AMD Instinct MI300X"),
        ({"numSms": 77}, "AMD, model unknown"),
        ({"totalGlobalMem": "much"}, "AMD, model unknown"),
    ],
)
def test_an_amd_gpu_without_a_name_is_told_by_its_figures(
    tmp_path: Path, device: dict[str, Any], name: str
) -> None:
    assert f"Recorded {name}" in screen(reported(tmp_path, on_amd(**device)))


def test_a_trace_of_another_framework_is_named(tmp_path: Path) -> None:
    event = {"ph": "X", "pid": 1, "tid": 13, "dur": 8.5, "name": "loop_fusion"}
    events = [event | {"ts": 100.0 + 10 * n} for n in range(5)]
    with pytest.raises(CommandError, match="not written by PyTorch's profiler"):
        reported(tmp_path, json.dumps({"displayTimeUnit": "ns", "traceEvents": events}))


def test_where_streams_overlap_the_screen_says_why_kernels_take_more(tmp_path: Path) -> None:
    beside = [K(START + 6 + 12 * n, 10, stream=8, name="other", launched=START) for n in range(50)]
    text = screen(reported(tmp_path, trace([*queue(), *beside])))
    assert "more than above, where an instant is shared" in text
    assert "instant is shared" not in screen(reported(tmp_path, trace(queue())))


def test_a_prefill_whose_kernels_wait_says_so(tmp_path: Path) -> None:
    waiting = [K(k.ts - 4, 14, launched=k.launched) for k in queue()]
    step = [annotation("execute_context_1(64)_generation_0(0)", START - 1200, 900)]
    report = reported(tmp_path, trace(waiting, step))
    assert any("In a prefill step kernels start" in note for note in report.notes)
    report = reported(tmp_path, trace(waiting))
    assert any("In the recording kernels start" in note for note in report.notes)


def test_a_kernel_that_waits_is_no_small_one(tmp_path: Path) -> None:
    # 8 us each, of which 6 pass while the one before runs.
    waiting = [K(START + 2 * n, 8, launched=START - 900) for n in range(50)]
    parts = waterfall_of(reported(tmp_path, trace(waiting))).parts
    assert "small" not in [part.kind for part in parts if part.us]


TEXTS = {
    "training": training(),
    "nothing": trace(queue()),
    "one": trace(queue(1)),
    "two streams": trace([*queue(), *(K(START + 5 + 12 * n, 10, stream=8) for n in range(40))]),
    "waiting": trace([K(k.ts - 4, 14, launched=k.launched) for k in queue()]),
    "left out": trace([*queue(49), K(0, 10, launched=START), K(START, -3, launched=START)]),
}


@pytest.mark.slow
@each_row("name", sorted(TEXTS))
def test_figures_of_the_same_name_are_equal(tmp_path: Path, name: str) -> None:
    report = reported(tmp_path, TEXTS[name])
    assert contradictions(json.loads(write(record_of(report)))) == []
    assert screen_contradictions(report) == []
    agrees(report)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared cases are not here")
@pytest.mark.parametrize("path", sorted(SHARED.glob("*.json")), ids=lambda path: path.stem)
def test_the_shared_cases_agree(path: Path) -> None:
    if path.stem == "cuda_profiler_range":
        pytest.skip("refused")
    with open_source(path) as bundle:
        report = summarize(bundle)
    assert contradictions(json.loads(write(record_of(report)))) == []
    assert screen_contradictions(report) == []
    agrees(report)


def screen(report: Report) -> str:
    return " ".join(render_report(report, Layout("text", 100)).split())


def agrees(report: Report) -> None:
    """Fails where the parts on the first screen are not what the tables have."""
    found = waterfall_of(report)
    assert sum(part.us for part in found.parts) == found.us
    if found.of == "recording":
        assert found.us == pytest.approx(report.wall_us)
    step = report.typical_steps[0]
    kernels = sum(row.us for row in report.kernels)
    summed = sum(part.kernel_us for part in step.parts if part.name not in ("memcpy", *GAPS))
    if found.of == "recording":
        assert kernels == pytest.approx(summed)
    calls = sum(row.calls for row in report.kernels)
    assert calls == sum(row.kernels for row in report.components)
