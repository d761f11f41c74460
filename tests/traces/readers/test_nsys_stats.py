"""CSV reports of nsys stats: real ones, dialects of them, and damage."""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from spark_prof.traces.foreign import Foreign, Window
from spark_prof.traces.readers import printed_tables
from spark_prof.traces.readers.nsys_stats import REPORTS, nsys_stats_csv
from tests.rows import each_row
from tests.support import refusal

REAL = Path(__file__).parents[4] / "shared" / "traces"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason=f"{REAL} is absent")

SUMS = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
TRACE = REPORTS[1].example + "\n"
LIST = REPORTS[2].example + "\n"

Read = Callable[[str | bytes], Foreign]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def run(text: str | bytes) -> Foreign:
        path = tmp_path / "report.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return nsys_stats_csv(path)

    return run


def kernels(windows: list[Window]) -> pd.DataFrame:
    frame = pd.concat([w.trace.gpu.astype({"name": str}) for w in windows], ignore_index=True)
    return frame.assign(ns=frame["end_ns"] - frame["start_ns"])


def printed(path: Path) -> list[dict[str, str]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", newline="") as file:
        return list(csv.DictReader(file))


@needs_real
@pytest.mark.parametrize(
    "name",
    [
        "nsys_csv_rtx5090/rtx5090_deepseek_ocr_decode_cuda_gpu_kern_sum.csv",
        "nsys_csv_rtx5090/rtx5090_deepseek_ocr_prefill_cuda_gpu_kern_sum.csv",
        "nsys_stats_2023.4/h100_2gpu_1s_cuda_gpu_kern_sum.csv.gz",
    ],
)
def test_sums_are_kept_to_the_nanosecond(name: str) -> None:
    foreign = nsys_stats_csv(REAL / name)
    found = kernels(list(foreign.windows)).groupby("name")["ns"].agg(["sum", "size"])
    expected: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in printed(REAL / name):
        expected[row["Name"]][0] += int(row["Total Time (ns)"])
        expected[row["Name"]][1] += int(row["Instances"])
    assert found.apply(list, axis=1).to_dict() == dict(expected)
    assert foreign.processes[0].facts["summed"] is True
    assert any("order" in line and "steps" in line for line in foreign.lost)


@needs_real
def test_the_list_agrees_with_the_export_it_was_made_from() -> None:
    path = REAL / "nsys_stats_2023.4" / "h100_2gpu_1s_cuda_kern_exec_trace.csv.gz"
    foreign = nsys_stats_csv(path)
    windows = list(foreign.windows)
    assert [process.facts["pid"] for process in foreign.processes] == [111, 112]
    rows = printed(path)
    found = sorted(
        (pid, int(start), int(ns), int(launch), int(thread), name)
        for window in windows
        for pid in [foreign.processes[window.process].facts["pid"]]
        for start, ns, launch, thread, name in zip(
            window.trace.gpu["start_ns"], kernels([window])["ns"], window.launch_ns, window.thread,
            window.trace.gpu["name"], strict=True,
        )
    )  # fmt: skip
    assert found == sorted(
        (int(r["PID"]), int(r["Kernel Start (ns)"]), int(r["Kernel Dur (ns)"]),
         int(r["API Start (ns)"]), int(r["TID"]), r["Kernel Name"])
        for r in rows
    )  # fmt: skip
    for window in windows:
        launches = window.trace.launches.set_index("correlation")
        begin = launches.loc[window.trace.gpu["correlation"], "start_ns"].to_numpy()
        assert (begin == window.launch_ns).all()
        assert (np.diff(window.trace.gpu["start_ns"]) >= 0).all()
    assert windows[0].trace.gpu["grid"].astype(str)[0] == "800,1,1"


def test_kernels_of_one_graph_launch_share_it(read: Read) -> None:
    row = "100,50,,,{start},7,,111,112,0,cudaGraphLaunch_v10000, 1 1 1, 32 1 1,{name}\n"
    text = LIST + row.format(start=200, name="a") + row.format(start=300, name="b")
    (window,) = read(text + "160,9,,,400,7,,111,112,0,cudaLaunchKernel,1 1 1,1 1 1,c\n").windows
    assert window.trace.gpu["correlation"].tolist() == [0, 0, 1]
    assert window.trace.launches["correlation"].tolist() == [0, 1]
    assert window.launch_ns.tolist() == [100, 100, 160]


def test_a_trace_with_copies(read: Read) -> None:
    text = (
        "Generating SQLite file r.sqlite from r.nsys-rep\nProcessing [r.sqlite] with [...]... \n\n"
        + " ** CUDA GPU Trace (cuda_gpu_trace):\n\n"
        + TRACE
        + '5000,7,12,64,2,1,256,1,1,40,0.001,0.098,,,,,GB10 (1),1,,13,"k<a, b>(int)"\n'
        + "1000,50,11,,,,,,,,,,8.389,167.0,Pageable,Device,GB10 (0),1,,7,[CUDA memcpy HtoD]\n"
        + "\n ** Another table:\n\n1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7,8,9,0,1\n"
    )
    foreign = read(text)
    (window,) = foreign.windows
    rows = window.trace.gpu[
        ["name", "kind", "start_ns", "end_ns", "device", "stream", "grid", "block", "registers",
         "shared_bytes", "bytes"]
    ]  # fmt: skip
    assert rows.to_numpy().tolist() == [
        ["[CUDA memcpy HtoD]", "memcpy", 1000, 1050, 0, 7, "", "", 0, 0, 8_389_000],
        ["k<a, b>(int)", "kernel", 5000, 5007, 1, 13, "64,2,1", "256,1,1", 40, 99_000, 0],
    ]
    assert foreign.processes[0].facts["gpu"]["name"] == "GB10"
    assert "summed" not in foreign.processes[0].facts
    assert any("rounded" in line for line in foreign.lost)


@each_row(
    ("text", "integer", "ns", "seconds_ns", "count"),
    [
        ("7", 7, 7, 7 * 10**9, 7),
        (" 1,234.0 ", 1234, 1234, 1234 * 10**9, 1234),
        ("0", 0, 0, 0, 0),
        ("2.5", None, 2, 2_500_000_000, 0),
        ("-3", -3, -3, -3 * 10**9, 0),
        (f"{2**31 - 1}", 2**31 - 1, 2**31 - 1, (2**31 - 1) * 10**9, 2**31 - 1),
        (f"{2**31}", 2**31, 2**31, 2**31 * 10**9, 0),
        (f"{2**62 - 1}", 2**62 - 1, 2**62 - 1, None, 0),
        (f"{2**62}", 2**62, None, None, 0),
        (f"-{2**62 + 1}", None, None, None, 0),
        ("1e63", None, None, None, 0),
        ("1e999999", None, None, None, 0),
        ("", None, None, None, 0),
        ("nan", None, None, None, 0),
        ("inf", None, None, None, 0),
        ("a word", None, None, None, 0),
    ],
)
def test_what_a_cell_says(
    text: str, integer: int | None, ns: int | None, seconds_ns: int | None, count: int
) -> None:
    times = [printed_tables.time_ns(text, unit) for unit in ("ns", " Seconds ", "pages")]
    assert (printed_tables.whole(text), *times) == (integer, ns, seconds_ns, None)
    assert printed_tables.small(text) == count


@each_row(
    ("units", "factor"),
    [(("ns", "nsecond"), 1), (("us", "\u00b5s", "usec"), 10**3), (("ms", "MSecond"), 10**6),
     (("s", "second"), 10**9)],
)  # fmt: skip
def test_units_of_time(units: tuple[str, ...], factor: int) -> None:
    assert [printed_tables.time_ns("3.25", unit) for unit in units] == [
        round(3.25 * factor)] * len(units)  # fmt: skip


def test_an_older_head_and_a_byte_order_mark(read: Read) -> None:
    text = "\ufeffTime(%),Total Time (ns),Instances,Average,Minimum,Maximum,StdDev,Name\r\n"
    (window,) = read(text + "100.0,10,3,3,3,3,0,k\r\n").windows
    assert kernels([window])["ns"].tolist() == [4, 3, 3]


def test_kernels_lie_end_to_end_over_many_windows(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_prof.traces.foreign._ROWS", 7)
    windows = list(
        read(SUMS + "".join(f"1,{100 + i},{i + 1},,,,,,k{i}\n" for i in range(9))).windows
    )
    found = kernels(windows)
    assert [len(w.trace.gpu) for w in windows] == [7] * 6 + [3]
    assert found["start_ns"].tolist() == [0, *found["end_ns"].tolist()[:-1]]
    assert found.groupby("name")["ns"].sum().tolist() == [100 + i for i in range(9)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cuda_gpu_kern_sum, cuda_gpu_trace, cuda_kern_exec_trace"),
        ("Total Time (ns),Num Calls,Name\n2,3,cudaMalloc\n", "no table that can be read"),
        ("Total Time (ns),Instances,Range\n1,2,:forward\n", "no table that can be read"),
        (SUMS, "lists no kernel"),
        (SUMS + "1,-5,1,,,,,,k\n", "-5 ns"),
        (SUMS + "1,5,0,,,,,,k\n", "0 times"),
        (SUMS + "1,5,999999999999,,,,,,k\n", "more than any recording"),
        (SUMS + "1,99999999999999999999,1,,,,,,k\n", "no time or no count"),
        (SUMS + "1,nan,1,,,,,,k\n", "no time or no count"),
        (SUMS + "1,1e999999999,1,,,,,,k\n", "no time or no count"),
        (SUMS + "1,5,1.5,,,,,,k\n", "no time or no count"),
        (SUMS + "1,5,1,,,,,,\"k" + "x" * 200_000, "cannot be read as a table"),
        (SUMS + "1,5,1,,,,,," + "x" * 3_000_000, "longer than any"),
        (gzip.compress(SUMS.encode() * 9, mtime=0)[:-30], "ends before its gzip stream"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_one_line(read: Read, text: str | bytes, message: str) -> None:
    with refusal(message):
        list(read(text).windows)
