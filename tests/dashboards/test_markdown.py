"""The report as Markdown: complete snapshots, and tables that no name can break."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from spark_prof.dashboards.markdown import escape, render
from tests.rows import each_row

from .sample import SAMPLES


@pytest.mark.parametrize("sample", SAMPLES)
def test_snapshot(sample: str, snapshot: Callable[[str, str], None]) -> None:
    snapshot(f"{sample}.md", render(SAMPLES[sample]))


@each_row("sample", SAMPLES)
def test_rows_have_as_many_cells_as_their_header(sample: str) -> None:
    for table in re.findall(r"(?:^\|.*\n)+", render(SAMPLES[sample]), re.M):
        assert len({len(re.findall(r"\|", line)) for line in table.splitlines()}) == 1


def test_a_name_opens_no_markup() -> None:
    outside_code = re.sub(r"`[^`\n]*`", "", render(SAMPLES["hostile"]).replace("\\`", ""))
    own = r"<details><summary>\d+ rows</summary>|</details>|<!-- -->"
    assert "<" not in re.sub(own, "", outside_code)
    assert not re.search(r"@\w", outside_code)
    assert not re.search(r"(?<!\\)\[", outside_code)


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
def test_escape(plain: str, escaped: str) -> None:
    assert escape(plain) == escaped
