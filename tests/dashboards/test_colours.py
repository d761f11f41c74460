"""Every text of a page can be read."""

from __future__ import annotations

import re
from importlib import resources

from .colours import contrast


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
