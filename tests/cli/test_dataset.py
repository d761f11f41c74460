"""export, query, and report of a folder, as they are typed."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_prof.datasets import engines
from spark_prof.traces.bundle import Bundle
from tests.cli.conftest import Run
from tests.support import Recorded, eager_decode


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder `runs` of two bundles and a broken one, and others of which nothing can be read.

    All are read in this process: each of several would import everything.
    """
    monkeypatch.setattr(engines.os, "cpu_count", lambda: 1)
    for name in ("a", "deep/b"):
        Recorded({0: [eager_decode()]}).assemble(tmp_path / "runs" / name)
    for name, content in (
        ("runs/broken/meta.json", b"{"), ("full/x", b"x"), ("allbad/empty.sqlite", b""),
        ("allbad/cut.json.gz", gzip.compress(b'{"traceEvents": [')[:-9]),
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)


BAD = [
    "export",
    "export runs/a",
    "export nosuch -o x.json",
    "export runs/broken -o x.json",
    "export runs/a -o nosuch/x.json",
    "export runs/a -o full",
    "export runs/a -o x.csv",
    "export runs/a -o x.json --steps 3",
    "export runs/a -o x.json --steps 5:3",
    "export runs/a -o x.json --ranks 7",
    "export runs/a -o x.json --ranks a",
    "export runs/a -o x.json --format pdf",
    f"export runs/a -o {'x' * 300}.json",
    f"export runs/a -o {'x' * 300}",
    "export s3://nowhere::x -o x.json",
    "query",
    "query runs",
    "query nosuch SELECT",
    "query runs SELEC",
    "query runs/a SHOW -o nosuch/x.csv",
    "query runs/a SHOW --format parquet",
    "query full SHOW",
    "report allbad",
    "report runs --rank 0",
    "report runs --bench full/x",
    "report runs --engine nosuch",
    "report memory://nothing",
]


def test_bad_input(run: Run, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    for line in BAD:
        code, out, errors = run(*line.split())
        assert (code, out) == (2, ""), line
        # A recording that is left out of a query is told before the error.
        assert all(text.startswith("spark-prof: ") for text in errors.splitlines()), line
        assert not errors.splitlines()[-1].startswith("spark-prof: left out"), line
    assert sorted(tmp_path.rglob("*")) == before


def test_export_chooses_by_the_ending(run: Run, tmp_path: Path) -> None:
    for out in ("t.json", "t.json.gz", "tables"):
        assert run("export", "runs/a", "-o", out)[0] == 0
    plain = json.loads((tmp_path / "t.json").read_text())
    assert plain == json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))
    assert Bundle(tmp_path / "tables").ranks == (0,)
    assert run("export", "runs/a", "-o", "sheet", "--format", "csv", "--steps", "1:")[0] == 0
    with open(tmp_path / "sheet" / "kernels-rank0.csv", newline="") as file:
        assert {row["step"] for row in csv.DictReader(file)} == {"1"}


def test_the_same_export_is_the_same_file(run: Run, tmp_path: Path) -> None:
    for out in ("a.json.gz", "b.json.gz"):
        run("export", "runs/a", "-o", out)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_query_tells_what_it_leaves_out(run: Run) -> None:
    code, out, errors = run("query", "runs", "SELECT bundle FROM bundles ORDER BY 1",
                            "--format", "json")  # fmt: skip
    assert code == 0
    assert [row["bundle"] for row in json.loads(out)] == ["a", "deep/b"]
    assert errors.count("\n") == 1
    assert errors.startswith("spark-prof: left out: runs/broken")


@pytest.mark.parametrize("ending", ["txt", "csv", "json", "parquet"])
def test_query_writes_by_the_ending(run: Run, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"out.{ending}"
    assert run("query", "runs/a", "runs/deep/b", "SELECT bundle, rank FROM kernels", "-o",
               str(path))[0] == 0  # fmt: skip
    if ending == "parquet":
        assert pq.read_table(path).num_rows == 8
    elif ending == "json":
        assert len(json.loads(path.read_text())) == 8
    else:
        assert path.read_text().count("\n") == (9 if ending == "csv" else 10)


def test_report_of_a_folder(run: Run, tmp_path: Path) -> None:
    for kind in ("text", "md"):  # the others: test_dataset_report.py
        code, out, errors = run("report", "runs", "--format", kind)
        assert (code, errors) == (0, "")
        for word in ("deep/b", "broken", "is damaged"):
            assert word in out
    assert run("report", "runs", "-o", "out.md")[0] == 0
    # print ends with a line of its own.
    assert (tmp_path / "out.md").read_text() + "\n" == out


def test_report_of_a_store(run: Run, tmp_path: Path) -> None:
    local = json.loads(run("report", "runs", "--format", "json")[1])
    code, out, _ = run("report", f"file://{tmp_path}/runs", "--format", "json")
    assert code == 0
    found = json.loads(out)
    assert found["recordings"] == local["recordings"]
    assert [failure["name"] for failure in found["failures"]] == ["broken"]
