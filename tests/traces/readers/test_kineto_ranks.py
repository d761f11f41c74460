"""Traces of several ranks in one file, of other accelerators, and of no device at all."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from spark_prof.errors import CommandError
from spark_prof.importers.modules import names_module
from spark_prof.importers.sources import import_files
from spark_prof.traces.readers.kineto import kineto_trace
from spark_prof.traces.readers.kineto_frames import ACCELERATORS
from tests.rows import each_row
from tests.support import refusal

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


@pytest.mark.slow
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


OPERATOR = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 5, "dur": 9}
LAUNCH = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
          "ts": 6, "dur": 1, "args": {"correlation": 3}}  # fmt: skip


def trace(folder: Path, *events: dict[str, Any], name: str = "t.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({"traceEvents": [OPERATOR, *events]}))
    return path


@each_row("category", [example for _, example, _ in ACCELERATORS])
def test_a_trace_of_another_accelerator_is_refused_by_its_name(
    category: str, tmp_path: Path
) -> None:
    name = next(name for key, _, name in ACCELERATORS if category.startswith(key))
    path = trace(tmp_path, OPERATOR | {"cat": category, "name": "gemm"})
    with refusal() as refused:
        import_files([path], tmp_path / "bundle")
    assert str(refused.value).startswith(f"t.json is of {name}; only")


def test_launches_without_any_device_activity_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="has no device activity, though it launched kernels"):
        import_files([trace(tmp_path, LAUNCH)], tmp_path / "bundle")
