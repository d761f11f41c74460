"""What lies in the folder of a prepared source comes back equal, and is never taken on trust."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers.clients.summary import with_clients
from spark_prof.analyzers.model import Report, Spread
from spark_prof.analyzers.summary import summarize
from spark_prof.analyzers.views.columns import KernelColumns, Launch
from spark_prof.datasets.opened import opened
from spark_prof.datasets.prepared_content import (
    Opening,
    Rest,
    decode_opening,
    encode_opening,
    read_rest,
    write_rest,
)
from spark_prof.traces.prepared_files import DamagedError, FilesReader, FilesWriter
from tests.rows import each_row

DATA = Path(__file__).parents[1] / "data"
SHARED = Path(__file__).parents[3] / "shared" / "traces"
OWN = (
    "h100-gpt-oss-20b-mxfp4-eager", "h100-gpt-oss-20b-mxfp4-graphs",
    "h100-qwen3-30b-a3b-nvfp4-graphs", "code-h100/dense-awq", "code-h100/gpt-oss-20b-mxfp4",
    "benchmarks/vllm-serve-bundle", "kineto/gpt-oss-graphs", "kineto/qwen3-eager.json.gz",
    "ncu-h100/nvfp4.csv", "proton/tree.hatchet", "proton/trace.chrome_trace", "cupti/13.0.85",
)  # fmt: skip
OTHERS = (
    "kineto/dlrm_v100_8rank", "nsys/h100_2gpu_1s.sqlite",
    "nsys_stats_2023.4/h100_2gpu_1s_cuda_gpu_kern_sum.csv.gz",
)  # fmt: skip


def report_of(path: Path) -> Report:
    with opened(str(path)) as bundle:
        return with_clients(summarize(bundle), bundle, bundle.ranks[0])


def plain(value: object) -> object:
    """Values that can be compared: NaN is NaN."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def comes_back(report: Report) -> None:
    opening = Opening(3, (1, 3), True, False, report)
    found = decode_opening(encode_opening(opening))
    assert plain(msgspec.to_builtins(found)) == plain(msgspec.to_builtins(opening))
    assert type(found.report.steps) is type(report.steps)


@each_row("name", OWN)
def test_the_report_of_every_kind_of_source_comes_back(name: str) -> None:
    comes_back(report_of(DATA / name))


@pytest.mark.parametrize("name", OTHERS)
def test_the_reports_of_other_peoples_traces_come_back(name: str) -> None:
    if not (SHARED / name).exists():
        pytest.skip(f"the trace shared/traces/{name} is not there")
    comes_back(report_of(SHARED / name))


@pytest.fixture(scope="module")
def report() -> Report:
    return report_of(DATA / "h100-gpt-oss-20b-mxfp4-graphs")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, 5e-324, 0.1 + 0.2, 1e300])
def test_every_digit_of_a_number_comes_back(report: Report, value: float) -> None:
    spread = Spread(value, np.float64(value), value)
    changed = replace(report, steps=replace(report.steps, decode_us=spread))
    found = decode_opening(encode_opening(Opening(0, (0,), False, True, changed))).report
    assert found.steps.decode_us is not None
    assert [repr(float(v)) for v in vars(found.steps.decode_us).values()] == [repr(value)] * 3


@pytest.mark.parametrize("text", ["\0", "<b>", "日本", "\U0001f600", "", "a\nb", "x" * 100_000])
def test_every_text_comes_back(report: Report, text: str) -> None:
    comes_back(replace(report, run=replace(report.run, model=text), notes=(text, text)))


def test_half_a_surrogate_pair_is_drawn_as_a_question_mark(report: Report) -> None:
    changed = replace(report, run=replace(report.run, source="run-\udcff"))
    found = decode_opening(encode_opening(Opening(0, (0,), False, True, changed)))
    assert found.report.run.source == "run-?"
    assert found.report.kernels == report.kernels


