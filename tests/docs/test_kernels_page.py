"""The page of the kernels lists them as the registry does, and its examples run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from spark_prof.dashboards.kernel_list import render_kernels
from spark_prof.kernels.dispatch import choose
from spark_prof.kernels.registry import KERNELS
from spark_prof.kernels.tuning import known_runs
from tests.docs.pages import ROOT, tables

PAGE = ROOT / "docs" / "kernels.md"
TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)


def test_the_table_is_the_registry() -> None:
    [table] = tables(PAGE, "The kernels")
    assert table == [
        [
            f"`{kernel.name}`",
            kernel.slot,
            " ".join(kernel.formats),
            " to ".join(f"{count:,}" for count in kernel.tokens),
            kernel.does,
        ]
        for kernel in KERNELS
    ]


def test_every_key_of_the_list_is_on_the_page() -> None:
    [table] = tables(PAGE, "JSON")
    documented = {key.removesuffix("[]") for row in table for key in re.findall(r"`(.+?)`", row[0])}
    assert documented == set(json.loads(render_kernels(KERNELS, (), "json"))[0])


def test_the_cases_that_are_shown_are_those_that_there_are() -> None:
    pytest.importorskip("torch")
    from spark_prof.kernels.check.runner import CHECKS

    [(name, count)] = re.findall(r"^(\w+) +(\d+) +0 +0 ", TEXT, re.M)
    assert len(list(CHECKS[name]("cpu"))) == int(count)
    assert f"{count} passed; 0 failed; 0 skipped" in TEXT


def test_the_example_of_a_product_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    from spark_prof.kernels.runtime.cpu_compiler import compiler

    if not torch.cuda.is_available() and compiler() is None:
        pytest.skip("neither a GPU nor a C++ compiler")
    exec(compile(EXAMPLES[0], PAGE, "exec"), {})
    # Of the result only the rounding to BF16 is left.
    assert 0 < float(capsys.readouterr().out) < 2**-8


def test_the_example_of_the_dispatcher(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    known_runs.cache_clear()
    exec(compile(EXAMPLES[1], PAGE, "exec"), {})
    assert capsys.readouterr().out == "nothing was measured on sm_121a\n"
    assert choose("dense", "nvfp4", 4096, 4096, 1, "sm_121a").config is None
    known_runs.cache_clear()
