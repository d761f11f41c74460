"""The JSON keys that other people's scripts read."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy
import pytest

from spark_prof.dashboards.render import RENDERERS

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
