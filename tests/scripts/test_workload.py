"""The demo's workload with a fake vLLM: what its options ask the engine for, and what it prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from demo import workload

Run = Callable[..., tuple[dict[str, Any], list[dict[str, Any]]]]


class FakeLLM:
    """Notes how it was made and answers every prompt with its first numbers."""

    made: dict[str, Any]
    batches: list[int]

    def __init__(self, **options: Any) -> None:
        FakeLLM.made, FakeLLM.batches = options, []

    def generate(self, prompts: Any, sampling: Any, use_tqdm: bool) -> list[Any]:
        FakeLLM.batches.append(len(prompts))
        return [
            SimpleNamespace(
                metrics=SimpleNamespace(scheduled_ts=1.0, last_token_ts=3.5),
                outputs=[
                    SimpleNamespace(token_ids=prompt["prompt_token_ids"][: sampling.max_tokens])
                ],
            )
            for prompt in prompts
        ]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    sampling = SimpleNamespace
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=FakeLLM, SamplingParams=sampling))

    def runner(*options: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        monkeypatch.setattr(sys, "argv", ["workload", "MODEL", *options])
        workload.main()
        [line] = capsys.readouterr().out.splitlines()
        return FakeLLM.made, json.loads(line.removeprefix("WORKLOAD "))["rounds"]

    return runner


def test_without_options_the_engine_is_eager(run: Run) -> None:
    made, rounds = run()
    assert made["enforce_eager"]
    assert "compilation_config" not in made
    assert made["tensor_parallel_size"] == 1
    assert FakeLLM.batches == [2, 2]
    assert [(r["engine_s"], r["tokens"], r["output"]) for r in rounds] == [(2.5, 64, None)] * 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--compile", {}),
        ("--graphs FULL", {"cudagraph_mode": "FULL", "mode": 0}),
        ("--compile --graphs PIECEWISE", {"cudagraph_mode": "PIECEWISE"}),
    ],
)
def test_graphs_with_and_without_compilation(
    run: Run, options: str, expected: dict[str, Any]
) -> None:
    made, _ = run("--batch", "1,8", *options.split())
    assert not made["enforce_eager"]
    assert made["compilation_config"] == {"cudagraph_capture_sizes": [1, 2, 4, 8], **expected}


def test_several_batch_sizes_one_after_another(run: Run) -> None:
    made, rounds = run("--batch", "1,8", "--rounds", "3", "--tensor-parallel", "2")
    assert FakeLLM.batches == [1, 8] * 3
    assert (made["max_num_seqs"], made["tensor_parallel_size"]) == (8, 2)
    assert [r["tokens"] for r in rounds] == [32, 256] * 3


def test_a_long_batch_fits_the_model(run: Run) -> None:
    assert run("--prompt", "2000", "--tokens", "100")[0]["max_model_len"] == 2100


def test_tokens_are_printed_when_asked_for(run: Run) -> None:
    _, rounds = run("--batch", "2", "--tokens", "2", "--prompt", "3", "--show-tokens")
    assert [r["output"] for r in rounds] == [[[3, 4], [10, 11]], [[4, 5], [11, 12]]]


@pytest.mark.parametrize("batch", ["", "1,", "one", "1;8"])
def test_a_bad_batch(run: Run, batch: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run("--batch", batch)
    assert ended.value.code == 2
    assert "--batch" in capsys.readouterr().err
