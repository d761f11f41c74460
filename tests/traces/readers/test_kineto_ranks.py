"""Traces of several ranks in one file."""

import gzip
import json
from pathlib import Path

import pytest

from spark_prof.errors import CommandError
from spark_prof.importers.modules import names_module
from spark_prof.importers.sources import import_files
from spark_prof.traces.readers.kineto import kineto_trace
from tests.nsys_files import PID, Export
from tests.rows import each_row

TRACE = Path(__file__).parents[2] / "data" / "kineto" / "qwen3-eager.json.gz"


def merged(path: Path, labels: list[str]) -> Path:
    """The same trace once for each label, as SGLang's profile merger writes it."""
    whole = json.loads(gzip.decompress(TRACE.read_bytes()))
    events = [
        event | {"pid": f"{label if 'rank' in label.lower() else f'[{label}]'} {event['pid']}"}
        for label in labels
        for event in whole["traceEvents"]
    ]
    path.write_bytes(gzip.compress(json.dumps(whole | {"traceEvents": events}).encode(), 1))
    return path


@each_row(
    ("labels", "ranks"),
    [
        (["TP00", "TP01"], [0, 1]),
        (["TP03", "TP01"], [1, 3]),
        (["TP00-DP00", "TP00-DP01"], [0, 1]),
        (["rank 2", "rank 0"], [0, 2]),
        (["Rank1:", "Rank3:"], [1, 3]),
        (["TP01-PP00", "TP00-PP00", "TP00-PP01", "TP01-PP01"], [0, 1, 2, 3]),
    ],
)
def test_each_rank_has_its_own_kernels_and_modules(labels, ranks, tmp_path):
    alone = next(kineto_trace(TRACE, names_module).windows)
    found = kineto_trace(merged(tmp_path / "merged.json.gz", labels), names_module)
    assert [process.rank for process in found.processes] == ranks
    windows = list(found.windows)
    assert [window.process for window in windows] == list(range(len(ranks)))
    for window in windows:
        gpu = window.trace.gpu.astype({"name": "str"})
        assert gpu.equals(alone.trace.gpu.astype({"name": "str"}))
        assert (window.scope == alone.scope).all()
        assert (window.launch_ns == alone.launch_ns).all()
        assert len(window.calls) == len(alone.calls)
    assert any("clocks may disagree" in line for line in found.lost)


def test_a_merged_trace_becomes_the_ranks_of_a_bundle(tmp_path):
    path = merged(tmp_path / "merged.json.gz", ["TP00", "TP01"])
    bundle = import_files([path], tmp_path / "bundle")
    assert bundle.ranks == (0, 1)
    assert len(bundle.frame("steps", 1)) == 6


def test_replicas_that_all_call_themselves_rank_0_are_several_ranks(tmp_path):
    """vLLM's data-parallel engines know nothing of each other; two runs are still refused."""
    paths = [tmp_path / f"dp{n}_pp0_tp0_rank0.json.gz" for n in range(3)]
    for path in paths:
        path.write_bytes(TRACE.read_bytes())
    assert import_files([tmp_path], tmp_path / "bundle").ranks == (0, 1, 2)
    again = tmp_path / "again"
    again.mkdir()
    for name in ("monday_rank0.json.gz", "tuesday_rank0.json.gz"):
        (again / name).write_bytes(TRACE.read_bytes())
    with pytest.raises(CommandError, match="two traces of rank 0"):
        import_files([again], tmp_path / "none")


def test_the_processes_of_one_export_of_nsys_are_several_ranks(tmp_path):
    export = Export()
    for n in range(4):
        export.launch(100 + n, 5, pid=PID + n)
        export.kernel(f"of {n}", 200, 300, 5, pid=PID + n, deviceId=n)
    bundle = import_files([export.write(tmp_path / "t.sqlite")], tmp_path / "bundle")
    assert bundle.ranks == (0, 1, 2, 3)
    names = [bundle.frame("kernels", rank)["name"].tolist() for rank in bundle.ranks]
    assert names == [[f"of {n}"] for n in range(4)]
