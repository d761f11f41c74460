"""What holds for every document that a command draws, whatever the texts in it are."""

from __future__ import annotations

import re
import unicodedata

import pytest
from markdown_it import MarkdownIt
from rich.cells import cell_len

from tests.rows import each_row

from .documents import DOCUMENTS, TEXTS, draw
from .page import Page, check_page

_EVERY_DOCUMENT = each_row("document", DOCUMENTS)
_EVERY_TEXT = each_row("text", TEXTS)
_OWN_HTML = re.compile(r"^(<details><summary>[\d,]+ rows</summary>|</details>)$", re.M)
_OWN_PARTS = {"text", "text_special", "code_inline", "strong_open", "strong_close", "softbreak"}


@pytest.mark.slow
@_EVERY_TEXT
@_EVERY_DOCUMENT
def test_text_fits_100_columns_without_colours(document: str, text: str) -> None:
    drawn = draw(document, text, "text")
    # A command that was broken into lines could not be copied.
    lines = [line for line in drawn.splitlines() if not line.startswith("$ ")]
    assert max(map(cell_len, lines)) <= 100
    assert not {c for c in drawn.replace("\n", "") if unicodedata.category(c).startswith("C")}


@pytest.mark.slow
@_EVERY_TEXT
@_EVERY_DOCUMENT
def test_markdown_fits_a_post_and_has_no_markup_of_a_name(document: str, text: str) -> None:
    drawn = draw(document, text, "md")
    assert len(drawn) <= 32_000
    outside_code = re.sub(r"`[^`\n]*`", "", _OWN_HTML.sub("", drawn).replace("\\`", ""))
    outside_code = re.sub(r"(?<=\n\n)(?:    .*\n)+", "", outside_code)
    assert "<" not in outside_code.replace("<!-- -->", "")
    assert not re.search(r"(?<!&)[@#]\w", outside_code)
    assert not re.search(r"(?<!\\)\[", outside_code)
    for table in re.findall(r"(?:^\|.*\n)+", drawn, re.M):
        assert len({line.count("|") for line in table.splitlines()}) == 1
    # GitHub reads the table of a folded section only after an empty line.
    assert drawn.count("<details>") == len(re.findall(r"</summary>\n\n\|", drawn))
    assert drawn.count("<details>") == len(re.findall(r"\|\n\n</details>\n", drawn))
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    for block in parser.parse(drawn):
        if block.type == "html_block":
            assert _OWN_HTML.sub("", block.content).strip() == ""
        assert block.type not in ("fence", "hr", "blockquote_open"), block.content
        for part in block.children or ():
            # An empty comment keeps GitHub from calling somebody of that name.
            assert part.type in _OWN_PARTS or part.content == "<!-- -->", part.content


@pytest.mark.slow
@_EVERY_TEXT
@_EVERY_DOCUMENT
def test_a_page_is_inert_and_below_6_mb(document: str, text: str) -> None:
    drawn = draw(document, text, "html")
    assert len(drawn.encode()) < 6_000_000
    check_page(Page(drawn))
