"""docs/layers.md says what the analysis of the recordings says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from spark_prof.analyzers.views.layer_cells import step_cells
from spark_prof.analyzers.views.layer_outliers import cause_of, compare_layers, makeups, threshold
from spark_prof.dashboards.formats import difference
from spark_prof.datasets.prepared import prepare
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "layers.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\S+)` \| (\d+) \| (\w+) \| (\S+ %) \| `(\S+)`", re.M)
ROWS = ROW.findall(PAGE)


def test_the_threshold_is_that_of_the_code() -> None:
    assert f"takes {threshold(24, 192):.1f} times the scatter" in PAGE


@pytest.mark.parametrize("name", sorted({row[0] for row in ROWS}))
def test_the_odd_layers_are_those_of_the_recording(name: str) -> None:
    prepared = prepare(str(Path(ROOT, "tests", "data", name)))
    kernels, steps = prepared.kernels, prepared.steps
    decode = np.asarray(steps["phase"] == "decode", bool)
    made = makeups(kernels, steps, decode)
    found = compare_layers(step_cells(kernels, steps), made, decode)
    told = set()
    for odd in found.odd:
        cause = cause_of(odd, made)
        assert cause
        share = difference(odd.us, odd.like.middle_us)
        told.add((name, str(odd.layer), odd.component, share, kernels.names[cause.name]))
    assert told == {row for row in ROWS if row[0] == name}