@pytest.mark.parametrize(
    "change",
    [lambda c: c[:-1], lambda c: b"", lambda c: b"\x80", lambda c: c[:100] + b"\xff" + c[101:],
     lambda c: b"\x91" * 100_000, lambda c: c.replace(b"kernels", b"colonel")],
)  # fmt: skip
def test_what_is_no_report_is_refused(report: Report, change: Callable[[bytes], bytes]) -> None:
    content = encode_opening(Opening(0, (0,), False, True, report))
    with pytest.raises(DamagedError):
        decode_opening(change(content))


def columns(**changes: object) -> KernelColumns:
    usual = {
        "start_ns": np.array([10, 20, 30], np.int64), "end_ns": np.array([15, 25, 35], np.int64),
        "step": np.array([-1, 0, 1], np.int32), "layer": np.array([-1, 0, 1], np.int16),
        "component": np.array([0, 1, 2], np.uint8), "name": np.array([0, 1, 1], np.int32),
        "launch": np.array([0, 0, 0], np.int32), "stream": np.array([0, 1, 1], np.uint16),
        "names": ("gemm", "copy"), "copies": (False, True),
        "launches": (Launch("1,1,1", "32,1,1", 8, 0),), "streams": ("0/7", "0/8"),
    }  # fmt: skip
    return KernelColumns(**(usual | changes))  # type: ignore[arg-type]


def written(folder: Path, kernels: KernelColumns) -> FilesReader:
    steps = pd.DataFrame(
        {
            "step": np.array([0, 1], np.int32),
            "phase": pd.Categorical(["decode", "prefill"]),
            "schedule_ns": pd.array([1_800_000_000_000_000_001, None], "Int64"),
            "step_us": [1.5, math.nan],
        }
    )
    layers = pd.DataFrame({"path": ["model.0", ""], "layer": np.array([0, -1], np.int32)})
    write_rest(FilesWriter(folder), Rest(kernels, steps, layers))
    found = read_rest(FilesReader(folder))
    pd.testing.assert_frame_equal(found.steps, steps)
    pd.testing.assert_frame_equal(found.layers, layers)
    return FilesReader(folder)


def test_kernels_and_tables_come_back(tmp_path: Path) -> None:
    kernels = columns()
    found = read_rest(written(tmp_path, kernels)).kernels
    for name, value in vars(kernels).items():
        back = getattr(found, name)
        assert np.array_equal(back, value) if isinstance(value, np.ndarray) else back == value
        if isinstance(value, np.ndarray):
            assert back.dtype == value.dtype


@each_row(
    ("name", "values"),
    [
        ("name", [0, 1, 2]), ("name", [-1, 0, 1]), ("launch", [0, 0, 1]), ("launch", [0, -1, 0]),
        ("stream", [0, 1, 2]), ("component", [0, 1, 200]), ("layer", [-2, 0, 0]),
        ("step", [-2, 0, 0]), ("copies", (True,)), ("names", ()), ("streams", ("0/7",)),
        ("end_ns", [1, 2]), ("start_ns", [1, 2, 3, 4]),
    ],
)  # fmt: skip
def test_no_number_leads_out_of_its_table(
    tmp_path: Path, name: str, values: list[int] | tuple[object, ...]
) -> None:
    dtype = getattr(columns(), name).dtype if isinstance(values, list) else None
    changed = columns(**{name: values if dtype is None else np.array(values, dtype)})
    with pytest.raises(DamagedError):
        written(tmp_path, changed)


def test_another_kind_of_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match="another array"):
        written(tmp_path, columns(name=np.array([0.0, 1.0, 1.0])))


@each_row("name", ["kinds", "steps", "layers"])
@each_row("content", [b"", b"\xc1", b"PAR1PAR1", b"\x94" + b"\xc0" * 4])
def test_tables_of_somebody_else_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    reader = written(tmp_path, columns())
    FilesWriter(tmp_path).small(name, content)  # with a digest that is right
    with pytest.raises(DamagedError):
        read_rest(reader)
