"""Every key that the JSON has under `counters` is on its page, and no other."""

from __future__ import annotations

from dataclasses import fields

from spark_prof.analyzers.counters.counter_rows import CounterBatch, CounterRow, Counters, WeightRow
from tests.docs.pages import ROOT, tables


def test_every_json_key_of_the_counters_is_on_their_page() -> None:
    [table] = tables(ROOT / "docs" / "counters.md", "JSON")
    documented = {row[0].strip("`") for row in table}
    rows = {f"batches[].rows[].{field.name}" for field in fields(CounterRow)}
    weights = {f"batches[].weights[].{field.name}" for field in fields(WeightRow)}
    batches = {f"batches[].{field.name}" for field in fields(CounterBatch)}
    whole = {field.name for field in fields(Counters)}
    expected = rows | weights | batches | whole | {"batches[].weights[].ratio", "long[]", "notes[]"}
    expected -= {"batches", "long", "notes", "batches[].rows", "batches[].weights"}
    assert documented == expected
