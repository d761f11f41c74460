"""docs/kernels.md: its examples run, and what was missed is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_prof.ab.result import from_json
from spark_prof.kernels.dispatch import choose
from spark_prof.kernels.tuning import known_runs
from tests.docs.kernel_figures import BARS, REPORT
from tests.docs.pages import DOCS, README, tables

PAGE = DOCS / "kernels.md"
ENGINES = DOCS.parent / "benchmarks/results/ab"
TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)


def test_the_example_of_a_product_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    from tests.emulator.compiler import compiler

    if not torch.cuda.is_available() and compiler() is None:
        pytest.skip("neither a GPU nor a C++ compiler")
    text = EXAMPLES[0] if torch.cuda.is_available() else EXAMPLES[0].replace('"cuda"', '"cpu"')
    exec(compile(text, PAGE, "exec"), {})
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


def test_what_was_missed_is_on_the_page() -> None:
    bars, *layers = tables(PAGE, "How fast")
    assert {row[0] for row in bars} <= set(BARS)
    missed = {bar for bar, found in BARS.items() if not found.passed}
    assert {row[0] for row in bars if "missed" in row[1]} == missed
    assert [{len(row) for row in table} for table in layers] == [{6}, {7}, {5}]
    assert all(len(row) == 6 for row in tables(README, "Kernels for small batches")[0])


def test_the_gains_in_an_engine_are_those_of_the_results() -> None:
    for name, batch, stock, swapped, gain in tables(PAGE, "How fast")[-1]:
        path = ENGINES / f"{name}-vllm033-h200.json"
        result = from_json(path.read_bytes(), str(path))
        (run,) = (run for run in result.runs if run.requests == int(batch))
        # Where the host was ahead anyhow, the time by the clock is the device's.
        times = [run.device_a_us or run.estimate.a_us, run.device_b_us or run.estimate.b_us]
        us, swapped_us = (time for time in times if time is not None)
        assert [stock, swapped] == [f"{time / 1e3:.2f} ms" for time in (us, swapped_us)]
        told = run.device_gain or run.estimate.gain
        if told is None:
            assert gain == f"{us / swapped_us:.2f} x, one start a side"
        else:
            assert gain == f"{told.value:.2f} x ({told.low:.2f} to {told.high:.2f})"


def test_the_errors_of_quantizing() -> None:
    torch = pytest.importorskip("torch")
    from spark_prof.kernels.quantize_at_load import quantize_linear

    weight = torch.randn(256, 2880, generator=torch.Generator().manual_seed(0)).bfloat16()
    fp8, mxfp4 = (
        100 * quantize_linear("qkv", weight, kind).relative_error for kind in ("fp8", "mxfp4")
    )
    assert (f"{mxfp4:.1f}", round(fp8, 1)) == ("11.2", 2.6)
    assert "2.6 % for FP8 rows and 11.2 % for MXFP4" in TEXT


def test_the_run_is_that_of_the_result() -> None:
    machine, ceilings = REPORT.machine, REPORT.ceilings
    said = [
        machine.name.removeprefix("NVIDIA "),
        machine.date[:10],
        f"vLLM {machine.versions['vllm']}",
        f"All {len(REPORT.cells)} results",
        f"{ceilings.read.median / 1e12:.2f} TB/s",
        f"{ceilings.launch_us.median:.2f} us",
    ]
    assert [each for each in said if each not in " ".join(TEXT.split())] == []
