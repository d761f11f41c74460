"""Reports as their JSON has them, and what two of them differ in."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.summary import summarize
from spark_prof.dashboards.render.json_report import record_of, write
from spark_prof.traces.bundle import Bundle
from tests.world.world import World

Json = dict[str, Any]
_SENTENCES = ("run", "answers", "findings", "notes")


@contextmanager
def recorded(world: World) -> Iterator[tuple[Bundle, Path]]:
    """The bundle of a world, in an empty folder that goes away."""
    with tempfile.TemporaryDirectory() as folder:
        yield world.bundle(Path(folder) / "recorded"), Path(folder)


def figures(bundle: Bundle, rank: int = 0) -> Json:
    """What the report of a bundle says, as `figures_of` has it."""
    return figures_of(summarize(bundle, rank))


def figures_of(report: Report) -> Json:
    """What a report says, without what it says in sentences and where it came from."""
    found: Json = json.loads(write(record_of(report)))
    return _ordered({k: v for k, v in found.items() if k not in _SENTENCES})


def _ordered(value: Any) -> Any:
    """With rows in the order of their texts: of rows that take as long either may come first."""
    if isinstance(value, dict):
        return {name: _ordered(inner) for name, inner in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        rows = [_ordered(inner) for inner in value]
        return sorted(rows, key=lambda row: [v for v in row.values() if isinstance(v, str)])
    return value


def report_of(world: World, rank: int = 0) -> Json:
    """The same of a world."""
    with recorded(world) as (bundle, _):
        return figures(bundle, rank)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every figure and text with where it stands."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{place}]")
    else:
        yield path, value


_TIME = re.compile(r"(?:_us|\bus|_ms|ms_per_token)(?:$|\[|_|\.(?:median|p99|p10|p90|mean)$)"
                   r"|\.(?:step|spread)\.(?:median|p99|p10|p90|mean)$")  # fmt: skip
_RATE = re.compile(r"\.tokens_per_s(?:_sequence)?$|_per_s$")


def power_of_time(path: str) -> int:
    """1 for a time, -1 for what is by time, else 0."""
    return -1 if _RATE.search(path) else int(bool(_TIME.search(path)))


def differences(a: Json, b: Json, factor: float = 1.0) -> list[str]:
    """What differs between two reports, where every time of the second is so many times as long."""
    first, second = dict(leaves(a)), dict(leaves(b))
    found = [f"{path}: only on one side" for path in first.keys() ^ second.keys()]
    for path in first.keys() & second.keys():
        one, other = first[path], second[path]
        if type(one) in (int, float) and type(other) in (int, float):
            one *= factor ** power_of_time(path)
            if one != pytest.approx(other, rel=1e-5, abs=4e-6):
                found.append(f"{path}: {one} is not {other}")
        elif one != other:
            found.append(f"{path}: {one!r} is not {other!r}")
    return sorted(found)
