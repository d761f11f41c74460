"""The colours: components stay apart for colour-blind readers, and every text can be read."""

from __future__ import annotations

import re
from importlib import resources
from itertools import combinations

import numpy as np
import pytest

from spark_prof.dashboards.colors import COLORS, PHASE_COLORS, SHADES
from tests.rows import each_row

from .colours import VISIONS, contrast, difference, lab

_NEIGHBOURS = re.findall(
    r"(\w+) (\w+)",
    "embedding norm, norm qkv, qkv rope, qkv kv_write, qkv attention, rope kv_write, rope "
    "attention, kv_write attention, attention o_proj, norm ssm, ssm o_proj, o_proj "
    "collective, o_proj norm, collective norm, norm router, norm mlp, router experts, router "
    "shared_experts, experts shared_experts, experts collective, shared_experts collective, "
    "mlp collective, experts norm, shared_experts norm, norm lm_head, lm_head collective, "
    "lm_head sampler, sampler embedding ",
)
"""Components that follow each other in a decoder step of some model."""


@each_row("vision", VISIONS)
def test_neighbours_in_a_step_look_different(vision: str) -> None:
    apart = {pair: _apart(*pair, vision) for pair in _NEIGHBOURS}
    assert min(apart.values()) > 11, min(apart, key=apart.__getitem__)


@each_row("vision", VISIONS)
def test_no_two_components_look_the_same(vision: str) -> None:
    apart = {pair: _apart(*pair, vision) for pair in combinations(COLORS, 2)}
    assert min(apart.values()) > 6, min(apart, key=apart.__getitem__)


@each_row("vision", VISIONS)
def test_the_shades_of_what_is_no_component_look_different(vision: str) -> None:
    seen = [lab(shade, vision) for shade in SHADES]
    assert min(difference(*pair) for pair in combinations(seen, 2)) > 14


def test_no_shade_is_a_component_or_a_phase() -> None:
    others = [*COLORS.values(), *PHASE_COLORS.values()]
    seen = [(lab(shade, "normal"), lab(other, "normal")) for shade in SHADES for other in others]
    assert min(difference(*pair) for pair in seen) > 8


def _apart(one: str, other: str, vision: str) -> float:
    return difference(lab(COLORS[one], vision), lab(COLORS[other], vision))


def test_text_on_the_page_has_the_contrast_of_wcag_aa() -> None:
    style = resources.files("spark_prof.dashboards.render").joinpath("page.css").read_text()
    themes = [
        dict(re.findall(r"--(\w+): (#\w{6});", block))
        for block in re.findall(r":root \{(.*?)\}", style, re.S)
    ]
    assert len(themes) == 2
    for theme in themes:
        for text in ("ink", "quiet", "accent"):
            for behind in ("page", "card"):
                assert contrast(theme[text], theme[behind]) >= 4.5, (text, behind, theme)


def test_the_ruler() -> None:
    """Pairs 1, 17 and 25 of the test data of Sharma, Wu and Dalal, and two ratios of WCAG."""
    pairs = (
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
    )
    for one, other, expected in pairs:
        found = difference(np.array(one), np.array(other))
        assert found == pytest.approx(expected, abs=1e-4)
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
