"""Settings on their way from the command line to vLLM's processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_prof.profiler.settings import DEFAULT_STEPS, ENVIRONMENT, Settings

SOME = Settings("/tmp/b c", 7, 3, True, "none", 4, ("flush", "ranges"))


@pytest.mark.parametrize("settings", [Settings("/b"), SOME])
def test_settings_survive_the_way(settings: Settings) -> None:
    assert Settings.from_json(settings.to_json()) == settings
    assert Settings.from_environment({ENVIRONMENT: settings.to_json()}) == settings
    assert "\n" not in settings.to_json()


def test_what_nobody_says_has_a_default() -> None:
    settings = Settings.from_json('{"bundle": "/b"}')
    assert settings == Settings("/b", steps=DEFAULT_STEPS, backend="torch")
    assert settings.folder == Path("/b")


def test_fields_of_a_newer_spark_prof_are_left_out() -> None:
    assert Settings.from_json('{"bundle": "/b", "colour": "red"}') == Settings("/b")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "3", "{}", '{"bundle": 3}', '{"steps": 3}']
)
def test_anything_else_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Settings.from_json(text)


@pytest.mark.parametrize("environment", [{}, {ENVIRONMENT: ""}, {ENVIRONMENT: "off"}])
def test_an_environment_that_asks_for_nothing(environment: dict[str, str]) -> None:
    assert Settings.from_environment(environment) is None


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, json.dumps({"bundle": "/b"}))
    assert Settings.from_environment() == Settings("/b")
