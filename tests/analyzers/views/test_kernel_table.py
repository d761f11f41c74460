"""The table of kernels holds what the report says, and what is looked for is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.analyzers.views.kernel_table import Wanted, facts_of, search
from spark_prof.datasets.prepared import Prepared, prepare

BUNDLE = Path(__file__).parents[2] / "data" / "code-h100" / "qwen3-30b-a3b-nvfp4"


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepare(str(BUNDLE))


def test_every_kernel_of_the_report_is_there(prepared: Prepared) -> None:
    report = prepared.report
    facts = facts_of(report, prepared.kernels.names)
    assert {entry.row for entry in facts} == set(report.kernels)
    assert report.roofline
    assert report.roofline.decode
    floors = {(row.name, row.component): row for row in report.roofline.decode.rows}
    for entry in facts:
        assert prepared.kernels.names[entry.place] == entry.row.name
        assert entry.calls == entry.row.calls / report.steps.count
        assert entry.floor is floors.get((entry.row.name, entry.row.component))


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted(text="MARLIN moe"),
        Wanted(engine="cuda-core"),
        Wanted(precision="bf16", component="experts"),
        Wanted(text="no such kernel"),
        Wanted(),
    ],
)
def test_a_search_finds_all_that_fits_and_no_more(prepared: Prepared, wanted: Wanted) -> None:
    facts = facts_of(prepared.report, prepared.kernels.names)
    found = search(facts, wanted)
    for entry in facts:
        row = entry.row
        text = f"{row.name} {row.component} {row.conversion or ''}".lower()
        fits = (
            all(word in text for word in wanted.text.lower().split())
            and wanted.engine in ("", row.engine)
            and wanted.precision in ("", row.precision)
            and wanted.component in ("", row.component)
        )
        assert fits == (entry in found)
