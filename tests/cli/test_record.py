"""The options of `spark-prof record`: what they become, and one line for what they cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_prof.cli.record import steps_of
from spark_prof.profiler import launcher as record_module
from spark_prof.profiler.settings import DEFAULT_STEPS, Settings
from spark_prof.traces.bundle import Bundle
from tests.cli.conftest import Refuses, Run
from tests.docs.test_schemas import faults
from tests.support import Recorded, eager_decode

COMMAND = "record"


@pytest.fixture
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings with which a recording would have begun."""
    bundle = Recorded({0: [eager_decode()]}).assemble(tmp_path / "b")
    found: list[Settings] = []

    def record(command: Any, settings: Settings, say: Any, screen: Any) -> tuple[Bundle, int]:
        found.append(settings)
        return bundle, 0

    monkeypatch.setattr(record_module, "record", record)
    return found


PROGRAM = ("--", "python", "-c", "pass")


def test_without_options(run: Run, wanted: list[Settings]) -> None:
    assert run(*PROGRAM)[0] == 0
    [found] = wanted
    assert (found.steps, found.steady, found.batch_sizes) == (DEFAULT_STEPS, False, ())
    assert (found.stretch, found.period, found.backend) == (0, 0, "auto")
    assert not found.counters
    assert found.watched_steps == DEFAULT_STEPS


def test_options(run: Run, wanted: list[Settings]) -> None:
    expectations: tuple[tuple[str, dict[str, Any]], ...] = (
        ("--steady", {"steady": True, "stretch": 25, "period": 50, "batch_sizes": ()}),
        ("--steady --batch-sizes 1,8", {"batch_sizes": (1, 8), "watched_steps": 2 * DEFAULT_STEPS}),
        ("--steady --batch-sizes 1 --steps 50", {"batch_sizes": (1,), "watched_steps": 50}),
        ("--steady --duty-cycle 50/1000", {"stretch": 50, "period": 1000}),
        ("--duty-cycle 1/1", {"stretch": 1, "period": 1, "sampled": False}),
        ("--steps 5", {"stretch": 0, "period": 0, "sampled": True}),
        ("--stretches 1/2", {"steady": False, "stretch": 1, "period": 2}),
        ("--backend cupti --counters", {"backend": "cupti", "counters": True}),
        ("--nvtx", {"backend": "auto", "nvtx": True}),
        ("--backend cupti --nvtx", {"backend": "cupti", "nvtx": True}),
        ("--backend torch", {"backend": "torch", "nvtx": False}),
        ("--backend nsys", {"backend": "nsys"}),
        ("--backend auto", {"backend": "auto"}),
    )
    for options, expected in expectations:
        assert run(*options.split(), *PROGRAM)[0] == 0
        found = wanted.pop()
        assert {name: getattr(found, name) for name in expected} == expected, options
        assert Settings.from_json(found.to_json()) == found


def test_bad_options_are_told_in_one_line(refuses: Refuses, wanted: list[Settings]) -> None:
    for options, named in (
        ("--batch-sizes 1,8", "--steady"),
        ("--steady --warmup-steps 5", "leave out --warmup-steps"),
        ("--steady --batch-sizes 1,,8", "1,,8"),
        ("--steady --batch-sizes 0", "'0'"),
        ("--steady --batch-sizes -1", "'-1'"),
        ("--steady --batch-sizes one", "'one'"),
        ("--steady --batch-sizes 1.5", "'1.5'"),
        ("--steady --batch-sizes 1;8", "'1;8'"),
        ("--steady --batch-sizes 8,8", "'8,8'"),
        ("--steady --batch-sizes=", "''"),
        (f"--steady --batch-sizes {'9' * 5000}", "999"),
        ("--duty-cycle=", "''"),
        ("--duty-cycle 50", "'50'"),
        ("--duty-cycle 50/", "'50/'"),
        ("--duty-cycle 0/50", "'0/50'"),
        ("--duty-cycle 60/50", "'60/50'"),
        ("--duty-cycle 1/2/3", "'1/2/3'"),
        ("--duty-cycle a/b", "'a/b'"),
        ("--backend cuda", "cuda"),
        ("--steady=yes", "--steady"),
        ("--counters=1", "--counters"),
        ("--nvtx --backend torch", "--nvtx needs the CUPTI backend"),
        ("--nvtx --backend nsys", "--nvtx needs the CUPTI backend"),
    ):
        assert len(refuses((*options.split(), *PROGRAM), named)) < 300
    assert wanted == []


def test_replicas_each_have_their_own_number_of_steps() -> None:
    tables = {"steps-rank0.parquet": 179, "steps-rank1.parquet": 148, "engine-rank0.parquet": 9}
    assert steps_of(tables) == "148 to 179 steps on each of 2 ranks"
    assert steps_of(tables | {"steps-rank1.parquet": 179}) == "179 steps on each of 2 ranks"
    assert steps_of({"steps-rank0.parquet": 7}) == "7 steps"
    assert steps_of({}) == "0 steps"


def test_a_bundle_s_number_of_steps_is_told(run: Run, wanted: list[Settings]) -> None:
    said = run("-o", "b", *PROGRAM)[2]
    assert "2 steps in b; next: spark-prof report b" in said
    told = json.loads(run("-o", "b", "--format", "json", *PROGRAM)[1])
    assert faults("written", told) == []
    assert (told["path"], told["next"]) == ("b", "spark-prof report b")
    assert (told["steps"], told["ranks"], told["exit_code"]) == (2, [0], 0)
    assert told["coverage"]["component"] > 0
