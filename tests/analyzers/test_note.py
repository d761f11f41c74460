"""What a report's sentences are about decides which of them the first screen has."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace
from pathlib import Path

import spark_prof
from spark_prof.analyzers.report_notes import Note, about
from spark_prof.dashboards.short_report import short_report

DATA = Path(__file__).parents[1] / "data"


def test_the_first_screen_goes_by_what_a_note_is_about() -> None:
    report = spark_prof.report(DATA / "h100-gpt-oss-20b-mxfp4-eager")
    notes = (Note("Of figures."), Note("Of the recording.", "recording"), Note("Gone.", "left out"))
    shown = short_report(replace(report, notes=notes))
    [caveats] = [section for section in shown.sections if section.id == "caveats"]
    texts = [str(row[0]) for row in caveats.rows]
    assert texts[0] == "Gone."
    assert not any("Of the recording" in text for text in texts)


def test_it_is_a_text() -> None:
    note = Note("Gone.", "left out")
    assert json.dumps([note]) == '["Gone."]'
    assert about("Any other.") == "figures"
    for again in (copy.copy(note), copy.deepcopy(note), pickle.loads(pickle.dumps(note))):
        assert (again, about(again)) == (note, "left out")
