"""The document around the first page: Streamlit's own, with the first page above it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_prof.explorer.early_page import early_page, streamlit_files


def streamlit_page() -> str:
    return (streamlit_files() / "index.html").read_text()


def test_all_that_streamlit_loads_is_loaded_after_what_the_recording_says() -> None:
    page = early_page("run")
    assert page
    loaded = re.findall(r"""(?:src|href)=["'](\./[^"']+)""", streamlit_page())
    assert any(one.endswith(".js") for one in loaded)
    for one in loaded:
        assert one in page.after
        assert one not in page.before
    assert page.after.count('<div id="root"></div>') == 1


def test_it_is_one_document_that_asks_nobody_else() -> None:
    page = early_page("run")
    assert page
    whole = page.before + page.after
    for tag in ("<html", "</html>", "<head>", "</head>", "<body>", "</body>", "<title>", "<main>"):
        assert whole.count(tag) == 1, tag
    assert whole.count('<div id="early">') == 1
    assert not re.search(r"""(src|href)=["'](https?:)?//""", whole)
    assert "Streamlit</title>" not in whole


def test_the_figures_script_is_fetched_and_run_early() -> None:
    page = early_page("run")
    assert page
    fetched = re.findall(
        r'rel="modulepreload" crossorigin href="([^"]*PlotlyChart[^"]*)"', page.after
    )
    assert len(fetched) == 1
    assert (streamlit_files() / fetched[0]).is_file()
    # Behind Streamlit's own script, which a browser runs first.
    _, _, rest = page.after.partition("/static/js/index.")
    assert f'import("{fetched[0]}")' in rest


def test_a_hostile_name_stays_a_name() -> None:
    page = early_page("<img src=x onerror=alert(1)>\n</script>&amp;")
    assert page
    assert "<img" not in page.before
    assert "&lt;img src=x onerror=alert(1)&gt;" in page.before
    assert "&amp;amp;" in page.before


@pytest.mark.parametrize(
    "changed",
    ["", "no page", "<head></head><body>", "<head></head><head></head><body></body>",
     "<head><title>a</head><body></body>"],
)  # fmt: skip
def test_a_page_that_is_not_as_expected_is_left_to_streamlit(tmp_path: Path, changed: str) -> None:
    (tmp_path / "index.html").write_text(changed)
    assert early_page("run", tmp_path) is None
    assert early_page("run", tmp_path / "missing") is None
