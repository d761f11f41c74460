"""docs/bundle.md holds exactly what the schemas say."""

from __future__ import annotations

from dataclasses import fields

from spark_prof.profiler.settings import Settings
from spark_prof.traces.bundle import Meta
from tests.docs.pages import BUNDLE_PAGE, tables, with_tables


def test_the_tables_are_those_of_the_schemas() -> None:
    page = BUNDLE_PAGE.read_text(encoding="utf-8")
    assert page == with_tables(page), "run: python -m tests.docs.pages"


def test_the_page_has_one_place_for_the_tables() -> None:
    assert BUNDLE_PAGE.read_text(encoding="utf-8").count("python -m tests.docs.pages -->") == 1


def test_every_field_of_meta_json_is_explained() -> None:
    found = tables(BUNDLE_PAGE, "meta.json")
    documented = [[row[0].strip("`") for row in table] for table in found]
    assert documented == [[field.name for field in fields(kind)] for kind in (Meta, Settings)]
