"""Every fixture of every format, damaged over and over: a report, or one clear line."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz.cases import Case, run, workers
from tests.fuzz.fixtures import LOG, MODEL, PIECES, build

_FEW = 55
_MANY = int(os.environ.get("FUZZ_CASES", "385"))
"""Damaged files of all fixtures together; `FUZZ_CASE`, as a failure names it, runs one alone."""


@pytest.mark.parametrize("cases", [_FEW, pytest.param(_MANY, marks=pytest.mark.slow)])
def test_damaged_files_give_a_report_or_one_line(tmp_path: Path, cases: int) -> None:
    for name in ("fixtures", "cases"):
        (tmp_path / name).mkdir()
    fixtures = build(tmp_path / "fixtures")
    if one := os.environ.get("FUZZ_CASE"):
        name, _, number = one.rpartition(":")
        fixture = next(f for f in fixtures if f.name == name)
        assert not run(Case(fixture, int(number)), tmp_path / "cases").failure
        return
    numbers = range(-(-cases // len(fixtures)))
    with workers(tmp_path / "cases") as run_all:
        found = list(run_all(Case(fixture, n) for fixture in fixtures for n in numbers))
    failures = [outcome.failure for outcome in found if outcome.failure]
    assert not failures, f"{len(failures)} failures:\n" + "\n".join(failures[:10])
    # Damage that always or never shows would test one half only.
    refused = Counter(o.case.rpartition(":")[0] for o in found if o.refused)
    assert len(found) / 4 < refused.total() < len(found) * 3 / 4
    if cases == _FEW:
        return
    # Of flushed pieces, logs and models what is whole is kept, whatever is damaged.
    never = {f.name for f in fixtures if f.kind not in (PIECES, LOG, MODEL)} - refused.keys()
    # Seven cases of a fixture may all be of those that leave something to read.
    assert len(never) <= len(fixtures) // 40, f"no damage of these was refused: {never}"
