"""``python -m tests.fuzz --seconds N --seed S``: as many cases as fit; ``--case NAME:N`` one."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.fuzz.cases import Case, Outcome, run
from tests.fuzz.fixtures import Fixture, build
from tests.fuzz.pool import Run, workers

_APART = 1_000_000
"""Numbers between two seeds, so that they share no case."""


def main() -> int:
    """Runs the cases; returns 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="fixtures whose name holds this")
    parser.add_argument("--case", help="a fixture and a number, as a failure names them")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        (folder / "fixtures").mkdir()
        fixtures = build(folder / "fixtures")
        (folder / "cases").mkdir()
        if chosen.case:
            return _one(fixtures, chosen.case, folder / "cases")
        fixtures = [f for f in fixtures if chosen.only in f.name]
        with workers(folder / "cases") as run_all:
            found = list(_until(time.monotonic() + chosen.seconds, fixtures, chosen.seed, run_all))
    return _report(found)


def _until(end: float, fixtures: Sequence[Fixture], seed: int, run_all: Run) -> Iterator[Outcome]:
    """Rounds of one case of each fixture, shown as they fail."""
    number = seed * _APART
    while time.monotonic() < end:
        number += 1
        for outcome in run_all(Case(fixture, number) for fixture in fixtures):
            if outcome.failure:
                print(outcome.failure, flush=True)
            yield outcome


def _one(fixtures: Sequence[Fixture], wanted: str, folder: Path) -> int:
    name, _, number = wanted.rpartition(":")
    fixture = next(f for f in fixtures if f.name == name)
    outcome = run(Case(fixture, int(number)), folder)
    print(outcome.failure or outcome.refused or "read")
    return 1 if outcome.failure else 0


def _report(found: Sequence[Outcome]) -> int:
    failed = sum(bool(o.failure) for o in found)
    refused = sum(bool(o.refused) for o in found)
    print(f"{len(found)} cases, {refused} refused, {failed} failed")
    for outcome in sorted(found, key=lambda o: o.seconds)[-3:]:
        print(f"{outcome.case}: {outcome.seconds:.1f} s")
    for outcome in sorted(found, key=lambda o: o.peak)[-3:]:
        print(f"{outcome.case}: {outcome.peak >> 20} MiB")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
