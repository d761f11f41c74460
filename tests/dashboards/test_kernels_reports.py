"""What `spark-prof kernels` draws: lists, checks and benchmarks in every format."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

pytest.importorskip("torch")

from spark_prof.analyzers.recorded_work import RecordedRun
from spark_prof.analyzers.recorded_work import UnplacedKernels as NotRaced
from spark_prof.dashboards.kernel_races import render_bench, render_work
from spark_prof.dashboards.replacement_kernels import KernelCheckRun, render_checks
from spark_prof.dashboards.section import Layout
from spark_prof.kernels.bench.request import FP4, BenchRequest
from spark_prof.kernels.bench.results import (
    OURS,
    BenchCell,
    BenchMachine,
    BenchReport,
    ImplementationResult,
    MachineCeilings,
    TimeSpread,
    UnmeasuredShape,
    run_of,
)
from spark_prof.kernels.bench.shapes import Recorded, chosen_experts, dense_work
from spark_prof.kernels.check.verdict import CheckVerdict
from spark_prof.kernels.registry import find
from spark_prof.kernels.tuning import TunedShape


def at(value: float) -> TimeSpread:
    return TimeSpread(value, 0.99 * value, 1.01 * value, 20)


def cell(tokens: int, ours: float | None, other: float | None, **changes: object) -> BenchCell:
    results = (
        ImplementationResult(
            OURS, None if ours is None else at(ours), 0.001, "" if ours else "does not run"
        ),
        ImplementationResult(
            "vLLM Marlin", None if other is None else at(other), None, "" if other else "gone"
        ),
    )
    work = TunedShape("dense", "nvfp4", 4096, 4096, tokens)
    return replace(
        BenchCell("dense", work, "Llama o", 9_000_000, 10_000_000, False, results),
        **changes,  # type: ignore[arg-type]
    )


def report(*cells: BenchCell) -> BenchReport:
    machine = BenchMachine(
        "H100", "sm_90a", "580", "13.0", 50 << 20, "2026-11-21T15:00:00", {"a": "1"}
    )
    ceilings = MachineCeilings(at(3e12), at(2.8e12), at(0.5), "a sum", "a copy", "a graph")
    return BenchReport(machine, ceilings, list(cells))


REPORT = report(cell(1, 5.0, 10.0), cell(2, 6.0, 9.0), cell(4, None, 9.0), cell(8, 6.0, None))


def test_a_bench_in_text() -> None:
    text = render_bench(REPORT, Layout("text", 120))
    lines = [line.split() for line in text.splitlines() if line.startswith("Llama o")]
    assert "3,000 GB/s read" in text
    # 9 MB in 5 us are 60 % of 3 TB/s; 10 MB at 3 TB/s and a launch are 3.83 us.
    assert " ".join(lines[0]).endswith("1 5.00 us 60.0 % 3.83 us vLLM Marlin 10.0 us 2.00 x")
    assert " ".join(lines[1]).endswith("9.00 us 1.50 x")
    assert lines[2][-1] == lines[3][-1] == "-"
    assert "Geometric mean of the gain: 1.73 x." in text
    assert "does not run" in text
    assert "gone" in text


def test_the_floor_has_the_price_of_the_subject_s_own_nodes() -> None:
    """3.33 us of bytes, and a node that waits: 0.8 us; two that start early read meanwhile."""
    timed = cell(1, 10.0, 10.0)
    ours = replace(timed.results[0], nodes=3.0, early_nodes=2.0)
    priced = report(replace(timed, results=(ours, timed.results[1])), cell(2, 6.0, 9.0))
    text = render_bench(priced, Layout("text", 200))
    assert "Nodes" in text, "the number is told without a price"
    priced.ceilings = replace(priced.ceilings, node_us=at(0.8), early_node_us=at(0.4))
    found = json.loads(render_bench(priced, Layout("json")))["cells"]
    assert [row["floor_us"] for row in found] == pytest.approx([4.1333, 3.8333], abs=1e-3)
    assert found[0]["bytes_us"] == pytest.approx(3.3333, abs=1e-3)
    assert [row["nodes_of_distance"] for row in found] == [pytest.approx(0.12), None]
    priced.ceilings = replace(priced.ceilings, early_node_us=at(2.0))
    assert priced.ceilings.floor_us(priced.cells[0]) == pytest.approx(4.8), "more than the bytes"
    assert " 3, 22.0 % " in " ".join(render_bench(priced, Layout("text", 200)).split())


def test_what_a_recording_ran_stands_beside_the_race() -> None:
    names = ("nvjet_sm90_tst_64x8_64x16_1x1", "void cublasLt::splitKreduce_kernel<32, 16>(int)")
    with_it = report(cell(1, 5.0, 10.0, recorded=Recorded(names, 12.5, 96, False)), cell(2, 6, 9))
    text = render_bench(with_it, Layout("text", 200))
    lines = [" ".join(line.split()) for line in text.splitlines() if line.startswith("Llama o")]
    assert lines[0].endswith("2.00 x nvjet_sm90_tst_64x8_64x16_1x1 and 1 other 12.5 us")
    assert lines[1].endswith("1.50 x -")
    assert "Recorded" not in render_bench(REPORT, Layout("text", 200))
    found = json.loads(render_bench(with_it, Layout("json")))["cells"]
    assert [each["recorded"] and each["recorded"]["us"] for each in found] == [12.5, None]
    left = (NotRaced("norm", 49.0, "no matrix and no experts"), NotRaced("mlp", 24.0, "no kernel"))
    run = RecordedRun("gpt", "H100", "9.0", 132, (1,), (), 472.0, left)
    text = render_bench(with_it, Layout("text", 120), run=run)
    assert "73 of 472 kernels of a step of gpt are not raced." in text
    assert len(json.loads(render_bench(with_it, Layout("json"), run=run))["not_raced"]) == 2


def test_what_a_search_found_stands_beside_what_was_before() -> None:
    text = render_bench(
        report(cell(1, 5.0, 10.0, before_us=7.5), cell(2, 6, 9)), Layout("text", 200)
    )
    lines = [" ".join(line.split()) for line in text.splitlines() if line.startswith("Llama o")]
    assert " 1 7.50 us 5.00 us " in lines[0]
    assert " 2 - 6.00 us " in lines[1]
    assert "Before" not in render_bench(REPORT, Layout("text", 200))


def test_a_bench_in_json_and_what_is_kept_of_it() -> None:
    found = json.loads(render_bench(REPORT, Layout("json")))
    assert [row["gain"] for row in found["cells"]] == [2.0, 1.5, None, None]
    assert found["cells"][0]["share_of_read"] == pytest.approx(0.6)
    assert found["cells"][0]["floor_us"] == pytest.approx(3.8333, abs=1e-3)
    assert found["schema"] == 1
    run = run_of(REPORT)
    assert (run.architecture, run.machine) == ("sm_90a", "H100")
    assert [(row.work.tokens, row.us, row.fallback, row.fallback_us) for row in run.rows] == [
        (1, 5.0, "vLLM Marlin", 10.0),
        (2, 6.0, "vLLM Marlin", 9.0),
        (8, 6.0, "", None),
    ]
    assert [row.wins for row in run.rows] == [True, True, False]


def test_nothing_timed_is_a_report_and_what_was_left_out_is_told_in_every_format() -> None:
    assert "3,000 GB/s" in render_bench(report(), Layout())
    assert json.loads(render_bench(report(), Layout("json")))["cells"] == []
    left = report(cell(1, 5.0, 10.0))
    left.add(UnmeasuredShape("experts of \x1b[2J<b>", "out of\nmemory"))
    for kind in ("text", "md", "json"):
        drawn = render_bench(left, Layout(kind))
        assert "experts of" in drawn
        assert "\x1b" not in drawn
    assert "<b>" not in render_bench(left, Layout("md")).replace("\\<b\\>", "")


VERDICTS = (
    CheckVerdict("w4a16", "one", "cpu", "passed", 0.25),
    CheckVerdict("w4a16", "two", "cpu", "failed", 3.0, "wrong \x1b[2J"),
    CheckVerdict("w4a16", "three", "cpu", "failed", None, "wrong \x1b[2J"),
    CheckVerdict("w4a16", "four", "cpu", "skipped", None, "needs a GPU"),
    CheckVerdict("routing", "five", "cpu", "passed"),
)


def test_checks() -> None:
    kernels = (*find("qkv-w4a16"), *find("o-w4a16"), *find("router-topk"))
    found = KernelCheckRun(kernels, "the CPU", "cpu", VERDICTS)
    text = render_checks(found, Layout())
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert "2 passed; 2 failed; 1 skipped" in text
    assert rows["w4a16"] == ["w4a16", "1", "2", "1", "300.0", "%", "qkv-w4a16,", "o-w4a16"]
    assert rows["routing"] == ["routing", "1", "0", "0", "-", "router-topk"]
    assert "needs a GPU" in text
    assert "\x1b" not in text
    # In the column's title; a cause that two cases share is shown once.
    assert text.count("wrong") == 2
    assert "\x1b" not in render_checks(found, Layout("md"))
    record = json.loads(render_checks(found, Layout("json")))
    assert (record["passed"], record["failed"], record["skipped"]) == (2, 2, 1)
    assert [case["case"] for case in record["cases"]] == ["one", "two", "three", "four", "five"]


def test_what_would_be_timed_is_the_key_of_a_measurement() -> None:
    """Of each expert gate and up together are the rows."""
    found = json.loads(render_work(BenchRequest(tokens=(1, 4)), None, Layout("json")))["work"]
    keys = {TunedShape(*(row[name.name] for name in fields(TunedShape))) for row in found}
    experts = chosen_experts()
    assert {key for key in keys if key.kernel == "moe"} == {
        TunedShape("moe", s.format, 2 * s.intermediate, s.hidden, tokens, s.experts, s.top_k)
        for s in experts for tokens in (1, 4)
    }  # fmt: skip
    dense = {key for key in keys if key.kernel == "dense"}
    assert dense == {
        TunedShape("dense", form, shape.rows, shape.columns, tokens)
        for shape, form in dense_work((), FP4) for tokens in (1, 4)
    }  # fmt: skip
    assert keys == dense | {key for key in keys if key.kernel == "moe"}
