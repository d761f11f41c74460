"""The layouts that the reader knows against those of NVIDIA's headers and of libcupti itself."""

from __future__ import annotations

import re

import pytest

from spark_prof.traces.readers.cupti_records import (
    CALLS,
    DRIVER_CALL,
    NEWEST,
    OLDEST,
    RUNTIME_CALL,
    record_sizes,
)
from tests.rows import each_row

from .cupti_buffers import LAYOUTS, VERSIONS


def test_the_known_versions_are_those_of_the_headers() -> None:
    assert (min(VERSIONS), max(VERSIONS)) == (OLDEST, NEWEST)


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
