"""Traces of several ranks in one file."""

import gzip
import json
from pathlib import Path

import pytest

from spark_prof.importers.module_names import names_module
from spark_prof.importers.sources import import_files
from spark_prof.traces.readers.kineto import kineto_trace

TRACE = Path(__file__).parents[2] / "data" / "kineto" / "qwen3-eager.json.gz"


def merged(path: Path, labels: list[str]) -> Path:
    """The same trace once for each label, as SGLang's profile merger writes it."""
    whole = json.loads(gzip.decompress(TRACE.read_bytes()))
    events = [
        event | {"pid": f"[{label}] {event['pid']}"}
        for label in labels
        for event in whole["traceEvents"]
    ]
    path.write_bytes(gzip.compress(json.dumps(whole | {"traceEvents": events}).encode(), 1))
    return path


@pytest.mark.parametrize(
    ("labels", "ranks"),
    [
        (["TP00", "TP01"], [0, 1]),
        (["TP03", "TP01"], [1, 3]),
        (["TP00-DP00", "TP00-DP01"], [0, 1]),
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
