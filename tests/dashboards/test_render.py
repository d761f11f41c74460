"""What holds for every format and every report."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import unicodedata

from spark_prof.dashboards.formats import clean
from spark_prof.dashboards.render import RENDERERS, markdown
from tests.rows import each_row

from .sample import SAMPLES

_AS_WRITTEN = {
    "text": clean,
    "md": lambda name: markdown.escape(clean(name)),
    "html": lambda name: html.escape(clean(name)),
    "json": json.dumps,
}


def _one_line(text: str) -> str:
    return re.sub(r"\s+", "", text)


@each_row("sample", SAMPLES)
@each_row("renderer", RENDERERS)
def test_names_the_model(renderer: str, sample: str) -> None:
    report = SAMPLES[sample]
    rendered = RENDERERS[renderer](report)
    # A terminal's lines may break inside of a name.
    assert _one_line(_AS_WRITTEN[renderer](report.run.model)) in _one_line(rendered)
    assert rendered.endswith("\n")


@each_row("sample", SAMPLES)
@each_row("renderer", ["text", "md", "json"])
def test_has_no_control_characters(renderer: str, sample: str) -> None:
    rendered = RENDERERS[renderer](SAMPLES[sample]).replace("\n", "")
    assert not {c for c in rendered if unicodedata.category(c).startswith("C")}


def test_only_html_imports_plotly() -> None:
    program = (
        "import sys; from spark_prof.dashboards.render import RENDERERS; "
        "import spark_prof.dashboards.outline, spark_prof.dashboards.render.terminal; "
        "import spark_prof.dashboards.render.markdown, spark_prof.dashboards.render.json_report; "
        "sys.exit('plotly' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
