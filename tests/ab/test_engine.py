"""What is read from an engine's log, what it can run, and the prompts that it is given."""

from __future__ import annotations

import math
from dataclasses import replace as replaced
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_prof.ab.agreement import _position, describe
from spark_prof.ab.driver import pieces_of, prompts_of
from spark_prof.ab.engine_process import last_words
from spark_prof.ab.measuring import MeasuredShape, impossible
from spark_prof.ab.messages import Facts, PromptBatch, RankAnswers
from spark_prof.errors import CommandError
from tests.rows import each_row

FACTS = Facts(
    versions={}, gpu="", uuids=(), gpus=1, processor="", model="m", longest=1024,
    most_requests=8, most_tokens=512, vocabulary=1000, cache_tokens=4096, load_seconds=1.0,
    execution="", dummy=False, layers=2, routed=False,
)  # fmt: skip


@each_row(
    ("log", "words"),
    [
        ("", "(nothing was logged)"),
        ("one\n\ntwo\n\n", "two"),
        ("(EngineCore pid=7) ValueError: No available memory\nlater\n",
         "ValueError: No available memory"),
        ("(EngineCore pid=7) ERROR 11-21 18:01:02 [core.py:1] ValueError: why\n"
         "RuntimeError: Engine core initialization failed. See root cause above.\n",
         "ValueError: why"),
        ("vllm: error: argument --x: bad\n", "vllm: error: argument --x: bad"),
        ("spark-prof: o=f has run for 60 s: the process ends\nEngineDeadError: x\n",
         "spark-prof: o=f has run for 60 s: the process ends"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried\nbye\n",
         "torch.OutOfMemoryError: CUDA out of memory. Tried"),
        ("  raise ValueError(\nValueError: x\n", "ValueError: x"),
    ],
)  # fmt: skip
def test_last_words(tmp_path: Path, log: str, words: str) -> None:
    path = tmp_path / "log"
    path.write_text(log)
    assert last_words(path) == words


def test_last_words_of_damaged_logs(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert last_words(path) == "(no log)"
    path.write_bytes(b"\xff\xfe" * 1000 + b"\nError: " + b"x" * 10_000)
    assert len(last_words(path)) == 400
    path.write_bytes(b"Error: early\n" + b"a line\n" * 100_000)
    assert last_words(path) == "a line"


@each_row(
    ("shape", "words"),
    [
        (MeasuredShape("decode", 1, 128), ""),
        (MeasuredShape("decode", 8, 128), ""),
        (MeasuredShape("decode", 9, 128), "runs 8 requests at most"),
        (MeasuredShape("decode", 1, 1000), "needs requests of 1053 tokens; this engine takes 1024"),
        (MeasuredShape("decode", 8, 450), "the KV cache holds 4096 tokens only"),
        (MeasuredShape("prefill", 1, 512), ""),
        (MeasuredShape("prefill", 1, 513), "computes 512 tokens in a step at most"),
    ],
)
def test_what_an_engine_cannot_run(shape: MeasuredShape, words: str) -> None:
    found = impossible(shape, FACTS)
    assert words in found
    assert bool(words) == bool(found)


@pytest.mark.parametrize("vocabulary", [50, 1000, 201_088])
def test_prompts_are_the_same_and_apart(vocabulary: int) -> None:
    batch = PromptBatch(6, 64, 1)
    rows = prompts_of(batch, vocabulary)
    assert rows == prompts_of(batch, vocabulary)
    assert rows[:3] == prompts_of(PromptBatch(3, 64, 99), vocabulary)
    assert all(len(row) == 64 and 0 <= min(row) <= max(row) < vocabulary for row in rows)
    assert all(a != b for a, b in combinations(rows, 2))


@each_row("field", ["margin_a", "kl_nats", "worst", "scale"])
def test_figures_that_json_cannot_say_are_no_numbers(field: str) -> None:
    row: dict[str, Any] = {
        "step": 0, "row": 0, "token_a": 1, "token_b": 1, "margin_a": 1.0,
        "kl_nats": 0.0, "worst": 0.0, "scale": 1.0,
    }  # fmt: skip
    found = _position({**row, field: None})
    assert math.isnan(getattr(found, field))
    assert replaced(found, **{field: 1.0}) == _position({**row, field: 1.0})


def test_a_text_is_cut_into_a_piece_a_request() -> None:
    batch = PromptBatch(requests=3, prompt_tokens=2, tokens=4)
    pieces = pieces_of(list(range(20)), batch)
    assert pieces == [[*range(6)], [*range(6, 12)], [*range(12, 18)]]
    with pytest.raises(CommandError, match="it has 17 tokens; 3 requests of 6 need 18"):
        pieces_of(list(range(17)), batch)


@each_row("ranks", [1, 2])
def test_a_layer_is_held_to_the_same_bound_on_every_rank(ranks: int) -> None:
    """Experts that make their logits have a wider one, by their name, which ranks do not change."""
    error = {"relative_l2": 0.03, "row": 1, "tokens": "2 rows", "beyond": False}
    swap = {"slot": "layer", "name": "model.layers.0.mlp.experts", "kernel": "k", "side": "b",
            "state": "live", "bits": "kept", "layer_error": error}  # fmt: skip
    answers = RankAnswers([{"rank": rank, "swaps": [swap]} for rank in range(ranks)])
    told, layers = describe(SimpleNamespace(ask=lambda *_: answers))  # type: ignore[arg-type]
    assert [rank.rank for rank in told] == [*range(ranks)]
    assert all(layer.passed for layer in layers)
    name = "model.layers.0.mlp.experts"
    names = [f"{name} of rank {rank}" for rank in range(ranks)] if ranks > 1 else [name]
    assert [layer.layer for layer in layers] == names
