"""The page about clients names every tool that is read and every key of the JSON."""

from __future__ import annotations

from dataclasses import fields

from spark_prof.analyzers.clients.client_comparison import AGREES
from spark_prof.analyzers.clients.client_rows import VERDICTS, ClientRow, Comparison
from spark_prof.traces.benchmarks.result import CLOCKS
from tests.docs.pages import ROOT, tables

PAGE = ROOT / "docs" / "clients.md"


def test_every_json_key_of_a_run_is_on_the_page() -> None:
    [table] = tables(PAGE, "JSON")
    comparisons = {f"comparisons[].{field.name}" for field in fields(Comparison)}
    rows = {field.name for field in fields(ClientRow)} - {"comparisons", "sentences"}
    expected = rows | comparisons | {"comparisons[].difference", "sentences[]"}
    assert {row[0].strip("`") for row in table} == expected


def test_every_verdict_and_clock_is_explained() -> None:
    [table] = tables(PAGE, "How they are compared")
    assert {row[0].strip("`") for row in table} == set(VERDICTS)
    assert f"{100 * AGREES:.0f} %" in table[0][1]
    [files] = tables(PAGE, "Which results")
    assert {row[3] for row in files} == set(CLOCKS)
