"""Every recording of a folder becomes a bundle, the same wherever it is imported."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_prof.datasets.engines import Executor
from spark_prof.datasets.every_recording import import_each
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import META_FILE
from spark_prof.traces.tables import TABLES
from tests.datasets.pieces_of_work import report_dataset

TRACES = Path(__file__).parents[1] / "data" / "kineto"
NAMES = ["gpt-oss-eager", "gpt-oss-graphs", "qwen3-eager", "qwen3-graphs"]


def tables(folder: Path) -> dict[str, bytes]:
    """Every table file below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != META_FILE]
    assert {path.name.split("-rank")[0] for path in files} <= set(TABLES)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.slow
def test_ray_imports_what_is_imported_here(tmp_path: Path, cluster: set[str]) -> None:
    local = import_each(str(TRACES), tmp_path / "local", None, Executor.LOCAL)
    spread = import_each(str(TRACES), tmp_path / "spread", None, Executor.RAY)
    assert local == spread
    assert [name for name, _ in local] == NAMES
    assert all(outcome.value is not None for _, outcome in local)
    assert tables(tmp_path / "local") == tables(tmp_path / "spread")
    shutil.move(tmp_path / "local", tmp_path / "bundles")
    first = report_dataset(tmp_path / "bundles", "json", "local")
    shutil.rmtree(tmp_path / "bundles")
    shutil.move(tmp_path / "spread", tmp_path / "bundles")
    assert report_dataset(tmp_path / "bundles", "json", "ray") == first


@pytest.mark.slow
def test_one_that_is_broken_ends_none_of_the_others(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    shutil.copy(TRACES / "qwen3-eager.json.gz", traces / "whole.json.gz")
    (traces / "cut.json.gz").write_bytes((TRACES / "qwen3-eager.json.gz").read_bytes()[:9000])
    done = dict(import_each(str(traces), tmp_path / "out", None, Executor.LOCAL))
    assert done["whole"].value is not None
    assert done["cut"].value is None
    assert done["cut"].reason
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["whole"]


def test_names_that_differ_by_their_ending_are_refused(tmp_path: Path) -> None:
    for name in ("run.json", "run.json.gz"):
        (tmp_path / name).write_text('{"traceEvents": []}')
    with pytest.raises(CommandError, match="one name"):
        import_each(str(tmp_path), tmp_path / "out", None, Executor.LOCAL)
