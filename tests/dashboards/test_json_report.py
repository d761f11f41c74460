"""The JSON keys that other people's scripts read."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy
import pytest

from spark_prof.dashboards import outline
from spark_prof.dashboards.render import RENDERERS
from spark_prof.dashboards.render.json_report import record_of
from spark_prof.dashboards.render.limits import KEYS

from .filled import filled
from .sample import SAMPLES


def test_a_figure_that_does_not_exist_is_null() -> None:
    document = json.loads(RENDERERS["json"](SAMPLES["nothing"]), parse_constant=pytest.fail)
    assert document["coverage"]["layer"] is None
    assert document["time"]["union_us"] is None
    assert document["time"]["sum_us"] == 0


def test_takes_figures_of_numpy() -> None:
    report = replace(SAMPLES["almost_empty"], wall_us=numpy.float32(math.inf))
    report = replace(report, steps=replace(report.steps, count=numpy.int64(3)))
    document = json.loads(RENDERERS["json"](report))
    assert document["steps"]["count"] == 3
    assert document["time"]["wall_us"] is None


def test_every_section_of_the_report_can_be_asked_of_its_json() -> None:
    report = filled()
    keys = record_of(report).keys()
    assert [word for word in outline.words(report) if word not in {*keys, *KEYS}] == []
    assert [word for word, keys_of in KEYS.items() if not {*keys_of} <= {*keys}] == []
