"""Kernel sums of `vllm bench forward`, as vLLM 0.33 writes them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from spark_prof.analyzers.summary import summarize
from spark_prof.dashboards.render import Layout, render_report
from spark_prof.errors import CommandError
from spark_prof.importers.sources import import_files, open_source
from spark_prof.traces.formats import format_of
from spark_prof.traces.readers.vllm_forward import vllm_forward
from tests.rows import each_row

KERNELS = [
    {"name": "marlin::Marlin", "us": 400.13, "pct": 80.0, "calls": 37,
     "example": "void marlin::Marlin<256, 1, 8, 8, false>(int4 const*)"},
    {"name": "flash::flash_fwd_splitkv_kernel", "us": 96.5, "pct": 19.0, "calls": 12,
     "example": "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128> >(int)"},
    {"name": "Memcpy DtoD (Device -> Device)", "us": 2.02, "pct": 0.9, "calls": 2,
     "example": "Memcpy DtoD (Device -> Device)"},
    {"name": "seldom", "us": 0.33, "pct": 0.1, "calls": 0, "example": "seldom"},
]  # fmt: skip
SUMMARY: dict[str, Any] = {
    "trace": "p/decode.rank1.trace.json.gz", "replays": 3, "span_us": 512.25, "busy_us": 498.98,
    "pre_forward_us": 3.5, "activities": 52, "kernels": KERNELS,
}  # fmt: skip


def written(folder: Path, rank: int = 0, **changed: Any) -> Path:
    path = folder / f"decode-32-8192.rank{rank}.kernels.json"
    path.write_text(json.dumps(SUMMARY | changed, indent=1))
    return path


@each_row("packed", [False, True])
def test_every_kernel_keeps_its_calls_and_time(tmp_path: Path, packed: bool) -> None:
    path = written(tmp_path, 1)
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert format_of(path) == "vllm-forward"
    found = vllm_forward(path)
    assert found.processes[0].rank == 1
    gpu = next(found.windows).trace.gpu
    length = (
        (gpu["end_ns"] - gpu["start_ns"]).groupby(gpu["name"].astype(str)).agg(["sum", "count"])
    )
    expected = {row["example"]: (round(row["us"] * 1e3), row["calls"]) for row in KERNELS[:3]}
    assert (
        dict(zip(length.index, zip(length["sum"], length["count"], strict=True), strict=True))
        == expected
    )
    assert set(gpu["kind"].astype(str)) == {"kernel", "memcpy"}
    assert any("512.25 us from its first kernel to its last" in line for line in found.lost)
    assert any("1 kernels did not run in every" in line for line in found.lost)


def test_the_ranks_of_a_case_are_one_recording(tmp_path: Path) -> None:
    for rank in (0, 1):
        written(tmp_path, rank)
    assert import_files([tmp_path], tmp_path / "bundle").ranks == (0, 1)


def test_a_report_says_what_it_is_of(tmp_path: Path) -> None:
    with open_source(written(tmp_path)) as bundle:
        report = summarize(bundle)
    text = " ".join(render_report(report, Layout("text", 100)).split())
    assert "sums of kernels, without steps or times" in text
    assert report.kernels[0].us == pytest.approx(400.13)
    assert [row.component for row in report.kernels] == ["other", "attention"]


@each_row(
    "changed",
    [{"kernels": [{"us": 1}]}, {"kernels": [KERNELS[0] | {"us": -1}]}, {"span_us": "x"},
     {"kernels": [KERNELS[0] | {"calls": -2}]}, {"kernels": []}],
)  # fmt: skip
def test_damage_is_one_line(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(CommandError, match=r"kernels\.json"):
        vllm_forward(written(tmp_path, **changed))
