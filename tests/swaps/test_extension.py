"""The workers' methods: JSON values in and out, and nothing raised."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from spark_prof.swaps.extension import Extension
from spark_prof.swaps.tap import Tap
from tests.rows import each_row

from .toy_worker import ToyModel, ToyRunner, ToyWorker, generate


class Worker(ToyWorker, Extension):
    """What vLLM makes of its worker."""


def extended(model: ToyModel | None = None) -> Any:
    """A worker whose tap is there: asking vLLM for the rank takes vLLM."""
    worker = Worker(ToyRunner(model or ToyModel()))
    tap = Tap(worker)
    worker._spark_prof_tap = tap  # type: ignore[attr-defined]
    return worker


def test_every_name_is_the_packages_own() -> None:
    names = [name for name, _ in inspect.getmembers(Extension, inspect.isfunction)]
    assert len(names) == 8
    assert all(name.startswith("spark_prof_") for name in names)


@pytest.mark.usefixtures("sides")
def test_answers_are_json_values(tmp_path: Path) -> None:
    worker = extended()
    file = str(tmp_path / "a")
    answers = [worker.spark_prof_tap("record", file, 2)]
    generate(worker, [[3, 4], [5]], 6, seed=1, name="one")
    answers += [worker.spark_prof_tap("compare", file, 2), worker.spark_prof_side("b")]
    answers += [worker.spark_prof_plan([["a", 2], ["b", 2]], 2, False)]
    generate(worker, [[3, 4], [5]], 6, seed=1, name="two")
    answers += [worker.spark_prof_times(), worker.spark_prof_compared()]
    assert json.loads(json.dumps(answers)) == answers
    assert answers[:4] == [None] * 4
    assert len(answers[5]) == 12
    assert set(answers[5][0]) == {
        "step", "row", "behind", "token_a", "token_b", "margin_a", "kl_nats", "worst", "scale",
        "loss_a", "loss_b",
    }  # fmt: skip


@pytest.mark.usefixtures("sides")
@each_row(
    ("method", "arguments", "line"),
    [
        ("side", ("c",), "there is no side c; give one of a, b, a2"),
        ("plan", ([["a"]], 1, False), "ValueError: not enough values"),
        ("tap", ("listen", "", 1), "there is no tap listen"),
        ("tap", ("compare", "/absent", 1), "/absent cannot be read as recorded logits"),
    ],
)
def test_what_is_refused_is_returned(method: str, arguments: tuple[Any, ...], line: str) -> None:
    worker = extended()
    answer = getattr(worker, f"spark_prof_{method}")(*arguments)
    assert set(answer) == {"refused"}
    assert answer["refused"].startswith(line)
    assert "\n" not in answer["refused"]
    assert len(generate(worker, [[3, 4]], 2, seed=1)[0]) == 2
