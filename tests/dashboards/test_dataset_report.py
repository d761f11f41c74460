"""The report of a dataset: sorted, bounded, and safe whatever a recording is called."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from spark_prof.dashboards.dataset_report import document_of, render_dataset
from spark_prof.dashboards.section import Layout
from spark_prof.datasets.every_recording import Dataset, DatasetRecording, RankFigures, ReadFailure

FIGURES = RankFigures(
    rank=0, steps=10, decode_steps=8, decode_median_us=1000.0, decode_p99_us=1500.0,
    tokens_per_s=123.4, kernels_us=8000.0, components={"experts": 0.75, "attention": 0.25},
    layer_coverage=1.0, component_coverage=0.99, engine_coverage=0.5,
)  # fmt: skip
FAST = DatasetRecording(
    "fast", "tiny (Tiny, mxfp4)", "NVIDIA GB10", "eager", "cupti", "complete", (FIGURES,), ("note",)
)
SLOW = replace(
    FAST,
    name="deep/slow",
    ranks=(replace(FIGURES, decode_median_us=1100.0), replace(FIGURES, rank=1)),
)
NONE = replace(
    FAST,
    name="none",
    ranks=(replace(FIGURES, decode_median_us=None, decode_p99_us=None, tokens_per_s=None,
                   components={"other": 1.0}),),
    notes=("note", "another"),
)  # fmt: skip
DATASET = Dataset(
    "runs", (FAST, SLOW, NONE), (ReadFailure("broken", "it is damaged; record again"),)
)


def test_every_format_names_everything() -> None:
    words = ("fast", "slow", "none", "broken", "it is damaged", "another", "GB10", "experts")
    for kind in ("text", "md", "html", "json"):
        drawn = render_dataset(DATASET, Layout(kind, width=160))
        assert [word for word in words if word not in drawn] == [], kind


def test_differences_are_to_the_first() -> None:
    sections = {section.id: section for section in document_of(DATASET).sections}
    assert [row[1] for row in sections["recordings"].rows] == ["-", "+10.0 %", "-"]
    ranks = sections["ranks"]
    assert [row[:3] for row in ranks.rows] == [
        ("deep/slow", "0", "+10.0 %"),
        ("deep/slow", "1", "+0.0 %"),
    ]


def test_a_note_of_all_stands_there_once() -> None:
    [notes] = (section for section in document_of(DATASET).sections if section.id == "notes")
    assert notes.rows == (("all", "note"), ("none", "another"))


def test_json_has_every_figure() -> None:
    found = json.loads(render_dataset(DATASET, Layout("json")))
    assert [recording["name"] for recording in found["recordings"]] == ["fast", "deep/slow", "none"]
    assert found["recordings"][0]["ranks"][0] == asdict(FIGURES)
    assert found["recordings"][2]["ranks"][0]["decode_median_us"] is None
    assert found["failures"] == [{"name": "broken", "reason": "it is damaged; record again"}]
