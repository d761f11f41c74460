"""What is open at a moment, replayed from a log of calls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from spark_prof.traces.chunks import EVENT_DTYPE
from spark_prof.traces.host_timeline import Call, replay
from tests.rows import each_row

PREPARE, FINISH, SAMPLE, MODEL, LAYER, SHARED, ATTENTION = range(7)
LAYERS = [-1, -1, -1, -1, 5, -1, 2]


def enter(module: int) -> int:
    return module + 1


def leave(module: int) -> int:
    return -(module + 1)


def replayed(*codes: int) -> tuple[list[int], list[int], list[Call]]:
    """The log of these codes at 10, 20, 30, ... and a look into each gap after them."""
    times = [10 * (index + 1) for index in range(len(codes))]
    log = np.array(list(zip(times, codes, strict=True)), EVENT_DTYPE)
    timeline, calls = replay(log, LAYERS, MODEL)
    module, layer = timeline.at(np.array([5, *(time + 5 for time in times)], np.int64))
    return module.tolist(), layer.tolist(), calls


@each_row(
    ("codes", "modules", "layers"),
    [
        pytest.param((), [-1], [-1], id="nothing"),
        pytest.param(
            (enter(LAYER), enter(ATTENTION), leave(ATTENTION), leave(LAYER)),
            [-1, LAYER, ATTENTION, LAYER, -1],
            [-1, 5, 2, 5, -1],
            id="the innermost counts",
        ),
        pytest.param(
            (enter(LAYER), enter(SHARED), leave(SHARED)),
            [-1, LAYER, SHARED, LAYER],
            [-1, 5, 5, 5],
            id="a module without a layer has its caller's",
        ),
        pytest.param((enter(SHARED),), [-1, SHARED], [-1, -1], id="no caller, no layer"),
        pytest.param(
            (enter(LAYER), enter(SHARED), enter(ATTENTION), 0),
            [-1, LAYER, SHARED, ATTENTION, -1],
            [-1, 5, 5, 2, -1],
            id="leaving everything",
        ),
        pytest.param(
            (enter(LAYER), leave(ATTENTION)), [-1, LAYER, LAYER], [-1, 5, 5],
            id="leaving what was never entered changes nothing",
        ),
        pytest.param(
            (enter(LAYER), enter(ATTENTION), leave(LAYER)), [-1, LAYER, ATTENTION, -1],
            [-1, 5, 2, -1], id="leaving a caller leaves what it called",
        ),
        pytest.param((enter(99),), [-1, 99], [-1, -1], id="a module that nobody described"),
        pytest.param(
            (enter(PREPARE), enter(MODEL), leave(MODEL), leave(PREPARE), enter(SAMPLE), 0),
            [-1, PREPARE, MODEL, FINISH, -1, SAMPLE, -1],
            [-1] * 7,
            id="after the model the rest of execute_model is its finish",
        ),
        pytest.param(
            (enter(PREPARE), enter(MODEL), leave(MODEL), enter(MODEL), leave(MODEL), 0),
            [-1, PREPARE, MODEL, FINISH, MODEL, FINISH, -1],
            [-1] * 7,
            id="a model that runs twice finishes twice",
        ),
    ],
)  # fmt: skip
def test_state_after_each_event(
    codes: tuple[int, ...], modules: Sequence[int], layers: Sequence[int]
) -> None:
    found_modules, found_layers, _ = replayed(*codes)
    assert found_modules == modules
    assert found_layers == layers


def test_a_call_begins_and_ends_with_its_events() -> None:
    calls = replayed(enter(LAYER), enter(ATTENTION), leave(ATTENTION), leave(LAYER))[2]
    assert calls == [Call(ATTENTION, 20, 30), Call(LAYER, 10, 40)]


def test_a_time_at_an_event_is_after_it() -> None:
    log = np.array([(10, enter(LAYER)), (20, leave(LAYER))], EVENT_DTYPE)
    timeline, _ = replay(log, LAYERS, MODEL)
    assert timeline.at(np.array([9, 10, 19, 20], np.int64))[0].tolist() == [-1, LAYER, LAYER, -1]
