"""The file of measurements: written whole or not at all, read as it was, refused if it is none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_prof.kernels import tuning
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.tuning import (
    ALONE,
    Tuned,
    TunedShape,
    TuningRun,
    known_runs,
    merged,
    read,
    save,
    write_whole,
)
from tests.rows import each_row


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", tmp_path / "absent" / "file"):
        with pytest.raises(KernelError, match=f"cannot write {path}"):
            write_whole(path, b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


WORK = TunedShape("dense", "nvfp4", 4096, 2880, 1)
ROW = Tuned(WORK, {"warps": 8, "split": 4, "x_ahead": 0}, 6.25, "marlin", 10.5)
RUN = TuningRun("sm_90a", "NVIDIA H100 80GB HBM3", "2026-11-21T15:00:00+00:00", "580.1", {}, (ROW,))
FIELDS = ("rows", "columns", "tokens", "experts", "top_k")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    known_runs.cache_clear()
    yield
    known_runs.cache_clear()


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    path = save(RUN, tmp_path / "deep" / "tuned.json")
    assert read(path) == (RUN,)
    assert [entry.name for entry in path.parent.iterdir()] == ["tuned.json"]


def test_a_measurement_is_one_line(tmp_path: Path) -> None:
    rows = tuple(replace(ROW, work=replace(WORK, tokens=m)) for m in (1, 2, 4))
    text = save(replace(RUN, rows=rows), tmp_path / "t.json").read_text()
    lines = [json.loads(line.rstrip(",")) for line in text.splitlines() if '"us"' in line]
    assert [line["work"]["tokens"] for line in lines] == [1, 2, 4]


def test_the_package_s_file_is_readable() -> None:
    assert known_runs() == read(tuning.SHIPPED)


def test_the_user_s_rows_count_before_the_package_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(ROW, work=replace(WORK, tokens=2))
    shipped = save(replace(RUN, rows=(ROW, other)), tmp_path / "shipped.json")
    monkeypatch.setattr(tuning, "SHIPPED", shipped)
    slower, mine = replace(ROW, us=20.0), "2027-01-01T00:00:00+00:00"
    assert save(replace(RUN, date=mine, rows=(slower,))) == tuning.user_file()
    assert [(run.date, run.rows) for run in known_runs()] == [
        (RUN.date, (other,)),
        (mine, (slower,)),
    ]


@each_row("change", [{"architecture": "sm_121a"}, {"machine": "NVIDIA H200"}])
def test_a_new_run_replaces_only_what_it_measured_on_that_gpu(change: dict[str, str]) -> None:
    elsewhere = replace(RUN, **change)
    again = replace(RUN, date="2027-01-01T00:00:00+00:00", rows=(replace(ROW, us=5.0),))
    assert merged((RUN, elsewhere), (again,)) == (elsewhere, again)
    assert merged((RUN,), (elsewhere,)) == (RUN, elsewhere)


@each_row(
    ("form", "us", "fallback_us", "wins"),
    [
        ("nvfp4", 5.0, 6.0, True),
        ("nvfp4", 6.0, 6.0, True),
        ("nvfp4", 6.1, 6.0, False),
        ("nvfp4", 5.0, None, False),
        # Within the noise BF16 stays with cuBLAS.
        ("bf16", 6.0, 6.0, False),
        ("bf16", 6.0, 6.1, False),
        ("bf16", 6.0, 6.2, True),
        ("bf16", 6.0, None, False),
    ],
)
def test_what_wins(form: str, us: float, fallback_us: float | None, wins: bool) -> None:
    row = replace(ROW, work=replace(WORK, format=form), us=us, fallback_us=fallback_us)
    assert row.wins is wins
    in_chain = replace(row, fallback=ALONE)
    assert in_chain.wins is (fallback_us is not None and us <= fallback_us), "beside itself"


def _document(tmp_path: Path) -> Any:
    return json.loads(save(RUN, tmp_path / "good.json").read_text())


def _row(change: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda document: change(document["runs"][0]["rows"][0])


BAD: list[tuple[str, Callable[[Any], object]]] = [
    ("another schema", lambda d: d.update(schema=2)),
    ("no runs", lambda d: d.pop("runs")),
    ("a number as date", lambda d: d["runs"][0].update(date=5)),
    ("no time", _row(lambda r: r.update(us=0.0))),
    ("a time below zero", _row(lambda r: r.update(fallback_us=-1e308))),
    ("a constant that is text", _row(lambda r: r["config"].update(warps="8"))),
    *((field, _row(lambda r, f=field: r["work"].update({f: 1.5}))) for field in FIELDS),
]


@each_row(("name", "change"), BAD)
def test_a_file_with_something_wrong_is_refused(
    tmp_path: Path, name: str, change: Callable[[Any], object]
) -> None:
    document = _document(tmp_path)
    change(document)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document))
    with pytest.raises(KernelError, match=r"bad\.json .*delete it"):
        read(path)


@each_row("content", [b"", b"\0\xff\xfe", b"[]", b"{}", b'{"schema":1}', b"NaN", b"[" * 100_000])
def test_a_foreign_file_is_refused_and_not_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(KernelError, match="delete it"):
        read(path)
    with pytest.raises(KernelError, match="delete it"):
        save(RUN, path)
    assert path.read_bytes() == content


def test_every_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    whole = save(RUN, tmp_path / "good.json").read_bytes().rstrip()
    path = tmp_path / "cut.json"
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(KernelError):
            read(path)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(KernelError, match="cannot write"):
        save(RUN, tmp_path / "file" / "t.json")
    with pytest.raises(KernelError, match="cannot read"):
        read(tmp_path)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    os.mkfifo(path)
    with pytest.raises(KernelError, match="is no file of at most 64 MiB"):
        read(path)
    sparse = tmp_path / "large.json"
    with sparse.open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(KernelError, match="is no file of at most 64 MiB"):
        read(sparse)
