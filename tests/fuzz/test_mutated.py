"""Every fixture of every format, damaged over and over: a report, or one clear line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.cases import Case, Outcome, run
from tests.fuzz.fixtures import LOG, MODEL, PIECES, Fixture, build
from tests.fuzz.pool import Run, workers

_CASES = 600
"""Damaged files of all fixtures together; `python -m tests.fuzz` makes as many as there is time."""


@pytest.fixture(scope="module")
def fixtures(tmp_path_factory: pytest.TempPathFactory) -> list[Fixture]:
    return build(tmp_path_factory.mktemp("fixtures"))


@pytest.fixture(scope="module")
def run_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with workers(tmp_path_factory.mktemp("cases")) as run_all:
        yield run_all


def test_damaged_files_give_a_report_or_one_line(fixtures: list[Fixture], run_all: Run) -> None:
    numbers = range(-(-_CASES // len(fixtures)))
    found = list(run_all(Case(fixture, n) for fixture in fixtures for n in numbers))
    assert len(found) >= _CASES
    failures = [outcome.failure for outcome in found if outcome.failure]
    assert not failures, f"{len(failures)} failures:\n" + "\n".join(failures[:10])
    _check_that_both_ends_are_reached(found, fixtures)


def _check_that_both_ends_are_reached(found: list[Outcome], fixtures: list[Fixture]) -> None:
    """Damage that always or never shows would test one half only."""
    read = Counter(o.case.rpartition(":")[0] for o in found if not o.refused)
    refused = Counter(o.case.rpartition(":")[0] for o in found if o.refused)
    assert sum(read.values()) > len(found) / 4
    assert sum(refused.values()) > len(found) / 4
    # Of flushed pieces, logs and models what is whole is kept, whatever is damaged.
    never = {f.name for f in fixtures if f.kind not in (PIECES, LOG, MODEL)} - refused.keys()
    # Seven cases of a fixture may all be of those that leave something to read.
    assert len(never) <= len(fixtures) // 40, f"no damage of these was refused: {never}"


def test_a_case_is_the_same_each_time(fixtures: list[Fixture], tmp_path: Path) -> None:
    for fixture in fixtures[::9]:
        first, second = (run(Case(fixture, 12), tmp_path / name) for name in _folders(tmp_path))
        assert _without_paths(first.refused) == _without_paths(second.refused)


def _folders(below: Path) -> Iterator[str]:
    for name in ("first", "second"):
        (below / name).mkdir(exist_ok=True)
        yield name


def _without_paths(line: str) -> str:
    return " ".join(word for word in line.split() if "/" not in word)
