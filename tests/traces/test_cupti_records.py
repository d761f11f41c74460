"""The layouts that the reader knows against those of NVIDIA's headers and of libcupti itself."""

from __future__ import annotations

import random
import re
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from spark_prof.traces.readers.cupti_blocks import walk
from spark_prof.traces.readers.cupti_records import (
    _FIELDS,
    CALLS,
    DRIVER_CALL,
    NEWEST,
    OLDEST,
    RUNTIME_CALL,
    record_dtype,
    record_sizes,
)
from tests.rows import each_row

from .cupti_buffers import LAYOUTS, VERSIONS, dtype_of, size_of


def test_the_known_versions_are_those_of_the_headers() -> None:
    assert (min(VERSIONS), max(VERSIONS)) == (OLDEST, NEWEST)


@pytest.mark.parametrize("version", VERSIONS)
def test_records_have_the_header_s_sizes_and_fields(version: int) -> None:
    kinds = set(map(int, LAYOUTS["libraries"][str(version)]["structs"]))
    sizes = {kind: size for kind, size in enumerate(record_sizes(version)) if size}
    assert {kind: sizes.get(kind) for kind in kinds} == {k: size_of(k, version) for k in kinds}
    assert sizes.keys() - kinds <= {55}  # libcupti writes it before a header has it
    for kind in _FIELDS:
        fields, header = record_dtype(kind, version).fields, dtype_of(kind, version).fields
        assert fields is not None
        assert header is not None
        for name in fields.keys() - {"objectId"}:  # a union, which the layouts leave out
            (of_header, at), (of_reader, place) = header[name][:2], fields[name][:2]
            assert (place, of_reader.itemsize) == (at, of_header.itemsize), (kind, name)


@each_row(("version", "same_as"), [(25, 24), (129999, 28), (130099, 130001), (130600, NEWEST)])
def test_a_version_between_two_known_ones_is_like_the_older(version: int, same_as: int) -> None:
    assert record_sizes(version) == record_sizes(same_as)


@pytest.mark.parametrize(("kind", "api"), [(RUNTIME_CALL, "RUNTIME"), (DRIVER_CALL, "DRIVER")])
def test_calls_have_the_header_s_numbers(kind: int, api: str) -> None:
    headers = LAYOUTS["calls"][api]
    for number, name in CALLS[kind].items():
        assert re.sub(r"_v\d+(?=_pt|$)", "", headers[str(number)]).removesuffix("_v2") == re.sub(
            r"_v\d+$", "", name
        )


SIZES = (0, 96, 88, 216, 40, 40, 0, 24)


def buffer(kinds: list[int]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Records of those kinds; all their other bytes look like kinds too."""
    parts = [np.full(SIZES[kind] // 4, 3, np.uint32) for kind in kinds]
    for part, kind in zip(parts, kinds, strict=True):
        part[0] = kind
    return np.concatenate(parts) if parts else np.zeros(0, np.uint32)


def expected(kinds: list[int]) -> dict[int, list[int]]:
    places: dict[int, list[int]] = {}
    at = 0
    for kind in kinds:
        places.setdefault(kind, []).append(at)
        at += SIZES[kind]
    return places


def found(words: Any) -> tuple[dict[int, list[int]], int, str]:
    places: dict[int, list[int]] = {}
    end, problem = 0, ""
    for group in walk(words, SIZES):
        assert not problem
        for kind, mine in group.places.items():
            places.setdefault(kind, []).extend(mine.tolist())
        end, problem = group.end, group.problem
    return places, end, problem


def mixed(seed: int) -> list[int]:
    """Stretches of one kind, of patterns, and of no order."""
    dice = random.Random(seed)
    kinds: list[int] = []
    for _ in range(dice.randrange(12)):
        pattern = [dice.choice((1, 2, 3, 4, 5, 7)) for _ in range(dice.randrange(1, 12))]
        kinds += pattern * dice.choice((1, 2, 40, 700))
    return kinds


@each_row("seed", range(40))
def test_all_records_of_a_mixture_are_found(seed: int) -> None:
    kinds = mixed(seed)
    assert found(buffer(kinds))[0] == expected(kinds)


@each_row("before", [0, 1, 31, 32, 33, 500])
@each_row(
    ("damage", "problem"),
    [
        ([0], "no record is of kind 0"),
        ([6], "no record is of kind 6"),
        ([8], "no record is of kind 8"),
        ([0xFFFFFFFF], "no record is of kind 4294967295"),
        ([3, 3, 3], "a record of kind 3 is cut off"),
    ],
)
def test_the_walk_stops_at_damage(before: int, damage: list[int], problem: str) -> None:
    words = np.concatenate([buffer([3] * before), np.array(damage, np.uint32)])
    places, end, why = found(words)
    assert (places, end, why) == (expected([3] * before), before * SIZES[3], problem)


@each_row("seed", range(60))
def test_any_bytes_end_the_walk(seed: int) -> None:
    random_words = np.random.default_rng(seed)
    words = random_words.integers(0, 9, random_words.integers(20_000), dtype=np.uint32)
    places, end, problem = found(words)
    total = sum(SIZES[kind] * len(mine) for kind, mine in places.items())
    assert total == end <= 4 * len(words)
    assert problem or end == 4 * len(words)
    everything = sorted((at, SIZES[kind]) for kind, mine in places.items() for at in mine)
    ends = accumulate(size for _, size in everything)
    assert [at for at, _ in everything] == [0, *ends][: len(everything)]
