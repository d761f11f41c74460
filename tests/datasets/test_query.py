"""SQL over bundles: the same figures as the tables, and nothing else can be reached."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_prof.analyzers.layer_consistency import label_kernels
from spark_prof.dashboards.query_result import MOST_LINES, WRITERS
from spark_prof.datasets.sql_query import query
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.tables import TABLES
from tests.rows import each_row
from tests.support import Recorded, eager_decode

DATA = Path(__file__).parents[1] / "data"
BUNDLES = {path.name: Bundle(path) for path in sorted(DATA.glob("h100-*"))}


def rows(sql: str, bundles: dict[str, Bundle] | None = None) -> list[tuple[object, ...]]:
    with query(BUNDLES if bundles is None else bundles, sql) as result:
        return list(result.rows())


def drawn(kind: str, sql: str) -> str:
    with query(BUNDLES, sql) as result:
        return "".join(WRITERS[kind](result.columns, result.rows()))


def test_every_table_is_a_view_with_all_its_columns_and_rows() -> None:
    sql = "SELECT table_name, column_name FROM information_schema.columns ORDER BY ordinal_position"
    shown = defaultdict(list)
    for table, column in rows(sql):
        shown[table].append(column)
    for name, table in TABLES.items():
        assert shown[name] == ["bundle", "rank", *table.schema.names]
    counts = (f"SELECT '{name}', bundle, count(*) FROM \"{name}\" GROUP BY ALL" for name in TABLES)
    counted = {row[:2]: row[2] for row in rows(" UNION ALL ".join(counts))}
    for name in TABLES:
        for called, bundle in BUNDLES.items():
            expected = sum(len(bundle.frame(name, rank)) for rank in bundle.ranks)
            assert counted.get((name, called), 0) == expected


def test_placed_is_what_the_report_says() -> None:
    sql = "SELECT bundle, component, engine, sum(end_ns - start_ns) FROM placed GROUP BY ALL"
    found = {row[:3]: row[3] for row in rows(sql)}
    expected = {}
    for name, bundle in BUNDLES.items():
        frame = label_kernels(bundle, 0)
        sums = (frame["end_ns"] - frame["start_ns"]).groupby(
            [frame["component"], frame["engine"]], observed=True
        )
        expected |= {(name, *key): value for key, value in sums.sum().items()}
    assert found == expected


def test_ranks_stay_apart(tmp_path: Path) -> None:
    bundle = Recorded({0: [eager_decode()], 3: [eager_decode()]}).assemble(tmp_path / "b")
    found = rows("SELECT rank, count(*) FROM kernels GROUP BY 1 ORDER BY 1", {"x": bundle})
    assert found == [(0, 4), (3, 4)]


def test_bundles_of_before_a_column_came_have_its_default(tmp_path: Path) -> None:
    new = Recorded({0: [eager_decode()]}).assemble(tmp_path / "new")
    Recorded({0: [eager_decode()]}).assemble(tmp_path / "old")
    path = tmp_path / "old" / "kernels-rank0.parquet"
    later = [column.name for column in TABLES["kernels"].columns if column.default is not None]
    pq.write_table(pq.read_table(path).drop_columns(later), path)
    bundles = {"new": new, "old": Bundle(tmp_path / "old")}
    found = rows("SELECT bundle, cubin, count(*) FROM kernels GROUP BY ALL ORDER BY 1", bundles)
    assert found == [("new", "", 4), ("old", "", 4)]


def test_steps_of_before_a_count_came_have_none(tmp_path: Path) -> None:
    old = Recorded({0: [eager_decode()]}).assemble(tmp_path / "old")
    path = old.path / "steps-rank0.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["preempted", "watched"]), path)
    found = rows("SELECT DISTINCT preempted, watched FROM steps", {"old": Bundle(old.path)})
    assert found == [(0, True)]


@each_row("name", ["it's", 'a "b"', "x'); SELECT 1; --", "a*[b]?", "ünï", "a=b"])
def test_hostile_names_of_bundles_are_names(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name.replace("/", "")
    Recorded({0: [eager_decode()]}).assemble(folder)
    found = rows("SELECT DISTINCT bundle FROM kernels", {name: Bundle(folder)})
    assert found == [(name,)]


@pytest.mark.slow
@each_row(
    "sql",
    [
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_parquet('{}/steps-rank0.parquet')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM sniff_csv('/etc/passwd')",
        "SELECT * FROM read_text('https://example.org')",
        "COPY (SELECT 1) TO '{}/out.csv'",
        "ATTACH '{}/x.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET memory_limit = '1TB'",
        "CALL pragma_version()",
        "CREATE TABLE x AS SELECT 1",
        "DROP VIEW kernels",
        "INSERT INTO bundles SELECT * FROM bundles",
        "EXPORT DATABASE '{}/x'",
        "SELECT 1; SELECT 2",
        "",
        "SELEC 1",
        "SELECT nothing FROM kernels",
        "SELECT * FROM os",
        "SELECT error('two' || chr(10) || 'lines')",
    ],
)
def test_everything_else_is_refused_in_one_line(sql: str, tmp_path: Path) -> None:
    bundle = Recorded({0: [eager_decode()]}).assemble(tmp_path / "b")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CommandError) as caught:
        rows(sql.format(tmp_path), {"b": bundle})
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert sorted(tmp_path.rglob("*")) == before


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rows("SELECT count(*) FROM placed")
    assert os.listdir(tmp_path) == []


def test_json_is_a_list_of_objects() -> None:
    sql = "SELECT bundle, 1.5 AS x, 'nan'::DOUBLE AS y, NULL AS z, 2 AS x FROM bundles ORDER BY 1"
    found = json.loads(drawn("json", sql))
    assert found == [{"bundle": name, "x": 1.5, "y": None, "z": None, "x_2": 2} for name in BUNDLES]
    assert json.loads(drawn("json", "SELECT 1 WHERE false")) == []


def test_csv_holds_no_formula() -> None:
    text = drawn("csv", "SELECT '=1+1' AS \"=a\", 'x,\"y' AS b, -1 AS c")
    assert list(csv.reader(io.StringIO(text))) == [["'=a", "b", "c"], ["'=1+1", 'x,"y', "-1"]]


def test_text_is_bounded_and_clean() -> None:
    text = drawn("text", f"SELECT range AS n, chr(27) || '[2J' AS t FROM range({MOST_LINES + 5})")
    assert "\x1b" not in text
    assert text.splitlines()[-1].startswith("5 more rows")
    assert len(text.splitlines()) == MOST_LINES + 3


def test_parquet_keeps_types_and_exact_times() -> None:
    with query(BUNDLES, "SELECT bundle, start_ns FROM kernels") as result:
        found = pq.read_table(result.write_parquet())
    assert [str(field.type) for field in found.schema] == ["string", "int64"]
    starts = [ns for bundle in BUNDLES.values() for ns in bundle.frame("kernels", 0)["start_ns"]]
    assert sorted(found["start_ns"].to_pylist()) == sorted(starts)


@each_row("kind", ["text", "csv", "json"])
def test_times_with_a_zone_need_no_pytz(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytz", None)
    moment = "TIMESTAMPTZ '2026-01-02 03:04:05.678+00'"
    sql = (
        f"SELECT {moment} a, [{moment}] b, {{'TIMESTAMP WITH TIME ZONE': 1, 'x': {moment}}} c, "
        f"MAP([1], [{moment}]) d, 7 a, now() IS NULL e -- the end"
    )
    assert drawn(kind, sql).count(":05.678") == 4
    with query(BUNDLES, sql) as result:
        assert result.columns == ("a", "b", "c", "d", "a_2", "e")
        (row,) = result.rows()
        assert (list(row[2]), row[4:]) == (["TIMESTAMP WITH TIME ZONE", "x"], (7, False))
        kept = pq.read_table(result.write_parquet())
        assert str(kept.schema.field("a").type).startswith("timestamp[us, tz=")
