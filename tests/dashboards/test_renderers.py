"""What holds for every format and every report: complete snapshots, and what no snapshot shows."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from functools import cache
from importlib import resources

import pytest
from plotly.offline import get_plotlyjs
from rich.cells import cell_len

from spark_prof.dashboards import cells
from spark_prof.dashboards.render import RENDERERS, Layout, markdown, render_report
from spark_prof.dashboards.render.terminal import draw
from spark_prof.dashboards.section import document, table
from spark_prof.dashboards.units import clean
from tests.rows import each_row

from .documents import whole
from .page import Page, contrast
from .sample import HOSTILE_NAME, SAMPLES

_AS_WRITTEN: dict[str, Callable[[str], str]] = {
    "text": clean,
    "md": lambda name: markdown.escape(clean(name)),
    "html": lambda name: html.escape(clean(name)),
    "json": json.dumps,
}


@pytest.mark.parametrize(("kind", "ending"), [("text", "txt"), ("md", "md")])
@pytest.mark.parametrize("sample", ["deep", "almost_empty", "nothing", "filled_with_hostile_text"])
def test_snapshot(
    sample: str, kind: str, ending: str, snapshot: Callable[[str, str], None]
) -> None:
    snapshot(f"{sample}.{ending}", whole(SAMPLES[sample], kind))


def _one_line(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.slow
@each_row("sample", SAMPLES)
@each_row("renderer", RENDERERS)
def test_names_the_model_and_can_be_written_to_a_file(renderer: str, sample: str) -> None:
    report = SAMPLES[sample]
    rendered = RENDERERS[renderer](report)
    # A terminal's lines may break inside of a name.
    assert _one_line(_AS_WRITTEN[renderer](report.run.model)) in _one_line(rendered)
    assert rendered.endswith("\n")
    assert rendered.encode("utf-8")
    if renderer != "html":
        text = rendered.replace("\n", "")
        assert not {c for c in text if unicodedata.category(c).startswith("C")}


@each_row("sample", ["filled", "mixture_of_experts"])
def test_html_has_the_whole_names_of_what_is_called_by_short_ones(sample: str) -> None:
    report = SAMPLES[sample]
    page = RENDERERS["html"](report)
    names = {row.name for row in (*report.conversions.attributed, *report.kernels[:10])}
    assert names
    for name in names:
        assert f"<code>{_AS_WRITTEN['html'](name)}</code>" in page


@pytest.mark.slow
def test_only_html_imports_plotly() -> None:
    program = (
        "import sys; from spark_prof.dashboards.render import RENDERERS; "
        "import spark_prof.dashboards.outline, spark_prof.dashboards.render.terminal; "
        "import spark_prof.dashboards.render.markdown, spark_prof.dashboards.render.json_report; "
        "sys.exit('plotly' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.slow
@each_row("width", [60, 80, 100, 200])
@each_row("sample", SAMPLES)
def test_text_fits_the_terminal_and_cuts_no_figure(sample: str, width: int) -> None:
    rendered = render_report(SAMPLES[sample], Layout("text", width), whole=True)
    lines = [line for line in rendered.splitlines() if not line.startswith("$ ")]
    assert max(map(cell_len, lines)) <= width
    assert width < 100 or "hostile" in sample or "…" not in rendered


@each_row("width", [60, 80])
def test_a_figure_keeps_its_unit_where_names_and_texts_are_cut(width: int) -> None:
    columns = [
        cells.Text("Role", lambda _: "self_attn.qkv_proj, which is long"),
        cells.Name("Kernel", lambda _: "marlin_moe_wna16::Marlin_of_many_letters"),
        cells.Time("A step", lambda us: us),
        cells.Share("Of bound", lambda _: 0.393),
        cells.Text("Runs on", lambda _: "tensor-core bf16"),
    ]
    drawn = draw(document("Title", (), [table("kernels", "Kernels", [573.0], columns)]), width)
    assert max(map(cell_len, drawn.splitlines())) <= width
    assert "573.0 us" in drawn
    assert "39.3 %" in drawn


def test_text_has_colour_only_when_asked_and_never_that_of_a_name() -> None:
    report = SAMPLES["mixture_of_experts"]
    assert "\x1b[" not in render_report(report, Layout())
    assert "\x1b[" in render_report(report, Layout("text", color=True))
    rendered = render_report(SAMPLES["hostile"], Layout("text", color=True))
    assert not any(evil in rendered for evil in ("\x1b[31mred", "\x1b]", "\x9b"))


@each_row(
    ("plain", "escaped"),
    [
        ("kv_write", "kv_write"),
        ("__init__", r"\_\_init\_\_"),
        ("a|b", "a&#124;b"),
        ("a & b", "a &amp; b"),
        ("&#124;", r"&amp;\#<!-- -->124;"),
        ("{lambda(int)#1}", r"\{lambda(int)\#<!-- -->1\}"),
        ("@you", "@<!-- -->you"),
        ("a @ b", "a @ b"),
        ("https://evil.example", "https&#58;//evil.example"),
    ],
)
def test_markdown_is_escaped(plain: str, escaped: str) -> None:
    assert markdown.escape(plain) == escaped


@cache
def _page(sample: str) -> Page:
    return Page(RENDERERS["html"](SAMPLES[sample]))


def test_hostile_names_on_a_page_are_strings_without_tags() -> None:
    page = _page("hostile")
    assert len(page.scripts) == len(_page("mixture_of_experts").scripts)
    own = [script for script in page.scripts if script != get_plotlyjs()]
    charts = "".join(script for script in own if "Plotly.newPlot" in script)
    assert "alert(1)" in charts
    assert not re.search(r"<[a-z/!]", charts, re.I)
    # Plotly would read tags that JSON merely encodes: there have to be entities inside.
    assert r"\u003cscript" not in charts
    assert r"\u0026lt;script" in charts
    texts = "".join(page.texts)
    assert clean(HOSTILE_NAME) in texts
    assert "\x1b" not in texts
    assert "url(" not in texts


@each_row(("sample", "copies"), [("mixture_of_experts", 1), ("almost_empty", 1), ("nothing", 0)])
def test_a_page_brings_plotly_once(sample: str, copies: int) -> None:
    assert RENDERERS["html"](SAMPLES[sample]).count(get_plotlyjs()) == copies


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
