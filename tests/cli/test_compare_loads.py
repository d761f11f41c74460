"""`spark-prof compare` of results of load generators, with each other."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Refuses, Run

COMMAND = "compare"
BENCHMARKS = Path(__file__).parents[1] / "data" / "benchmarks"
BEFORE = BENCHMARKS / "vllm-serve-detailed.json"
SERVED = json.loads(BEFORE.read_text())
REQUESTS = 64


def result(path: Path, tpot_ms: float, **more: Any) -> str:
    """A result of 64 requests, two at a time, whose tokens take so long: 1 % more or less."""
    gaps = [[tpot_ms / 1e3 * (1 + 0.01 * (-1) ** n)] * 47 for n in range(REQUESTS)]
    figures = {name: value for name, value in SERVED.items() if not name.endswith("_ms")}
    every = {name: [SERVED[name][0]] * REQUESTS for name in ("input_lens", "output_lens", "ttfts")}
    counts = {
        "num_prompts": REQUESTS, "completed": REQUESTS, "total_input_tokens": 32 * REQUESTS,
        "total_output_tokens": 48 * REQUESTS,
    }  # fmt: skip
    statistics = {}
    for name, mean in (("tpot", tpot_ms), ("itl", tpot_ms), ("ttft", 80.0)):
        statistics |= {f"mean_{name}_ms": mean, f"median_{name}_ms": mean,
                       f"std_{name}_ms": 0.01 * mean, f"p99_{name}_ms": 1.02 * mean}  # fmt: skip
    for name in ("start_times", "generated_texts", "errors", "latencies", "queue_times"):
        figures.pop(name, None)
    path.write_text(json.dumps(figures | every | counts | {"itls": gaps} | statistics | more))
    return str(path)


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (1.20, "after is 20.0 % slower than before: a token after the first takes 20.00 ms on "),
        (0.80, "after is 20.0 % faster than before: a token after the first takes 20.00 ms on "),
        (1.02, "no difference between before and after is shown: a token after the first takes"),
    ],
)
def test_the_answer_is_the_table_s(run: Run, tmp_path: Path, factor: float, said: str) -> None:
    sides = result(tmp_path / "before.json", 20.0), result(tmp_path / "after.json", 20.0 * factor)
    code, out, err = run(*sides)
    assert (code, err) == (0, "")
    assert " ".join(out.split()).startswith(said)
    assert len(out.splitlines()) <= 70
    record = json.loads(run(*sides, "--format", "json")[1])
    assert record["answer"].startswith(said)
    first = record["latencies"][0]
    assert first["quantity"] == "tpot"
    change = first["change"]
    assert change["us"] == pytest.approx(20_000 * (factor - 1))
    # By hand: 32 rounds of two, and starts that differ by 2 %.
    error = [math.hypot(0.01 / math.sqrt(32), 0.02) * 20_000 * times for times in (1, factor)]
    assert change["high"] - change["us"] == pytest.approx(1.96 * math.hypot(*error), rel=0.02)


def test_several_results_a_side(run: Run, tmp_path: Path) -> None:
    sides = [
        ",".join(result(tmp_path / f"{name}-{n}.json", us * (1 + 0.002 * n)) for n in range(3))
        for name, us in (("before", 20.0), ("after", 20.6))
    ]
    code, out, _ = run(*sides)
    assert code == 0
    assert out.startswith("after is 3.0 % slower than before: ")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"max_concurrency": 8}, "requests at a time: 2 and 8"),
        ({"request_rate": 4.0}, "requests a second: as fast as they go and 4"),
        ({"total_output_tokens": 300 * REQUESTS}, "generated tokens of a request: 48 and 300"),
    ],
)
def test_another_load_is_not_comparable(
    run: Run, tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    sides = result(tmp_path / "before.json", 20.0), result(tmp_path / "after.json", 30.0, **more)
    code, out, _ = run(*sides)
    assert code == 0
    first, _, below = " ".join(out.split()).partition("What clients saw")
    assert first.startswith("before and after are not comparable: their loads differ")
    assert said in first
    assert "slower" not in below
    assert "+50" not in below


def test_what_is_no_pair_of_results_is_one_line(refuses: Refuses, tmp_path: Path) -> None:
    recording = BENCHMARKS / "vllm-serve-bundle"
    for words, said in (
        ((BEFORE, recording), f"--bench {BEFORE}"),
        ((recording, BEFORE), f"--bench {BEFORE}"),
        ((BEFORE, BEFORE, BEFORE), "two sides"),
        ((BEFORE, BEFORE, "--fail-on", "decode_us > 3%"), "without --fail-on"),
        ((BENCHMARKS / "vllm-serve-appended.jsonl", BEFORE), "runs"),
    ):
        refuses(tuple(map(str, words)), said)
