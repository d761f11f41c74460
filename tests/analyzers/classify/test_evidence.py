"""What counters say about kernels, with a ground truth from an RTX 5090."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from spark_prof.analyzers.classify.classifier import classify, spelling
from spark_prof.analyzers.classify.counted_kernels import COUNTERS, Counter, find_counter
from spark_prof.analyzers.classify.evidence import Evidence
from spark_prof.traces.readers.ncu_csv import ncu_csv
from spark_prof.traces.readers.nsys_stats import nsys_stats_csv
from spark_prof.vocabulary import PRECISIONS
from tests.rows import each_row

REAL = Path(__file__).parents[4] / "shared" / "traces"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason=f"{REAL} is absent")
USED_TENSOR_CORES = {"kernel_0003", "kernel_0005", "kernel_0009"}

BF16 = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
FP8 = "sm__ops_path_tensor_src_fp8.sum"
PIPE = "sm__inst_executed_pipe_tensor.sum"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_execute_kernel__5x_cublas"
NORM = "void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*)"


def measured(
    values: dict[str, float], name: str = "k", capability: str | None = "12.1"
) -> Evidence:
    rows = [(name, 0, metric, value, "") for metric, value in values.items()]
    columns = ["name", "launch", "metric", "value", "unit"]
    return Evidence(pd.DataFrame(rows, columns=columns), capability)


@each_row("counter", COUNTERS)
def test_each_counter_knows_its_example(counter: Counter) -> None:
    assert find_counter(counter.example) is counter
    assert find_counter(counter.example.replace("sm__", "smsp__")) is counter
    assert counter.precision in (*PRECISIONS, None)


@each_row(
    "metric",
    [
        "sm__ops_path_tensor_src_bf16_dst_fp32.sum.peak_sustained",
        "sm__inst_executed_pipe_tensor.sum.peak_sustained_active",
        "sm__inst_executed_pipe_fma.sum",
        "tpc__ops_path_tensor_src_bf16.sum",
        "Duration",
        "",
        "sm__",
    ],
)
def test_other_metrics_tell_nothing(metric: str) -> None:
    assert find_counter(metric) is None
    assert measured({metric: 5.0}).label("k").evidence == "unknown"


@pytest.mark.parametrize(
    ("values", "engine", "precision"),
    [
        ({BF16: 64.0}, "tensor-core", "bf16"),
        ({BF16: 0.0, FP8: 64.0}, "tensor-core", "fp8"),
        ({BF16: 64.0, FP8: 64.0}, "tensor-core", None),
        ({PIPE: 64.0}, "tensor-core", None),
        ({PIPE: 64.0, BF16: 32.0}, "tensor-core", "bf16"),
        ({"sm__ops_path_tensor_src_fp4_fp6_fp8_dst_fp32.sum": 1.0}, "tensor-core", None),
        ({PIPE: 0.0}, "cuda-core", None),
        ({"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": 0.0}, None, None),
        ({BF16: 0.0}, None, None),
        ({BF16: float("nan")}, None, None),
        ({BF16: -1.0}, None, None),
    ],
)
def test_what_values_say(
    values: dict[str, float], engine: str | None, precision: str | None
) -> None:
    label = measured(values).label("k")
    if engine is None:
        assert label == classify("k")
    else:
        assert (label.engine, label.precision, label.evidence) == (engine, precision, "counter")


@pytest.mark.parametrize(
    ("capability", "engine"),
    [("8.0", "cuda-core"), ("12.1", "cuda-core"), ("9.0", "unknown"), ("10.0", "unknown"),
     (None, "unknown"), ("gfx942", "unknown")],
)  # fmt: skip
def test_none_counted_says_none_ran_only_where_all_are_counted(
    capability: str | None, engine: str
) -> None:
    assert measured({PIPE: 0.0}, capability=capability).label("k").engine == engine


def test_one_launch_that_used_them_is_enough() -> None:
    rows = [("k", launch, BF16, value, "") for launch, value in enumerate([0.0, 64.0, 0.0])]
    metrics = pd.DataFrame(rows, columns=["name", "launch", "metric", "value", "unit"])
    assert Evidence(metrics, "9.0").label("k").engine == "tensor-core"


def test_a_name_adds_the_precision_that_counters_do_not_tell() -> None:
    assert measured({PIPE: 64.0}, GEMM).label(GEMM).precision == "bf16"
    assert measured({PIPE: 0.0}, GEMM).label(GEMM).precision is None
    assert measured({PIPE: 64.0}, NORM).label(NORM).component == classify(NORM).component


@pytest.mark.parametrize(
    ("values", "name", "by_name", "found"),
    [
        ({PIPE: 0.0}, GEMM, "tensor-core bf16", "cuda-core"),
        ({FP8: 64.0}, GEMM, "tensor-core bf16", "tensor-core fp8"),
        ({BF16: 64.0}, NORM, "cuda-core", "tensor-core bf16"),
        ({BF16: 0.0}, GEMM, "tensor-core bf16", "nothing of that"),
    ],
)
def test_contradictions_are_told(
    values: dict[str, float], name: str, by_name: str, found: str
) -> None:
    (conflict,) = measured(values, name).conflicts([name])
    assert (conflict.by_name, conflict.found) == (by_name, found)
    assert (conflict.evidence, conflict.basis) == ("counter", next(iter(values)))


@each_row(
    ("values", "name"),
    [({BF16: 64.0}, GEMM), ({PIPE: 64.0}, GEMM), ({PIPE: 0.0}, NORM), ({BF16: 0.0}, NORM),
     ({FP8: 0.0}, GEMM), ({BF16: 64.0}, "nobody knows it"), ({}, GEMM)],
)  # fmt: skip
def test_agreement_is_silent(values: dict[str, float], name: str) -> None:
    assert measured(values, name).conflicts([name]) == ()


@each_row(
    ("nsys", "ncu"),
    [
        ("void at::native::f<(int)128, (bool)1, c10::BFloat16>(int, T3)",
         "void f<128, 1, BFloat16>(int, T3)"),
        ("void at::native::f<(int)128, (bool)1, c10::BFloat16>(int, T3)",
         "void at::native::f<128, true, c10::BFloat16>(int)"),
        ("void cutlass::Kernel2<cutlass_80_tensorop>(T1::Params)",
         "void Kernel2<cutlass_80_tensorop>(Params)"),
        ("void a::<unnamed>::g<(unsigned long)3>(T1)", "void (anonymous namespace)::g<3ul>(int)"),
    ],
)  # fmt: skip
def test_profilers_spell_one_kernel_alike(nsys: str, ncu: str) -> None:
    assert spelling(nsys) == spelling(ncu)
    assert measured({BF16: 64.0}, ncu).label(nsys).evidence == "counter"


@pytest.mark.parametrize(
    ("one", "other"), [("f<1>(int)", "f<2>(int)"), ("void g<float>()", "void g<double>()")]
)
def test_other_kernels_are_spelled_otherwise(one: str, other: str) -> None:
    assert spelling(one) != spelling(other)
    assert measured({BF16: 64.0}, one).label(other).evidence != "counter"


def test_two_kernels_of_one_spelling_must_agree() -> None:
    rows = [("a::f(int)", 0, BF16, 64.0, ""), ("b::f(int)", 1, PIPE, 0.0, "")]
    metrics = pd.DataFrame(rows, columns=["name", "launch", "metric", "value", "unit"])
    found = Evidence(metrics, "12.1")
    assert found.label("a::f(int)").engine == "tensor-core"
    assert found.label("b::f(int)").engine == "cuda-core"
    assert found.label("c::f(int)").evidence != "counter"


@needs_real
def test_names_and_counters_agree_on_every_kernel_of_an_rtx_5090() -> None:
    used = set()
    for path in sorted((REAL / "ncu_rtx5090").glob("*.csv")):
        process = ncu_csv(path).processes[0]
        name = str(process.metrics["name"].iloc[0])
        found = Evidence(process.metrics, "12.0")
        assert found.conflicts([name]) == ()
        assert (classify(name).engine == "tensor-core") == (path.name[:11] in USED_TENSOR_CORES)
        if found.label(name).evidence == "counter":
            used.add(path.name[:11])
            assert found.label(name).precision == "bf16"
    assert used == USED_TENSOR_CORES


@needs_real
def test_nsys_names_find_the_counters_that_ncu_measured() -> None:
    names: set[str] = set()
    for path in (REAL / "nsys_csv_rtx5090").glob("*.csv"):
        names |= set(next(nsys_stats_csv(path).windows).trace.gpu["name"].cat.categories)
    parts = [ncu_csv(path).processes[0].metrics for path in (REAL / "ncu_rtx5090").glob("*.csv")]
    found = Evidence(pd.concat([part.astype({"name": str}) for part in parts]), "12.0")
    counted = [name for name in names if found.label(name).evidence == "counter"]
    assert len(counted) == 3
    assert found.conflicts(sorted(names)) == ()
