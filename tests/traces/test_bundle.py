"""Bundles from anywhere: a damaged or hostile one is refused in one line; and their tables."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from spark_prof.errors import CommandError
from spark_prof.traces import bundle as bundles
from spark_prof.traces.bundle import META_FILE, Bundle, table_file
from spark_prof.traces.chunks import (
    COUNTER_DTYPE,
    ENGINE_DTYPE,
    REQUEST_DTYPE,
    REQUEST_STEP_DTYPE,
    STEP_DTYPE,
)
from spark_prof.traces.tables import TABLES
from tests.rows import each_row
from tests.support import Recorded, eager_decode, refusal

DATA = Path(__file__).parents[1] / "data"
STEPS = table_file("steps", 0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recorded = Recorded({0: [eager_decode()]}, facts={"vllm": "0.32.0"})
    return recorded.assemble(tmp_path_factory.mktemp("whole") / "b").path


@pytest.fixture
def folder(tmp_path: Path, whole: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "b"))


def refused(folder: Path) -> str:
    with pytest.raises(CommandError) as caught:
        Bundle(folder)
    assert caught.value.exit_code == 2
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


def change(folder: Path, **fields: Any) -> None:
    path = folder / META_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_small_table_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle(folder)
    whole = bundle.frame("steps", 0)
    columns = ["start_ns", "phase"]
    with monkeypatch.context() as patch:
        patch.setattr(pq, "ParquetFile", None)
        pd.testing.assert_frame_equal(bundle.frame("steps", 0, columns), whole[columns])
    rows = pq.read_table(folder / STEPS)
    place = rows.schema.get_field_index("start_ns")
    later = pc.add(rows.column("start_ns"), 5)
    pq.write_table(rows.set_column(place, rows.schema.field(place), later), folder / STEPS)
    assert (bundle.frame("steps", 0)["start_ns"] == whole["start_ns"] + 5).all(), "another file"


def test_times_are_written_as_what_they_add_to_the_one_before(folder: Path) -> None:
    group = pq.read_metadata(folder / table_file("kernels", 0)).row_group(0)
    encodings = {
        group.column(at).path_in_schema: group.column(at).encodings
        for at in range(group.num_columns)
    }
    for name in ("start_ns", "end_ns", "correlation"):
        assert "DELTA_BINARY_PACKED" in encodings[name]
    assert "RLE_DICTIONARY" in encodings["step"]


@pytest.mark.parametrize("group", [1, 2, 3, 100])
@pytest.mark.parametrize("wanted", [1, 2, 3, 4, 1000])
def test_row_groups_that_are_spread_are_those_rows_of_the_table(
    folder: Path, group: int, wanted: int
) -> None:
    path = folder / table_file("kernels", 0)
    pq.write_table(pq.read_table(path), path, row_group_size=group)
    whole = Bundle(folder).frame("kernels", 0, ["name", "start_ns"])
    found, place = Bundle(folder).spread("kernels", 0, ["name", "start_ns"], wanted)
    assert len(found) == len(place) >= min(wanted - wanted % group, len(whole))
    assert found.astype(str).values.tolist() == whole.iloc[place].astype(str).values.tolist()
    if wanted >= len(whole):
        assert len(found) == len(whole)
    empty, none = Bundle(folder).spread("kernels", 5, ["name"], wanted)
    assert len(empty) == len(none) == 0


@pytest.mark.parametrize("table", TABLES)
def test_every_table_has_its_columns(folder: Path, table: str) -> None:
    bundle = Bundle(folder)
    for rank in (0, 3):
        assert bundle.arrow(table, rank).schema.names == TABLES[table].schema.names
        assert list(bundle.frame(table, rank)) == TABLES[table].schema.names
    assert len(bundle.frame(table, 3)) == 0


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.unlink(), "missing; copy it again"),
        (lambda path: path.write_bytes(path.read_bytes()[:-20]), "truncated or damaged"),
        (lambda path: path.write_bytes(b""), "truncated or damaged"),
        (lambda path: path.write_bytes(b"PAR1" * 100), "truncated or damaged"),
        (lambda path: (path.unlink(), path.mkdir()), "truncated or damaged"),
        (lambda path: pq.write_table(pq.read_table(path)[:1], path), "does not hold"),
        (lambda path: pq.write_table(pq.read_table(path).drop(["key"]), path), "does not hold"),
        (
            lambda path: pq.write_table(_with_texts(pq.read_table(path), "start_ns"), path),
            "does not hold",
        ),
    ],
    ids=["missing", "cut", "empty", "no footer", "folder", "rows", "columns", "types"],
)
def test_a_table_that_is_not_what_was_promised(
    folder: Path, damage: Callable[[Path], object], says: str
) -> None:
    damage(folder / STEPS)
    message = refused(folder)
    assert says in message
    assert STEPS in message


def test_a_table_whose_inside_is_damaged(folder: Path) -> None:
    path = folder / STEPS
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 3] = b"\xff" * (len(content) // 3 - 4)
    path.write_bytes(content)
    with refusal("damaged"):
        Bundle(folder).frame("steps", 0)


def test_a_table_with_holes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pq.read_table(folder / STEPS)
    holes = pa.array([None, 1], pa.int64())
    pq.write_table(table.set_column(1, table.schema.field("key"), holes), folder / STEPS)
    with pytest.raises(CommandError, match="lacks values"):
        Bundle(folder).frame("steps", 0)
    with pytest.raises(CommandError, match="lacks values"):
        list(Bundle(folder).batches("steps", 0))
    monkeypatch.setattr(bundles, "_LARGE", 1)
    with pytest.raises(CommandError, match="lacks values"):
        Bundle(folder).frame("steps", 0, ["key"])


def _with_texts(table: pa.Table, name: str) -> pa.Table:
    index = table.schema.get_field_index(name)
    return table.set_column(index, name, table[name].cast(pa.string()))


@pytest.mark.parametrize(
    "name",
    [
        "../steps-rank0.parquet", "/etc/passwd", "steps-rank0.parquet/../../x", "a\nb", "",
        "steps-rank00.parquet", "steps-rank-1.parquet", "steps-rank².parquet", "nothing",
        "steps-rank٣.parquet", "nosuch-rank0.parquet", "steps-rank" + "9" * 5000 + ".parquet",
    ],
    ids=lambda name: repr(name[:30]),
)  # fmt: skip
def test_files_that_are_no_tables_are_not_looked_at(folder: Path, name: str) -> None:
    change(folder, tables={name: 1})
    assert "which is no table" in refused(folder)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "3", '"x"', "[" * 200_000, '{"schema": 1}', "\x00", "\ud800",
    ],
    ids=lambda text: repr(text[:20]),
)  # fmt: skip
def test_a_damaged_meta(folder: Path, text: str) -> None:
    (folder / META_FILE).write_bytes(text.encode("utf-8", "surrogatepass"))
    message = refused(folder)
    assert "damaged" in message
    assert "indices" not in message
    assert "subscriptable" not in message


@pytest.mark.parametrize("field", ["spark_prof", "state", "created", "backend", "command", "lost",
                                   "settings", "facts", "tables"])  # fmt: skip
@pytest.mark.parametrize("value", [None, 7, [3], {"a": 3}], ids=repr)
def test_a_field_of_a_wrong_kind(folder: Path, field: str, value: object) -> None:
    if field == "settings" and isinstance(value, dict):
        pytest.skip("settings may hold anything")
    change(folder, **{field: value})
    message = refused(folder)
    assert "damaged" in message or "no table" in message


@pytest.mark.parametrize("schema", [0, 2, "1", None, [1], "x" * 10_000], ids=lambda s: repr(s)[:9])
def test_another_schema_says_so_whatever_else_it_holds(folder: Path, schema: object) -> None:
    (folder / META_FILE).write_text(json.dumps({"schema": schema, "command": 3}))
    assert "update spark-prof" in refused(folder)


def test_a_huge_meta_is_not_read(folder: Path) -> None:
    with open(folder / META_FILE, "r+b") as file:
        file.truncate(1 << 30)
    assert "larger than any bundle's" in refused(folder)


@pytest.mark.parametrize(("name", "says"), [(STEPS, "is no folder"), ("x", "does not exist")])
def test_what_is_no_folder(folder: Path, name: str, says: str) -> None:
    assert says in refused(folder / name)


def _without(folder: Path, table: str, *columns: str) -> None:
    path = folder / table_file(table, 0)
    pq.write_table(pq.read_table(path, partitioning=None).drop(list(columns)), path)


def test_a_bundle_from_before_a_column_was_added_is_read_with_its_default(folder: Path) -> None:
    _without(folder, "steps", "watched", "recomputed_tokens", "preempted")
    _without(folder, "kernels", "cubin")
    bundle = Bundle(folder)
    for table in ("steps", "kernels"):
        assert bundle.arrow(table, 0).schema.equals(TABLES[table].schema)
    assert bundle.frame("steps", 0)["watched"].tolist() == [True, True]
    assert bundle.frame("steps", 0)["preempted"].tolist() == [0, 0]
    found = bundle.frame("kernels", 0, ["cubin", "name"])
    assert list(found) == ["cubin", "name"]
    assert set(found["cubin"]) == {""}
    assert bundle.frame("kernels", 0, ["cubin"]).shape == (4, 1)
    assert list(bundle.frame("steps", 0, ["step"])) == ["step"]


@pytest.mark.parametrize("column", ["bytes", "name"])
def test_a_column_that_was_always_there_may_not_be_missing(folder: Path, column: str) -> None:
    _without(folder, "kernels", column)
    assert "does not hold" in refused(folder)


@each_row("rows", [1, 1000])
@each_row("capture", sorted(path.name for path in DATA.glob("h100-*")))
def test_together_they_are_the_table(
    capture: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "ROWS", rows)
    bundle = Bundle(DATA / capture)
    # Captures of before a column came have its default.
    for table in ("steps", "kernels") if rows > 1 else ("steps",):
        found = pa.concat_tables(bundle.batches(table, 0))
        assert found.schema.names == TABLES[table].schema.names
        assert found.to_pandas().astype(str).equals(bundle.frame(table, 0).astype(str))


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """A small bundle that is read as a large one."""
    monkeypatch.setattr(bundles, "_LARGE", 1)
    return Recorded({0: [eager_decode()]}).assemble(tmp_path / "b")


@pytest.mark.parametrize("table", ["kernels", "steps", "host"])
def test_a_large_table_is_the_same_frame(bundle: Bundle, table: str) -> None:
    wanted = bundle.arrow(table, 0).to_pandas()
    pd.testing.assert_frame_equal(bundle.frame(table, 0), wanted, check_categorical=False)
    columns = list(reversed(TABLES[table].schema.names))[:3]
    assert list(bundle.frame(table, 0, columns)) == columns


SCHEMA = "037df96f3531d048"
"""Of names, order and types of all columns. Who changes them changes `bundle.SCHEMA` too, but for
tables that are added, and columns with a default."""


def test_the_schema_of_bundles() -> None:
    text = "\n".join(f"{table.name}\n{table.schema}" for table in TABLES.values())
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == SCHEMA, text


def test_the_recorded_arrays_fill_their_tables() -> None:
    steps = {column.name for column in TABLES["steps"].columns}
    assert set(STEP_DTYPE.names or ()) - {"thread"} == steps - {"piece"}
    assert list(ENGINE_DTYPE.names or ()) == TABLES["engine"].schema.names
    assert list(REQUEST_DTYPE.names or ()) == TABLES["engine_requests"].schema.names
    assert list(REQUEST_STEP_DTYPE.names or ()) == TABLES["request_steps"].schema.names
    assert list(COUNTER_DTYPE.names or ()) == TABLES["counters"].schema.names
