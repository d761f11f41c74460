"""The page of the kernels lists them as the registry does, and its examples run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_prof.dashboards.replacement_kernels import render_kernels
from spark_prof.kernels.dispatch import choose
from spark_prof.kernels.registry import KERNELS
from spark_prof.kernels.tuning import known_runs
from tests.docs.kernel_figures import (
    BARS,
    PAGE,
    REPORT,
    REPORTS,
    for_the_page,
    for_the_readme,
    peer,
    with_figures,
)
from tests.docs.pages import README, tables

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


@pytest.mark.parametrize(
    ("page", "figures"), [(PAGE, for_the_page), (README, for_the_readme)], ids=["page", "README"]
)
def test_the_figures_are_those_of_the_result(
    page: Path, figures: Callable[[str, str], list[str]]
) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == with_figures(text, figures), "run: python -m tests.docs.kernel_figures"


def test_every_bar_is_on_the_page() -> None:
    bars, *layers = tables(PAGE, "How fast")
    assert [row[0] for row in bars] == list(BARS)
    assert all(len(row) == 6 for table in layers for row in table)
    assert all(len(row) == 6 for row in tables(README, "Kernels for small batches")[0])


def test_what_the_page_says_of_the_run() -> None:
    machine, ceilings = REPORT.machine, REPORT.ceilings
    said = [
        machine.name.removeprefix("NVIDIA "),
        machine.driver,
        machine.date[:10],
        *(f"{name} {machine.versions[name.lower()]}" for name in ("torch", "vLLM")),
        f"{len(REPORT.cells)} pieces of work",
        f"{ceilings.read.median / 1e12:.2f} TB/s",
        f"{ceilings.launch_us.median:.2f} us",
    ]
    assert [each for each in said if each not in " ".join(TEXT.split())] == []
    assert not any(cell.work.format == "fp8" for cell in REPORT.cells)


def test_what_the_page_says_of_bfloat16() -> None:
    [report] = REPORTS[1:]
    gains = [peer(cell)[1] / (cell.ours or 0) for cell in report.cells]
    assert (f"{min(gains):.2f}", f"{max(gains):.2f}") == ("1.02", "2.13")
    heads = [cell for cell in report.cells if cell.is_lm_head and cell.work.tokens == 1]
    under = [1 - (cell.ours or 0) / report.ceilings.floor_us(cell) for cell in heads]
    assert (round(100 * min(under)), round(100 * max(under))) == (2, 3)
    assert report.machine.name == REPORT.machine.name
    assert report.machine.date[:10] == REPORT.machine.date[:10]
    said = ("1.02 to 2.13 x", "2 to 3 % under it", f"{len(report.cells)} pieces of work")
    assert all(each in " ".join(TEXT.split()) for each in said)
    assert {cell.work.format for cell in report.cells} == {"bf16"}


def test_what_was_missed_is_said() -> None:
    missed = [found for found in BARS.values() if not found.passed]
    slower = {
        (cell.label, cell.work.tokens)
        for found in BARS.values()
        if found.bar.statistic.endswith("ratio")
        for ratio, cell in found.cells
        if ratio < 1
    }
    [bar] = missed
    assert [(round(us, 2), cell.work.columns) for us, cell in bar.cells if us > 6] == [(6.18, 2880)]
    assert "takes 6.18 us with 8 tokens" in TEXT
    assert slower == {("gpt-oss-120b", 16)}
    assert "experts of gpt-oss-120b with 16 tokens" in TEXT


def test_the_errors_of_quantizing() -> None:
    torch = pytest.importorskip("torch")
    from spark_prof.kernels.quantize_at_load import quantize_linear

    weight = torch.randn(256, 2880, generator=torch.Generator().manual_seed(0)).bfloat16()
    fp8, mxfp4 = (
        100 * quantize_linear("qkv", weight, kind).error.relative_l2 for kind in ("fp8", "mxfp4")
    )
    assert (f"{mxfp4:.1f}", round(fp8, 1)) == ("11.2", 2.6)
    assert "2.6 % for FP8 rows and 11.2 % for MXFP4" in TEXT


def test_a_last_layer_is_as_near_its_floor_as_the_page_says() -> None:
    ceilings = REPORT.ceilings
    heads = [cell for cell in REPORT.cells if cell.is_lm_head and cell.work.tokens == 1]
    above = [cell.ours / ceilings.floor_us(cell) for cell in heads if cell.ours]
    assert len(above) == len(heads) == 10
    assert 1.05 < max(above) <= 1.06
    assert "With one token an lm_head is within 6 % of its floor." in TEXT
