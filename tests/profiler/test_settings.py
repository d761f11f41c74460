"""Settings on their way from the command line to vLLM's processes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from spark_prof.profiler.settings import DEFAULT_STEPS, ENVIRONMENT, Settings
from tests.rows import each_row

SOME = Settings(
    "/tmp/b c", 7, 3, True, "none", steady=True, batch_sizes=(1, 8), stretch=25, period=50,
    steps_per_piece=4, faults=("flush", "ranges"), counters=True, nvtx=True, run="a run",
)  # fmt: skip


@pytest.mark.parametrize("settings", [Settings("/b"), SOME])
def test_settings_survive_the_way(settings: Settings) -> None:
    assert Settings.from_json(settings.to_json()) == settings
    assert Settings.from_environment({ENVIRONMENT: settings.to_json()}) == settings
    assert "\n" not in settings.to_json()


def test_what_nobody_says_has_a_default() -> None:
    settings = Settings.from_json('{"bundle": "/b"}')
    assert settings == Settings("/b", steps=DEFAULT_STEPS, backend="auto")
    assert settings.folder == Path("/b")


@each_row(
    ("settings", "steps"),
    [
        (Settings("/b", steps=50), 50),
        (Settings("/b", steps=50, steady=True, batch_sizes=(1, 8)), 100),
        (Settings("/b", steps=50, steady=True), 0),
        (Settings("/b", steps=0, steady=True, batch_sizes=(1,)), 0),
    ],
)
def test_after_how_many_steps_the_window_closes(settings: Settings, steps: int) -> None:
    """0 where only somebody outside can tell."""
    assert settings.watched_steps == steps


def test_fields_of_a_newer_spark_prof_are_left_out() -> None:
    assert Settings.from_json('{"bundle": "/b", "colour": "red"}') == Settings("/b")


@each_row("text", ["", "{", "[]", "null", "3", "{}", '{"bundle": 3}', '{"steps": 3}'])
def test_anything_else_is_an_error(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        Settings.from_json(text)
