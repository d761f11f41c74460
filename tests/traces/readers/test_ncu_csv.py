"""What ncu --csv prints: both pages, real measurements, and damage."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_prof.errors import CommandError
from spark_prof.traces.foreign import Foreign
from spark_prof.traces.readers.ncu_csv import ncu_csv
from tests.rows import each_row

DETAILS = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value",'
    '"Rule Name","Rule Type","Rule Description","Estimated Speedup Type","Estimated Speedup"\n'
)
RAW = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC","gpu__time_duration.sum","sm__inst_executed_pipe_tensor.sum",'
    '"launch__function_cache_config"\n'
    '"","","","","","","","","","","","nsecond","inst",""\n'
)

Read = Callable[[str], Foreign]


def detail(launch: int, pid: int, name: str, metric: str, unit: str, value: str) -> str:
    return (
        f'"{launch}","{pid}","python","host","{name}","1","7","(128, 1, 1)","(4, 2, 1)","0","12.1",'
        f'"Command line profiler metrics","{metric}","{unit}","{value}",\n'
    )


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def run(text: str) -> Foreign:
        path = tmp_path / "metrics.csv"
        path.write_text(text)
        return ncu_csv(path)

    return run


def times(foreign: Foreign) -> list[tuple[str, int, str, str]]:
    return [
        (str(name), int(end - start), str(grid), str(block))
        for window in foreign.windows
        for name, start, end, grid, block in zip(
            *(window.trace.gpu[c] for c in ("name", "start_ns", "end_ns", "grid", "block")),
            strict=True,
        )
    ]


def test_the_details_page(read: Read) -> None:
    text = (
        '==PROF== Connected to process 5 (python)\nsomething "the program, says\n'
        + DETAILS
        + detail(0, 5, "gemm", "gpu__time_duration.sum", "us", "1,023.42")
        + detail(0, 5, "gemm", "sm__inst_executed_pipe_tensor.sum", "inst", "1,275,068,416")
        + detail(0, 5, "gemm", "flop_count_hp.sum", "", "n/a")
        + '"0","5","python","host","gemm","1","7","(128, 1, 1)","(4, 2, 1)","0","12.1","Occupancy",'
        '"","","","Rule","OPT","Advice, with a comma","global","38.17"\n'
        + detail(1, 5, "norm", "Duration", "us", "2.5")
        + detail(0, 6, "gemm", "gpu__time_duration.avg", "ms", "1")
    )
    foreign = read(text)
    assert times(foreign) == [
        ("gemm", 1_023_420, "4,2,1", "128,1,1"),
        ("norm", 2500, "4,2,1", "128,1,1"),
        ("gemm", 1_000_000, "4,2,1", "128,1,1"),
    ]
    (first,) = foreign.processes
    assert first.facts["pid"] == 5
    assert first.facts["gpu"] == {"vendor": "NVIDIA", "compute_capability": "12.1"}
    assert first.facts["summed"] is True
    rows = first.metrics.astype({"name": str, "metric": str, "unit": str}).to_numpy().tolist()
    assert rows[1] == ["gemm", 0, "sm__inst_executed_pipe_tensor.sum", 1_275_068_416.0, "inst"]
    assert math.isnan(rows[2][3])
    assert [row[1] for row in rows] == [0, 0, 0, 1, 2]
    assert any("alone" in line for line in foreign.lost)


def test_the_raw_page(read: Read) -> None:
    row = (
        '"{}","5","python","host","{}","1","7","(1, 1, 1)","(2, 1, 1)","0","9.0","{}","{}",'
        '"CachePreferNone"\n'
    )
    foreign = read(RAW + row.format(0, "gemm", "3,200", "64") + row.format(1, "norm", "900", "0"))
    assert times(foreign) == [("gemm", 3200, "2,1,1", "1,1,1"), ("norm", 900, "2,1,1", "1,1,1")]
    rows = foreign.processes[0].metrics.astype({"name": str, "metric": str, "unit": str})
    assert rows.to_numpy().tolist() == [
        ["gemm", 0, "gpu__time_duration.sum", 3200.0, "nsecond"],
        ["gemm", 0, "sm__inst_executed_pipe_tensor.sum", 64.0, "inst"],
        ["norm", 1, "gpu__time_duration.sum", 900.0, "nsecond"],
        ["norm", 1, "sm__inst_executed_pipe_tensor.sum", 0.0, "inst"],
    ]


@each_row("text", ["", "==PROF== No kernels were profiled.\n", "ID,Kernel Name\n", DETAILS, RAW])
def test_a_file_without_measurements_is_one_line(read: Read, text: str) -> None:
    with pytest.raises(CommandError) as caught:
        read(text)
    assert str(caught.value).isprintable()


@each_row(
    ("sizes", "ns"),
    [
        (("27.595.520", "42,5"), 117_344),
        (("1.234,5", "42,5"), 117_344),
        (("27595520", "42.5"), 117),
        (("27,595,520", "42.5"), 117),
    ],
)
def test_points_between_thousands_are_no_decimals(
    sizes: tuple[str, str], ns: int, tmp_path: Path
) -> None:
    """Windows in a language with points there: 117.344 ns are 117 us."""
    path = tmp_path / "x.csv"
    lines = [detail(0, 7, "gemm", "gpu__time_duration.sum", "ns", "117.344")]
    lines += [detail(0, 7, "gemm", f"dram__bytes_{n}.sum", "byte", t) for n, t in enumerate(sizes)]
    path.write_text(DETAILS + "".join(lines))
    gpu = next(ncu_csv(path).windows).trace.gpu
    assert (gpu["end_ns"] - gpu["start_ns"]).tolist() == [ns]
