"""The tables of the page are what the code does, and its example runs."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import get_args

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from spark_prof.kernels import formats  # noqa: E402
from tests.docs.pages import ROOT, tables  # noqa: E402

PAGE = ROOT / "docs" / "number-formats.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    [example] = re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)
    exec(compile(example, PAGE, "exec"), {})
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["NvFp4", "MxFp4"]


def test_the_types_and_what_they_hold() -> None:
    for name, held, _ in tables(PAGE, "Number formats")[0]:
        kind = getattr(formats, name.strip("`"))
        assert re.findall(r"`(\w+)`", held) == [field.name for field in fields(kind)]


def test_the_values_of_e2m1() -> None:
    [[row]] = tables(PAGE, "E2M1")
    assert [float(value) for value in row[1:]] == list(formats.E2M1_VALUES[:8])


def test_the_recipes_of_mxfp4() -> None:
    [rows] = tables(PAGE, "How quantizing chooses a scale")
    assert [row[0].strip("`") for row in rows] == list(get_args(formats.MxRecipe))
    for recipe, _, *shown, _ in rows:
        for largest, scale in zip((6.5, 7.0), shown, strict=True):
            found = formats.e8m0_scales(torch.tensor([largest]), 6.0, recipe.strip("`"))
            assert formats.e8m0_decode(found).item() == float(scale)
