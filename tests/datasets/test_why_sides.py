"""Which run of a load generator's result is of which side."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_prof.datasets.why_sides import bench_rates, measured_rates
from spark_prof.errors import CommandError
from tests.rows import each_row

BENCHMARKS = Path(__file__).parents[1] / "data" / "benchmarks"
SERVE = BENCHMARKS / "vllm-serve.txt"

BENCHY = """
| model | test | t/s | ttfr (ms) | est_ppt (ms) | e2e_ttft (ms) |
|:--|--:|--:|--:|--:|--:|
| owner/Big-FP8 | pp2048 | 3078.07 ± 1.0 | 845.90 ± 2.8 | 750.74 ± 2.8 | 845.94 ± 2.8 |
| owner/Big-FP8 | tg32 | 40.00 ± 0.09 | | | |
| owner/Big-NVFP4 | pp2048 | 3178.07 ± 1.0 | 845.90 ± 2.8 | 750.74 ± 2.8 | 845.94 ± 2.8 |
| owner/Big-NVFP4 | tg32 | 50.00 ± 0.09 | | | |

llama-benchy (0.1.1)
"""


@each_row("text", ["35", "35,", "35,44,50", "35,0", "35,-1", "35,nan", "35,inf", "a,b", ","])
def test_what_is_no_rate_a_source(text: str) -> None:
    with pytest.raises(CommandError, match="is not 2 rates in tokens/s, one a source: 35,44"):
        measured_rates(text, 2, 1)


def test_rates_are_of_all_sequences() -> None:
    one, other = measured_rates("100, 200", 2, 10)
    assert (one.step_us, other.step_us) == (100_000.0, 50_000.0)


def test_a_result_a_source_and_one_for_all(tmp_path: Path) -> None:
    [alone] = bench_rates([str(SERVE)], ["model"], 2)
    assert alone.step_us == pytest.approx(19_750, rel=0.001)
    assert alone.tokens_per_s == pytest.approx(2e6 / alone.step_us)
    twice = tmp_path / "post.txt"
    text = SERVE.read_text("utf-8")
    twice.write_text(text + re.sub(r"19\.7\d", "30.00", text), "utf-8")
    for results, names in (
        ([str(SERVE), f"{twice}:2"], ("vllm-serve.txt:1", "post.txt:2")),
        ([str(twice)], ("post.txt:1", "post.txt:2")),
    ):
        rates = bench_rates(results, ["a", "b"], 2)
        assert [rate.basis for rate in rates] == [f"{name}, time per token" for name in names]
        assert [round(rate.step_us, -1) for rate in rates] == [19_750, 30_000]
    [swapped, first] = bench_rates([f"{twice}:2,1"], ["a", "b"], 2)
    assert first == bench_rates([f"{twice}:1"], ["a"], 2)[0]
    assert swapped.step_us > first.step_us


def test_a_run_goes_to_the_model_that_it_names(tmp_path: Path) -> None:
    post = tmp_path / "post.md"
    post.write_text(BENCHY, "utf-8")
    rates = bench_rates([str(post)], ["models/big-nvfp4", "owner/Big-FP8"], 1)
    assert [round(rate.tokens_per_s) for rate in rates] == [50, 40]
    # In their order they would be the other one's.
    with pytest.raises(CommandError, match=r"is not clear; .* 1: 40\.0 \(Big-FP8 .* 2: 50\.0"):
        bench_rates([str(post)], ["models/big-nvfp4", "elsewhere"], 1)
    rates = bench_rates([str(post)], ["elsewhere", "other"], 1)
    assert [round(rate.tokens_per_s) for rate in rates] == [40, 50]


def test_what_is_refused() -> None:
    for results, says in (
        ([str(SERVE)] * 2, "--bench is given 2 times for 3 sources"),
        ([f"{SERVE}:2,1,3"], "names no 3 runs: vllm-serve.txt has these"),
        ([str(SERVE)], "is not clear; say it in the order of the sources, such as --bench"),
    ):
        with pytest.raises(CommandError, match=re.escape(says)):
            bench_rates(results, ["a", "b", "c"], 2)
    with pytest.raises(CommandError, match="no-such-file"):
        bench_rates(["no-such-file"], ["a"], 1)
