"""Views that are worked out: launches and projections, against the tables that they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_prof.datasets.sql_query import query
from spark_prof.importers.sources import open_source
from spark_prof.traces.bundle import Bundle

TRACES = Path(__file__).parents[1] / "data" / "kineto"


@pytest.fixture(params=["gpt-oss-eager.json.gz", "gpt-oss-graphs"])
def bundle(request: pytest.FixtureRequest) -> Any:
    with open_source(TRACES / request.param) as opened:
        yield opened


def rows(bundle: Bundle, sql: str) -> list[tuple[Any, ...]]:
    with query({"it": bundle}, sql) as result:
        return list(result.rows())


def test_every_launched_kernel_is_a_row_of_launches(bundle: Bundle) -> None:
    expected = rows(
        bundle,
        "SELECT k.name, k.end_ns - k.start_ns, h.name, h.start_ns FROM kernels k "
        "JOIN host h USING (correlation) WHERE k.kind = 'kernel' AND correlation >= 0 ORDER BY ALL",
    )
    found = rows(bundle, "SELECT name, time_ns, function, call_ns FROM launches ORDER BY ALL")
    assert len(found) > 500
    assert found == expected


def test_a_step_s_projection_is_what_it_launched(bundle: Bundle) -> None:
    expected = rows(
        bundle,
        "SELECT m.start_ns, count(*), min(k.start_ns), max(k.end_ns) FROM markers m "
        "JOIN host h ON h.start_ns >= m.start_ns AND h.end_ns <= m.end_ns AND h.thread = m.thread "
        "JOIN kernels k ON k.correlation = h.correlation WHERE m.name LIKE 'execute%' "
        "GROUP BY ALL ORDER BY ALL",
    )
    found = rows(
        bundle,
        "SELECT start_ns, ops, gpu_start_ns, gpu_end_ns FROM projections "
        "WHERE name LIKE 'execute%' ORDER BY ALL",
    )
    assert len(found) >= 6
    assert found == expected
