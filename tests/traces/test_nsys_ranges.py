"""NVTX ranges of nsys exports."""

from __future__ import annotations

from pathlib import Path

from spark_prof.traces.readers.nsys_ranges import nsys_ranges
from tests.nsys_files import BEGUN, PID, THREAD, Export, global_tid


def test_ranges_of_one_process(tmp_path: Path) -> None:
    export = Export()
    mine, other = global_tid(PID, THREAD), global_tid(PID + 1, THREAD)
    registered = export.text("by number")
    for row in (
        {"start": 0, "eventType": 75, "text": "NCCL", "globalTid": mine, "domainId": 2},
        {"start": 10, "end": 50, "eventType": 59, "text": "layer", "globalTid": mine,
         "domainId": 0},
        {"start": 20, "end": 30, "eventType": 60, "textId": registered, "globalTid": mine,
         "domainId": 2},
        {"start": 25, "eventType": 59, "text": "never ended", "globalTid": mine, "domainId": 0},
        {"start": 26, "end": 27, "eventType": 59, "text": "theirs", "globalTid": other},
        {"start": 28, "eventType": 34, "text": "a mark", "globalTid": mine},
        {"start": 900, "end": 901, "eventType": 59, "text": "later", "globalTid": mine},
    ):  # fmt: skip
        export.add("NVTX_EVENTS", **row)
    path = export.write(tmp_path / "export.sqlite")
    ranges = nsys_ranges(path, PID, BEGUN, BEGUN + 100)
    assert ranges.to_dict("records") == [
        {"name": "layer", "domain": "", "nested": True, "start_ns": BEGUN + 10,
         "end_ns": BEGUN + 50, "thread": THREAD},
        {"name": "by number", "domain": "NCCL", "nested": False, "start_ns": BEGUN + 20,
         "end_ns": BEGUN + 30, "thread": THREAD},
    ]  # fmt: skip


def test_an_export_without_ranges(tmp_path: Path) -> None:
    path = Export().launch(1, 1).write(tmp_path / "export.sqlite")
    assert nsys_ranges(path, PID, BEGUN, BEGUN + 100).empty
