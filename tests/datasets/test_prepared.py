"""Sources are prepared by a process of its own, kept, and made again where they were lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import spark_prof
from spark_prof.datasets import prepared_name
from spark_prof.datasets.prepared import Prepared, begin, fingerprint, prepare
from spark_prof.errors import CommandError
from spark_prof.traces.measured import Measured, Measurement, keep_measured
from spark_prof.traces.pieces import pieces_folder, progress_name, write_json
from spark_prof.traces.prepared_folders import own_folder
from spark_prof.vocabulary import COMPONENTS
from tests.support import Piece, Recorded, eager_decode, kernel, kineto, step

DATA = Path(__file__).parents[1] / "data"
NO_PYTHON = "/no/such/python"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where prepared sources are kept, in this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # The package itself may be edited while its tests run.
    monkeypatch.setattr(prepared_name, "_PACKAGE", tmp_path / "package")
    (tmp_path / "package").mkdir()
    return tmp_path / "cache" / "spark-prof" / "explore-1"


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    return str(Recorded({0: [eager_decode()]}).assemble(tmp_path / "run").path)


def same(prepared: Prepared, source: str, rank: int | None = None) -> None:
    """It says what the report does, and its kernels add up to the same."""
    report = spark_prof.report(source, rank)
    assert prepared.report == report
    kernels = prepared.kernels
    assert not kernels.start_ns.flags.writeable
    inside = kernels.step >= 0
    for row in report.components:
        mine = inside & ~np.array(kernels.copies)[kernels.name]
        mine &= np.array([COMPONENTS[code] == row.name for code in kernels.component])
        ns = (kernels.end_ns - kernels.start_ns)[mine].sum()
        assert ns / 1e3 == pytest.approx(row.us)
    assert len(prepared.steps) == report.steps.count
    if prepared.timed:
        assert prepared.steps["step_us"].sum() == pytest.approx(report.books[0].step_us)


@pytest.mark.parametrize(
    ("name", "kernels", "timed"),
    [
        ("h100-gpt-oss-20b-mxfp4-graphs", 1944, True),
        ("h100-gpt-oss-20b-mxfp4-eager", 14800, True),
        ("kineto/gpt-oss-graphs", 628, True),
        ("ncu-h100/nvfp4.csv", 20, False),
        ("proton/tree.hatchet", 22, False),
    ],
)
def test_a_source_is_prepared_as_it_is_reported(name: str, kernels: int, timed: bool) -> None:
    found = prepare(str(DATA / name))
    same(found, str(DATA / name))
    assert (len(found.kernels), found.timed, found.live) == (kernels, timed, False)
    assert (found.rank, found.ranks) == (0, (0,))


def test_without_times_steps_have_none() -> None:
    steps = prepare(str(DATA / "ncu-h100" / "nvfp4.csv")).steps
    assert steps[["step_us", "gap_us", "engine_us"]].isna().all(axis=None)
    assert (steps["kernels_us"] > 0).all()


def test_a_second_start_starts_no_process(
    bundle: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(bundle)
    assert len(first.kernels) == 4
    monkeypatch.setattr(sys, "executable", NO_PYTHON)
    same(prepare(bundle), bundle)
    (folder,) = cache.iterdir()
    assert cache.stat().st_mode & 0o077 == folder.stat().st_mode & 0o077 == 0


def test_what_was_begun_is_found(bundle: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(bundle)
    begin(bundle)
    monkeypatch.setattr(sys, "executable", NO_PYTHON)
    same(prepare(bundle), bundle)
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("source", ["/no/such/folder", str(DATA), "s3://bucket/run", "\0", ""])
def test_what_is_no_bundle_is_not_begun(source: str, cache: Path) -> None:
    begin(source)
    assert not cache.exists()


def grown(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "mutate"),
    [("opening", flipped), ("whole", grown), ("start_ns.npy", flipped), ("kinds", Path.unlink)],
)
def test_what_was_damaged_is_made_again(
    bundle: str, cache: Path, name: str, mutate: Callable[[Path], object]
) -> None:
    assert len(prepare(bundle).kernels) == 4
    (folder,) = cache.iterdir()
    mutate(folder / name)
    same(prepare(bundle), bundle)
    (folder,) = cache.iterdir()
    assert (folder / "whole").exists()


def test_what_is_lost_while_it_is_looked_at_is_made_again(bundle: str, cache: Path) -> None:
    assert len(prepare(bundle).kernels) == 4
    (folder,) = cache.iterdir()
    for name in ("whole", "name.npy"):
        (folder / name).unlink()
    same(prepare(bundle), bundle)


@pytest.mark.parametrize("cause", ["file", "open", "none"])
def test_a_cache_that_cannot_be_used_is_no_error(
    bundle: str, cache: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    if cause == "file":
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text("this is no folder")
    elif cause == "open":
        cache.mkdir(parents=True, mode=0o755)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", "")
        monkeypatch.setenv("HOME", "/proc/no-home")
    before = set(own_folder().iterdir())
    same(prepare(bundle), bundle)
    assert len(set(own_folder().iterdir()) - before) == 1
    assert cause != "open" or not list(cache.iterdir())


def test_another_source_rank_or_ceiling_is_prepared_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded({rank: [eager_decode()] for rank in range(2)})
    path = recorded.assemble(tmp_path / "run").path

    def needs_a_process(rank: int | None = None) -> bool:
        try:
            prepare(str(path), rank).rest()
        except CommandError:
            return True
        return False

    prepare(str(path)).rest()
    found = prepare(str(path), 1)
    assert (found.rank, found.ranks, len(found.kernels)) == (1, (0, 1), 4)
    monkeypatch.setattr(sys, "executable", NO_PYTHON)
    assert not needs_a_process()
    assert not needs_a_process(1)
    assert needs_a_process(0)
    measurement = Measurement("read", 1e12, "B/s", 1e12, 1e12, 1, "")
    keep_measured(Measured("GPU", "2026-01-01", (measurement,)))
    assert needs_a_process()


def test_another_program_prepares_anew(bundle: str, tmp_path: Path) -> None:
    names = {prepared_name.prepared_name(bundle, None) for _ in range(2)}
    (tmp_path / "package" / "changed.py").write_text("")
    names.add(prepared_name.prepared_name(bundle, None))
    assert len(names) == 2


def test_many_at_once_get_the_same(bundle: str, cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(prepare, [bundle] * 4))
    for prepared in found:
        same(prepared, bundle)
    assert len(list(cache.iterdir())) == 1


def test_many_sources_at_once_are_all_prepared(tmp_path: Path) -> None:
    recorded = Recorded({rank: [eager_decode()] for rank in range(4)})
    path = str(recorded.assemble(tmp_path / "run").path)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda rank: prepare(path, rank), range(4)))
    assert [(p.rank, len(p.kernels)) for p in found] == [(rank, 4) for rank in range(4)]


def test_a_source_that_changed_is_read_again_and_its_past_goes(bundle: str, cache: Path) -> None:
    prepare(bundle).rest()
    before = fingerprint(bundle)
    shutil.rmtree(bundle)
    Recorded({0: [eager_decode(), eager_decode(2, 2000)]}).assemble(Path(bundle))
    assert fingerprint(bundle) != before
    found = prepare(bundle)
    assert len(found.kernels) == 8
    same(found, bundle)
    assert len(list(cache.iterdir())) == 1


def test_a_url_is_prepared_and_not_kept(cache: Path) -> None:
    url = (DATA / "kineto" / "qwen3-eager.json.gz").as_uri()
    found = prepare(url)
    assert len(found.kernels) == 666
    assert fingerprint(url) == ""
    assert not list(cache.iterdir()) if cache.exists() else True


def one_kernel() -> Recorded:
    """A step with one kernel."""
    return Recorded({0: [Piece([step(0, 0, 900)], (), kineto(kernel("k", 100, 200, 1, 50)))]})


def test_one_kernel_is_enough(tmp_path: Path) -> None:
    path = str(one_kernel().assemble(tmp_path / "run").path)
    found = prepare(path)
    same(found, path)
    assert len(found.kernels) == 1


def test_a_step_without_kernels_is_enough(tmp_path: Path) -> None:
    path = str(Recorded({0: [Piece([step(0, 0, 900)])]}).assemble(tmp_path / "run").path)
    found = prepare(path)
    assert len(found.kernels) == 0
    assert len(found.steps) == 1


def no_steps(tmp_path: Path) -> str:
    recorded = Recorded({0: [Piece([], (), kineto(kernel("k", 100, 200, 1, 50)))]})
    return str(recorded.assemble(tmp_path / "run").path)


def truncated(tmp_path: Path) -> str:
    path = one_kernel().assemble(tmp_path / "run").path / "kernels-rank0.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    return str(path.parent)


def no_ranks(tmp_path: Path) -> str:
    bundle = one_kernel().assemble(tmp_path / "run")
    replace(bundle.meta, tables={}).write(bundle.path)
    return str(bundle.path)


def no_bundle(tmp_path: Path) -> str:
    return str(tmp_path / "missing")


def text(tmp_path: Path) -> str:
    (tmp_path / "<b>text\n<b>").write_text("hello")
    return str(tmp_path / "<b>text\n<b>")


def empty(tmp_path: Path) -> str:
    (tmp_path / "trace.json").write_bytes(b"")
    return str(tmp_path / "trace.json")


@pytest.mark.parametrize(
    "source", [no_steps, truncated, no_ranks, no_bundle, text, empty], ids=lambda f: f.__name__
)
def test_what_cannot_be_reported_is_refused_alike(
    tmp_path: Path, source: Callable[[Path], str]
) -> None:
    path = source(tmp_path)
    with pytest.raises(CommandError) as wanted:
        spark_prof.report(path)
    for _ in range(2):
        with pytest.raises(CommandError) as found:
            prepare(path)
        assert str(found.value) == str(wanted.value)


def test_a_rank_that_is_not_there_is_refused(bundle: str) -> None:
    with pytest.raises(CommandError, match="has no rank 7; it has 0"):
        prepare(bundle, 7)


@pytest.mark.parametrize("program", ["/bin/false", NO_PYTHON])
def test_a_process_that_ends_early_is_told(
    bundle: str, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(CommandError, match="its process ended early"):
        prepare(bundle)


def test_nothing_in_the_current_folder_is_run(
    bundle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pandas", "spark_prof", "msgspec"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    same(prepare(bundle), bundle)


def test_a_path_that_is_no_utf8_is_refused_readably(bundle: str, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"run-\xff")
    shutil.copytree(bundle, path)
    with pytest.raises(CommandError, match=r"run-\? cannot be read: its name is no UTF-8"):
        prepare(str(path))


def test_a_recording_that_goes_on_is_shown_as_far_as_it_is(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "run"
    pieces = Recorded({0: [eager_decode()]}).write(folder)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        write_json(pieces, progress_name("rank0"), {"pid": process.pid, "recorded": 2})
        states = [fingerprint(str(folder))]
        before = {path.name: path.read_bytes() for path in pieces.iterdir()}
        found = prepare(str(folder))
        assert (found.live, found.report.steps.count, len(found.kernels)) == (True, 2, 4)
        assert found.report.run.source == str(folder)
        assert not any(path.is_dir() for path in cache.glob("*/*"))
        assert any("still being recorded" in note for note in found.report.notes)
        assert [path.name for path in folder.iterdir()] == ["pieces"]
        assert {path.name: path.read_bytes() for path in pieces.iterdir()} == before

        eager_decode(2, 2000).write(pieces, "rank0", 1)
        states.append(fingerprint(str(folder)))
        found = prepare(str(folder))
        assert (found.live, found.report.steps.count, len(found.kernels)) == (True, 4, 8)
        assert len(list(cache.iterdir())) == 1
    finally:
        process.kill()
        process.wait()
    states.append(fingerprint(str(folder)))
    found = prepare(str(folder))
    assert (found.live, found.report.steps.count) == (False, 4)
    assert not pieces_folder(folder).exists()
    states.append(fingerprint(str(folder)))
    assert len(set(states)) == 4
    same(prepare(str(folder)), str(folder))


def test_a_recording_without_a_piece_is_refused_by_its_name(tmp_path: Path) -> None:
    pieces = Recorded({0: []}).write(tmp_path / "run")
    write_json(pieces, progress_name("rank0"), {"pid": os.getpid(), "recorded": 0})
    with pytest.raises(CommandError, match=f"^{tmp_path / 'run'} is being recorded and has no"):
        prepare(str(tmp_path / "run"))
