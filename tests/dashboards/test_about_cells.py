"""What is said of odd layers and of single kernels."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.analyzers.finding import Finding, NamedKernel
from spark_prof.analyzers.step_time import StepKind
from spark_prof.analyzers.views.kernel_calls import LaunchUse, facts_of
from spark_prof.analyzers.views.layer_outliers import (
    EqualLayers,
    LayerComparison,
    OutlierCause,
    OutlierCell,
)
from spark_prof.dashboards import about_cells
from spark_prof.dashboards.sections import one_kernel_section
from tests.rows import each_row

from .sample import SAMPLES

GROUP = EqualLayers("experts", tuple(range(24)), (27.4,) * 17 + (31.2,) + (27.4,) * 6, 27.4)
ODD = OutlierCell(17, 31.2, GROUP, 22.0)
NAMES = ("gemm", "other_gemm")
SLOWER = OutlierCause(0, "time", 20.0, 16.2, 1.0, 1.0)


@each_row(
    ("cause", "said"),
    [
        (SLOWER, "gemm takes 20.0 us a step, 16.2 us in those like it"),
        (OutlierCause(0, "calls", 20.0, 16.2, 2.0, 1.0),
         "gemm is called 2 times a step, 1 in those like it"),
        (OutlierCause(1, "other", 20.0, 0.0, 1.0, 0.0),
         "other_gemm, which those like it do not run, takes 20.0 us a step"),
        (OutlierCause(1, "other", 0.0, 3.0, 0.0, 1.0),
            "those like it run other_gemm, 3.00 us a step"),
    ],
)  # fmt: skip
def test_an_odd_layer_is_told_with_its_cause(cause: OutlierCause, said: str) -> None:
    assert about_cells.outlier_sentence(ODD, cause, NAMES) == (
        f"Layer 17 experts: 31.2 us against 27.4 us in 23 layers like it, +13.9 %: {said}."
    )
    found = LayerComparison((ODD,), (GROUP,), 192, 4, 6.46, 30, True)
    section = about_cells.outlier_layers(found, [cause], NAMES)
    assert section.rows[0][:5] == ("17", "experts", "31.2 us", "27.4 us", "+13.9 %")
    assert section.rows[0][-1] == said
    assert "4 cells have too few layers like them" in section.intro[1]


@each_row("sample", SAMPLES)
def test_facts_of_any_kernel_can_be_told(sample: str) -> None:
    report = SAMPLES[sample]
    none = pd.DataFrame(columns=["phase", "name", "component", "step_calls", "us"])
    every = StepKind("all", None, report.steps.count)
    for facts in facts_of(report, [row.name for row in report.kernels], every, none):
        assert one_kernel_section.facts(facts).rows
        assert one_kernel_section.floor(facts.floor).rows
        assert one_kernel_section.reason(facts.row)
        assert one_kernel_section.streamed(report, facts.row.component).columns
        assert one_kernel_section.counters(report, facts.row.name).columns


def test_a_shape_is_told_with_what_limits_it() -> None:
    report = SAMPLES["filled"]
    assert report.shapes
    [row] = report.shapes.rows
    assert row.occupancy
    launch = row.grid, row.block, row.registers, row.shared_bytes
    uses = [LaunchUse(*launch, 3, 1.0, 5.0), LaunchUse("", "", 0, 0, 1, 1.0, 1.0)]
    told, unknown = one_kernel_section.launches(uses, row.name, row.component, report).rows
    assert told[-1] == " and ".join(row.occupancy.limiters)
    assert unknown[-3:] == ("-", "-", "-")


def test_findings_that_name_a_kernel_are_found() -> None:
    name = "void marlin::Marlin<1, 2>(int4 const*)"
    text = f"{short_name(name)} reads"
    named = Finding("a", 1.0, text, "fix", kernels=(NamedKernel(name, "qkv"),))
    other = Finding("b", 1.0, "something else", "fix", ("no kernel",))
    assert one_kernel_section.named_by((named, other), name) == ((named,), ())
    of_w2 = replace(named, kernels=(NamedKernel(name, "experts", ("w2",)),))
    of_w13 = replace(named, kernels=(NamedKernel(name, "experts", ("w13",)),))
    found = one_kernel_section.named_by((of_w2, other, of_w13), name, "w13")
    assert found == ((of_w13,), (of_w2,))


def test_the_reason_for_a_component_is_that_of_its_name_or_place() -> None:
    row = KernelRow("gemm_of_nobody", 1, 1.0, 1.0, "qkv", "unknown", None, "unknown", None)
    assert "by its place" in one_kernel_section.reason(row)
    assert "it is other" in one_kernel_section.reason(replace(row, component="other"))
    known = replace(row, name="void flash::FlashAttnFwdCombine<1>(int)", component="attention")
    assert "Its name tells" in one_kernel_section.reason(known)


def test_a_guess_is_called_one() -> None:
    report = SAMPLES["mixture_of_experts"]
    sure = replace(report.coverage, proven=0.9, derived=0.1, guessed=0.0, unknown=0.0)
    assert not about_cells.placed_by(replace(report, coverage=sure))
    unsure = replace(sure, proven=0.5, derived=0.15, guessed=0.3, unknown=0.05)
    said = " ".join(about_cells.placed_by(replace(report, coverage=unsure)))
    assert (
        said == "Owner of the time: proven 50.0 %, derived 15.0 %, guessed 30.0 %, unknown 5.0 %."
    )
