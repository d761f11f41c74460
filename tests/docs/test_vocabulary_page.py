"""docs/vocabulary.md explains every word of the vocabulary, in its order, and no other."""

from __future__ import annotations

from spark_prof import vocabulary
from tests.docs.pages import ROOT, tables
from tests.rows import each_row

SECTIONS = {
    "Components": vocabulary.COMPONENTS,
    "Phases": vocabulary.PHASES,
    "Engines": vocabulary.ENGINES,
    "Precisions": vocabulary.PRECISIONS,
    "Weights": vocabulary.WEIGHTS,
    "Conversions": vocabulary.CONVERSIONS,
    "Evidence": vocabulary.EVIDENCE,
}


@each_row("heading", SECTIONS)
def test_every_word_has_one_line(heading: str) -> None:
    [table] = tables(ROOT / "docs" / "vocabulary.md", heading)
    assert tuple(row[0].strip("`") for row in table) == SECTIONS[heading]
    assert all(len(row) == 2 and row[1] for row in table)
