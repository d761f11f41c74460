"""Every finding and every part of the waterfall leads to a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.analyzers.findings.ranking import PAGES
from spark_prof.datasets.prepared import Prepared, prepare
from spark_prof.explorer.links import (
    PARTS,
    page_of,
    place_of_finding,
    place_of_part,
    ranked_step,
)

DATA = Path(__file__).parents[1] / "data"
_AUDITED = {"timeline", "layers", "kernels", "conversions", "fallbacks", "ranks", "steps", "host"}


@pytest.fixture(scope="module")
def shown() -> Prepared:
    return prepare(str(DATA / "code-h100" / "qwen3-30b-a3b-nvfp4"))


def test_the_pages_exist() -> None:
    assert {*PAGES.values(), *PARTS.values()} <= _AUDITED


def test_a_finding_about_a_kernel_leads_to_it(shown: Prepared) -> None:
    checked = 0
    for finding in shown.report.findings:
        path, values = place_of_finding(finding, shown)
        assert path == page_of(finding)
        if finding.id == "far-from-memory-floor":
            name = shown.kernels.names[int(values["kernel"])]
            assert finding.text.startswith(f"{short_name(name)} ({values['component']}")
            checked += 1
    assert checked >= 2


def test_gaps_lead_to_a_step_of_median_length(shown: Prepared) -> None:
    path, values = place_of_part("launch_gaps", "", shown)
    assert (path, values) == ("timeline", {"step": ranked_step(shown.steps, "median")})
    steps = shown.steps.set_index("step")
    decode = steps[steps["phase"].astype(str) == "decode"]["step_us"]
    longer = (decode > decode[values["step"]]).sum()
    assert abs(longer - len(decode) / 2) <= 1
    assert place_of_part("component", "qkv", shown)[1] == {"component": "qkv"}


def test_without_steps_there_is_no_typical_one(shown: Prepared) -> None:
    assert ranked_step(shown.steps.iloc[:0], "median") is None
