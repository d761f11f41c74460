"""The layouts that the reader knows against those of NVIDIA's headers and of libcupti itself."""

from __future__ import annotations

import importlib
import re

import pytest

from spark_prof.traces.readers.cupti_records import (
    CALLS,
    DRIVER_CALL,
    NEWEST,
    OLDEST,
    RUNTIME_CALL,
    record_dtype,
    record_sizes,
)
from tests.rows import each_row

from .cupti_buffers import LAYOUTS, VERSIONS, size_of

READ = (1, 2, 3, 4, 5, 10, 12, 17, 22, 48)


def test_the_known_versions_are_those_of_the_headers() -> None:
    assert (min(VERSIONS), max(VERSIONS)) == (OLDEST, NEWEST)


@pytest.mark.parametrize("version", VERSIONS)
class TestVersion:
    def test_every_kind_has_the_size_of_its_structure(self, version: int) -> None:
        found = record_sizes(version)
        library = LAYOUTS["libraries"][str(version)]
        for kind in map(int, library["structs"]):
            assert found[kind] == size_of(kind, version), kind

    def test_kinds_are_as_long_as_libcuptis_own_steps(self, version: int) -> None:
        walked = LAYOUTS["libraries"][str(version)]["walked"]
        if walked is None:
            pytest.skip("this libcupti does not answer without a GPU")
        found = record_sizes(version)
        assert {kind: found[int(kind)] for kind in walked} == walked

    def test_no_size_for_a_kind_that_the_library_does_not_write(self, version: int) -> None:
        library = LAYOUTS["libraries"][str(version)]
        known = {*library["structs"], *(library["walked"] or {})}
        extra = {k for k, size in enumerate(record_sizes(version)) if size} - set(map(int, known))
        assert not extra

    @each_row("kind", READ)
    def test_fields_lie_where_the_header_has_them(self, version: int, kind: int) -> None:
        layout = LAYOUTS["structs"][LAYOUTS["libraries"][str(version)]["structs"][str(kind)]]
        dtype = record_dtype(kind, version)
        assert dtype.itemsize == layout["size"]
        assert dtype.fields is not None
        for name, (field, offset, *_) in dtype.fields.items():
            first, _, last = name.partition("_to_")
            begin, size = layout["fields"][first]
            if last:
                size = sum(layout["fields"][last]) - begin
            assert (offset, field.itemsize) == (begin, size), name


@each_row(("version", "same_as"), [(25, 24), (129999, 28), (130099, 130001), (130600, NEWEST)])
def test_a_version_between_two_known_ones_is_like_the_older(version: int, same_as: int) -> None:
    assert record_sizes(version) == record_sizes(same_as)


def test_only_some_kinds_are_read() -> None:
    with pytest.raises(KeyError):
        record_dtype(13, NEWEST)


@pytest.mark.parametrize(("kind", "api"), [(RUNTIME_CALL, "RUNTIME"), (DRIVER_CALL, "DRIVER")])
def test_calls_have_the_header_s_numbers(kind: int, api: str) -> None:
    headers = LAYOUTS["calls"][api]
    for number, name in CALLS[kind].items():
        assert re.sub(r"_v\d+(?=_pt|$)", "", headers[str(number)]).removesuffix("_v2") == re.sub(
            r"_v\d+$", "", name
        )


def test_every_kernel_and_graph_launch_that_is_recorded_has_a_name() -> None:
    wanted = CALLS
    apis = {RUNTIME_CALL: "RUNTIME", DRIVER_CALL: "DRIVER"}
    for kind, numbers in wanted.items():
        for number in numbers:
            if "Launch" in LAYOUTS["calls"][apis[kind]][str(number)]:
                assert number in CALLS[kind]


@each_row(
    ("name", "kind", "version"),
    [
        ("kernel9", 10, 28),
        ("kernel10", 10, 130001),
        ("kernel11", 3, 130101),
        ("kernel12", 10, 130301),
        ("kernel13", 10, 130401),
        ("memcpy5", 1, 24),
        ("memcpy6", 1, 130001),
        ("memcpy7", 1, 130401),
        ("memcpy_pto_p4", 22, 130401),
        ("memset4", 2, 130001),
        ("memset5", 2, 130401),
        ("api", 5, 130001),
        ("overhead3", 17, 130001),
    ],
)
def test_fields_are_where_cupti_python_has_them(name: str, kind: int, version: int) -> None:
    """Its public dtypes. It is no requirement of the tests: it brings another libcupti."""
    try:
        cupti = importlib.import_module("cupti.cupti")
    except (ImportError, RuntimeError, OSError) as error:
        pytest.skip(f"cupti-python cannot be imported: {error}")
    theirs = getattr(cupti, f"activity_{name}_dtype", None)
    if theirs is None:
        pytest.skip(f"this cupti-python has no {name}")
    ours = record_dtype(kind, version)
    assert ours.fields is not None
    assert ours.itemsize == theirs.itemsize
    for field, (found, offset, *_) in ours.fields.items():
        if "_to_" not in field:
            snake = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", field).lower()
            expected, at, *_ = theirs.fields[snake]
            assert (offset, found.itemsize) == (at, expected.itemsize), field
