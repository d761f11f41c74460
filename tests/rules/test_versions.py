"""Versions of vLLM in the order in which they were made."""

from __future__ import annotations

from itertools import pairwise

import pytest

from spark_prof.rules.vllm_versions import VersionWindow, build_of
from tests.rows import each_row

IN_ORDER = (
    "0.9.2", "0.10.0", "0.28.0rc1", "0.28.0", "0.28.0.post1", "0.28.1.dev12+gab12cd3",
    "0.28.1rc1.dev388+g8a728663c", "0.28.1rc1", "v0.28.1", "0.29.0", "1.0.0",
)  # fmt: skip


def test_the_order() -> None:
    builds = [build_of(text) for text in IN_ORDER]
    places = [build.place for build in builds if build]
    assert len(places) == len(IN_ORDER)
    assert all(a < b for a, b in pairwise(places))


@each_row("text", ["", "dev", "28", "main", "0.28.0; rm", "9" * 400])
def test_what_is_no_version(text: str) -> None:
    assert build_of(text) is None


@each_row(
    ("version", "held"),
    [
        ("0.23.0", False), ("0.24.0", True), ("0.25.1", True), ("0.24.0+cu130", True),
        ("0.24.1.dev4+gab12cd3", True), ("0.24.1.dev4+gab12cd3.d20260821", True),
        ("0.25.2", None), ("0.26.0rc1", None), ("0.26.0", False), ("0.27.0.dev1", False),
        ("0.24.0.dev1+gab12cd3", None), ("0.24.0+nv25.9", None), ("0.24.0+gab12cd3", None),
        ("", None), ("dev", None),
    ],
)  # fmt: skip
def test_a_window(version: str, held: bool | None) -> None:
    assert VersionWindow("0.24.0", "0.25.1", "0.26.0").holds(version) is held


def test_an_open_window() -> None:
    assert VersionWindow("0.24.0", "0.25.1").holds("0.26.0") is None
    with pytest.raises(ValueError, match="no version"):
        VersionWindow("soon", "0.25.1").holds("0.26.0")
