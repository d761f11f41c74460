"""Raw CUPTI buffers as a foreign trace: recorded ones, with and without what lay beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from spark_prof.traces.foreign import Foreign, Window
from spark_prof.traces.readers.cupti_buffers import cupti_buffers
from spark_prof.traces.readers.cupti_trace import read_cupti
from tests.rows import each_row
from tests.traces.cupti_buffers import block, records
from tests.traces.test_cupti_markers import THREAD, both

DATA = Path(__file__).parents[2] / "data" / "cupti"
VERSIONS = ["13.0.85", "13.4.92"]


def read(path: Path) -> tuple[Foreign, list[Window]]:
    foreign = cupti_buffers(path, lambda name: name.startswith("model."))
    return foreign, list(foreign.windows)


@each_row("version", VERSIONS)
@each_row("name", ["", "rank0.00000.activity.bin"])
def test_a_folder_and_a_file_hold_what_was_recorded(version: str, name: str) -> None:
    folder = DATA / version
    expected = read_cupti(folder / "rank0.00000.activity.bin", folder / "rank0.00000.names.json")
    foreign, (window,) = read(folder / name)
    pd.testing.assert_frame_equal(window.trace.gpu, expected.gpu)
    assert [process.rank for process in foreign.processes] == [0]
    calls = expected.launches
    launched = dict(zip(calls["correlation"], calls["start_ns"], strict=True))
    assert len(expected.gpu) == 114
    assert window.launch_ns.tolist() == [launched[c] for c in expected.gpu["correlation"]]
    assert (window.launch_ns <= expected.gpu["start_ns"]).all()
    assert any("steps" in line for line in foreign.lost)


def test_nvtx_ranges_that_name_modules_become_scopes(tmp_path: Path) -> None:
    names = {0x10: "model.layers.0", 0x20: "model.layers.0.mlp", 0x30: "a library's own"}
    ranges = [
        *both(100, 500, 1, 0x10), *both(200, 300, 2, 0x20), *both(210, 290, 3, 0x30),
        *both(100, 900, 4, 0x20, thread=THREAD + 1),
    ]  # fmt: skip
    launches, kernels = [], []
    for number, (time, thread) in enumerate([(250, THREAD), (400, THREAD), (600, THREAD)]):
        call = {"cbid": 211, "start": time, "end": time + 5, "threadId": thread}
        launches.append(records(5, correlationId=number, **call))
        kernels.append(records(10, start=time + 9, end=time + 20, correlationId=number, name=0x99))
    (tmp_path / "rank0.00000.activity.bin").write_bytes(block(*ranges, *launches, *kernels))
    (tmp_path / "rank0.00000.names.json").write_text(
        json.dumps({"clock_offset_ns": 0, "names": {str(0x99): "k"}, "markers": names})
    )
    foreign, (window,) = read(tmp_path)
    scopes = foreign.processes[0].scopes
    assert [scopes.path(scope) for scope in window.scope.tolist()] == [
        ["model.layers.0", "model.layers.0.mlp"], ["model.layers.0"], [],
    ]  # fmt: skip
    assert sorted(window.calls[["start_ns", "end_ns"]].to_numpy().tolist()) == [
        [100, 500], [100, 900], [200, 300],
    ]  # fmt: skip
    assert len(window.trace.markers) == 4
