"""Planned, measured and tapped steps of a live engine, compiled as vLLM does by default."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.engine.conftest import ROOT
from tests.engine.stepped_engine import BATCHES, PLAN, TOKENS

DURATION, END, PREFILL, REQUESTS, CONTEXT = range(3, 8)
BATCH_SIZES = pytest.mark.parametrize("requests", BATCHES)


@pytest.fixture(scope="session")
def stepped(
    models: dict[str, Path], environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.engine.stepped_engine", str(models["tiny-dense"])]
    done = subprocess.run(
        [*command, str(tmp_path_factory.mktemp("stepped")), "compiled"],
        env=environment, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("STEPPED ")]
    assert lines, done.stdout[-3000:] + done.stderr[-30000:]
    found: dict[str, Any] = json.loads(lines[0].removeprefix("STEPPED "))
    return found


@BATCH_SIZES
def test_the_steps_of_the_plan_are_measured_in_order(
    stepped: dict[str, Any], requests: int
) -> None:
    clock = stepped["clock"][str(requests)]
    assert [row[:3] for row in clock["times"]] == [
        [number, side, index] for number, (side, steps) in enumerate(PLAN) for index in range(steps)
    ]
    assert all(row[PREFILL] == 0 and row[REQUESTS] == requests for row in clock["times"])
    contexts = [row[CONTEXT] for row in clock["times"]]
    assert contexts == list(range(contexts[0], contexts[0] + requests * len(contexts), requests))
    assert clock["again"] == []


@BATCH_SIZES
def test_each_step_ran_on_the_side_of_its_block(stepped: dict[str, Any], requests: int) -> None:
    steps = [side for side, count in stepped["clock"][str(requests)]["log"] if count == requests]
    found = [(side, len(list(group))) for side, group in groupby(steps)]
    middle = sum(count for side, count in PLAN[1:3])
    assert [side for side, _ in found] == ["a", "b", "a"]
    assert found[1][1] == middle


@BATCH_SIZES
def test_a_step_takes_the_time_between_two_ends(stepped: dict[str, Any], requests: int) -> None:
    """In the middle one: between two steps the process may have waited for a core."""
    clock = stepped["clock"][str(requests)]
    rows = clock["times"]
    shares = [row[DURATION] / (row[END] - before[END]) for before, row in pairwise(rows)]
    assert median(shares) == pytest.approx(1, rel=0.05)
    assert clock["begin"] < rows[0][END] - rows[0][DURATION] < rows[-1][END] < clock["end"]


def test_prefills_are_measured_one_place_for_each_part(stepped: dict[str, Any]) -> None:
    assert [row[:3] + row[PREFILL:] for row in stepped["prefill"]] == [
        [0, "b", 0, 16, 0, 0, None],
        [1, "a", 0, 4, 0, 16, None],
    ]


def test_an_engine_compared_with_itself_differs_nowhere(stepped: dict[str, Any]) -> None:
    assert stepped["recorded"] == {"tokens": stepped["warm"], "compared": []}
    same = stepped["same"]
    assert same["tokens"] == stepped["warm"]
    assert {(c["row"], c["step"]): c["token_a"] for c in same["compared"]} == {
        (row, step): token
        for row, answer in enumerate(stepped["warm"])
        for step, token in enumerate(answer)
    }
    assert all(
        c["token_a"] == c["token_b"] and c["kl_nats"] == c["worst"] == 0 for c in same["compared"]
    )


def test_another_model_differs_everywhere_and_gets_the_same_tokens(stepped: dict[str, Any]) -> None:
    negated = stepped["negated"]
    assert stepped["untapped"] != stepped["warm"]
    assert negated["tokens"] == stepped["warm"]
    assert len(negated["compared"]) == 3 * TOKENS
    for c in negated["compared"]:
        assert c["kl_nats"] > 0
        assert c["token_a"] != c["token_b"]
        assert c["worst"] > c["scale"] > 0


def test_a_rounding_at_the_beginning_goes_on_to_the_logits(stepped: dict[str, Any]) -> None:
    changed, back = stepped["moved"]
    assert changed == back > 0
    assert stepped["disturbed"]["tokens"] == stepped["warm"]
    assert any(c["worst"] > 0 for c in stepped["disturbed"]["compared"])
    assert all(c["kl_nats"] == c["worst"] == 0 for c in stepped["calm"]["compared"])


def test_the_engine_answers_the_same_afterwards(stepped: dict[str, Any]) -> None:
    assert stepped["afterwards"] == stepped["warm"]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("side", "there is no side c"),
        ("plan", "there is no side c"),
        ("tap", "there is no tap listen"),
        ("file", "cannot be read as recorded logits"),
        ("other prompt", "request 0 had another prompt"),
    ],
)
def test_what_is_refused_leaves_the_engine_running(
    stepped: dict[str, Any], what: str, message: str
) -> None:
    assert message in stepped["refused"][what]["refused"]


def test_a_tap_that_is_off_can_be_turned_off(stepped: dict[str, Any]) -> None:
    assert stepped["refused"]["nothing"] is None
