"""In what set-ups differ: what matters is told, what differs between any two runs is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_prof.analyzers.comparing.compare_sides import setup_differences
from spark_prof.analyzers.comparing.comparison import Side
from spark_prof.datasets.compared import read_side

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def side() -> Side:
    return read_side(str(DATA / "code-h100" / "qwen3-30b-a3b-nvfp4"))


def differ(side: Side, **facts: Any) -> Mapping[str, tuple[str, str, str]]:
    """Group and values of each difference, by name, once side b has other facts."""
    other = replace(side, facts={**side.facts, **facts})
    return {each.name: (each.group, each.a, each.b) for each in setup_differences(side, other)}


def test_two_starts_of_the_same_thing_differ_in_little(side: Side) -> None:
    other = read_side(str(DATA / "h100-qwen3-30b-a3b-nvfp4-graphs"))
    groups = {each.group for each in setup_differences(side, other)}
    assert groups <= {"GPU", "command"}


@pytest.mark.parametrize(
    ("name", "value", "told", "group"),
    [
        ("vllm", "0.27.0", "vllm", "versions"),
        ("gpu", {"name": "NVIDIA GB10", "driver": "1"}, "gpu.name", "GPU"),
        ("environment", {"VLLM_ATTENTION_BACKEND": "FLASHINFER"},
         "environment.VLLM_ATTENTION_BACKEND", "environment"),
        ("engine_config", {"cache_config": {"cache_dtype": "fp8"}},
         "engine_config.cache_config.cache_dtype", "engine"),
        ("model_config", {"num_hidden_layers": 4}, "model_config.num_hidden_layers", "model"),
        ("device_after_steps", {"sm_mhz": 1200, "throttled": ["power"]},
         "device_after_steps.sm_mhz", "GPU"),
    ],
)  # fmt: skip
def test_what_matters_is_told(side: Side, name: str, value: Any, told: str, group: str) -> None:
    assert differ(side, **{name: value})[told][0] == group


@pytest.mark.parametrize(
    ("name", "value"),
    [("pid", 1), ("run", "0"), ("boot", "0"), ("time_ns", 5), ("monotonic_ns", 5)],
)
def test_what_always_differs_is_not_told(side: Side, name: str, value: Any) -> None:
    assert not differ(side, **{name: value})


def test_a_word_of_the_command_is_told_with_its_option(side: Side) -> None:
    run = side.report.run
    command = run.command.replace("--batch 1", "--batch 8")
    other = replace(side, report=replace(side.report, run=replace(run, command=command)))
    [found] = setup_differences(side, other)
    assert (found.group, found.name, found.a, found.b) == ("command", "--batch", "1", "8")


def test_hostile_facts_are_bounded(side: Side) -> None:
    nested: Any = "end"
    for _ in range(900):
        nested = {"x" * 1000: nested}
    facts = {"many": {str(n): n for n in range(5000)}, "long": "y" * 10**6, "deep": nested}
    other = replace(side, facts={**side.facts, **facts})
    found = setup_differences(side, other)
    assert len(found) <= 200
    assert all(len(each.name) <= 400 and len(each.b) <= 400 for each in found)
