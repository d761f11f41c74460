"""Settings on their way from the command line to vLLM's processes."""

from __future__ import annotations

import msgspec
import pytest

from spark_prof.profiler.settings import DEFAULT_STEPS, ENVIRONMENT, Settings
from tests.rows import each_row

SOME = Settings(
    "/tmp/b c", 7, 3, True, "none", steady=True, batch_sizes=(1, 8), stretch=25, period=50,
    steps_per_piece=4, faults=("flush", "ranges"), counters=True, nvtx=True, run="a run",
)  # fmt: skip


def test_settings_survive_the_way() -> None:
    for settings in (Settings("/b"), SOME):
        assert Settings.from_json(settings.to_json()) == settings
        assert Settings.from_environment({ENVIRONMENT: settings.to_json()}) == settings
        assert "\n" not in settings.to_json()
    # What a newer spark-prof says is left out, what nobody says has a default.
    found = Settings.from_json('{"bundle": "/b", "colour": "red"}')
    assert found == Settings("/b", steps=DEFAULT_STEPS, backend="auto")


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


@each_row("text", ["", "{", "[]", "null", "3", "{}", '{"bundle": 3}', '{"steps": 3}'])
def test_anything_else_is_an_error(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        Settings.from_json(text)
