"""The report as Markdown: complete snapshots, and tables that no name can break."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_prof.dashboards.render import RENDERERS
from spark_prof.dashboards.render.markdown import escape
from tests.rows import each_row

from .sample import SAMPLES


@pytest.mark.parametrize("sample", SAMPLES)
def test_snapshot(sample: str, snapshot: Callable[[str, str], None]) -> None:
    snapshot(f"{sample}.md", RENDERERS["md"](SAMPLES[sample]))


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
