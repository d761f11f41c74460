"""What counters say about kernels, with a ground truth from an RTX 5090.

Engine and precision of real machine code, assembled for eleven architectures.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from spark_prof.analyzers.classify.classifier import classify, spelling
from spark_prof.analyzers.classify.code_rows import CodeRow, code_row, code_rows, opcode_counts
from spark_prof.analyzers.classify.evidence import COUNTERS, Counter, KernelEvidence, find_counter
from spark_prof.traces.machine_code import read_machine_code
from spark_prof.traces.readers.ncu_csv import ncu_csv
from spark_prof.traces.readers.nsys_stats import nsys_stats_csv
from spark_prof.vocabulary import PRECISIONS
from tests.rows import each_row
from tests.traces.cubins import ARCHITECTURES, probes

REAL = Path(__file__).parents[4] / "shared" / "traces"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason=f"{REAL} is absent")
USED_TENSOR_CORES = {"kernel_0003", "kernel_0005", "kernel_0009"}

BF16 = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
FP8 = "sm__ops_path_tensor_src_fp8.sum"
PIPE = "sm__inst_executed_pipe_tensor.sum"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_execute_kernel__5x_cublas"
NORM = "void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*)"


Measured = tuple[str, str, float]
"""A kernel's name, a metric and its value."""


def measured_all(*rows: Measured, capability: str | None = "12.1") -> KernelEvidence:
    frame = [(name, launch, metric, value, "") for launch, (name, metric, value) in enumerate(rows)]
    columns = ["name", "launch", "metric", "value", "unit"]
    return KernelEvidence(pd.DataFrame(frame, columns=columns), capability)


def measured(
    values: dict[str, float], name: str = "k", capability: str | None = "12.1"
) -> KernelEvidence:
    rows = ((name, metric, value) for metric, value in values.items())
    return measured_all(*rows, capability=capability)


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


@each_row(
    ("values", "capability", "engine", "precision"),
    [
        ({BF16: 64.0}, "12.1", "tensor-core", "bf16"),
        ({BF16: 0.0, FP8: 64.0}, "12.1", "tensor-core", "fp8"),
        ({BF16: 64.0, FP8: 64.0}, "12.1", "tensor-core", None),
        ({PIPE: 64.0}, "12.1", "tensor-core", None),
        ({PIPE: 64.0, BF16: 32.0}, "12.1", "tensor-core", "bf16"),
        ({"sm__ops_path_tensor_src_fp4_fp6_fp8_dst_fp32.sum": 1.0}, "12.1", "tensor-core", None),
        ({"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": 0.0}, "12.1", None,
         None),
        *(({BF16: value}, "12.1", None, None) for value in (0.0, float("nan"), -1.0)),
        # None counted says that none ran only where all are counted.
        *(({PIPE: 0.0}, capability, "cuda-core", None) for capability in ("8.0", "12.1")),
        *(({PIPE: 0.0}, capability, None, None)
          for capability in ("9.0", "10.0", None, "gfx942")),
    ],
)  # fmt: skip
def test_what_values_say(
    values: dict[str, float], capability: str | None, engine: str | None, precision: str | None
) -> None:
    label = measured(values, capability=capability).label("k")
    if engine is None:
        assert label == classify("k")
    else:
        assert (label.engine, label.precision, label.evidence) == (engine, precision, "counter")


def test_one_launch_that_used_them_is_enough() -> None:
    found = measured_all(*(("k", BF16, value) for value in (0.0, 64.0, 0.0)), capability="9.0")
    assert found.label("k").engine == "tensor-core"


def test_a_name_adds_the_precision_that_counters_do_not_tell() -> None:
    assert measured({PIPE: 64.0}, GEMM).label(GEMM).precision == "bf16"
    assert measured({PIPE: 0.0}, GEMM).label(GEMM).precision is None
    assert measured({PIPE: 64.0}, NORM).label(NORM).component == classify(NORM).component


@each_row(
    ("values", "name", "found"),
    [
        ({PIPE: 0.0}, GEMM, ("tensor-core bf16", "cuda-core")),
        ({FP8: 64.0}, GEMM, ("tensor-core bf16", "tensor-core fp8")),
        ({BF16: 64.0}, NORM, ("cuda-core", "tensor-core bf16")),
        ({BF16: 0.0}, GEMM, ("tensor-core bf16", "nothing of that")),
        # Agreement is silent.
        *((values, GEMM, None) for values in ({BF16: 64.0}, {PIPE: 64.0}, {FP8: 0.0}, {})),
        *((values, NORM, None) for values in ({PIPE: 0.0}, {BF16: 0.0})),
        ({BF16: 64.0}, "nobody knows it", None),
    ],
)  # fmt: skip
def test_contradictions_are_told(
    values: dict[str, float], name: str, found: tuple[str, str] | None
) -> None:
    told = [
        (conflict.by_name, conflict.found, conflict.evidence, conflict.basis)
        for conflict in measured(values, name).conflicts([name])
    ]
    assert told == ([(*found, "counter", next(iter(values)))] if found else [])


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


@each_row(("one", "other"), [("f<1>(int)", "f<2>(int)"), ("void g<float>()", "void g<double>()")])
def test_other_kernels_are_spelled_otherwise(one: str, other: str) -> None:
    assert spelling(one) != spelling(other)
    assert measured({BF16: 64.0}, one).label(other).evidence != "counter"


def test_two_kernels_of_one_spelling_must_agree() -> None:
    found = measured_all(("a::f(int)", BF16, 64.0), ("b::f(int)", PIPE, 0.0))
    assert found.label("a::f(int)").engine == "tensor-core"
    assert found.label("b::f(int)").engine == "cuda-core"
    assert found.label("c::f(int)").evidence != "counter"


@needs_real
def test_names_and_counters_agree_on_every_kernel_of_an_rtx_5090() -> None:
    used = set()
    for path in sorted((REAL / "ncu_rtx5090").glob("*.csv")):
        process = ncu_csv(path).processes[0]
        name = str(process.metrics["name"].iloc[0])
        found = KernelEvidence(process.metrics, "12.0")
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
    found = KernelEvidence(pd.concat([part.astype({"name": str}) for part in parts]), "12.0")
    counted = [name for name in names if found.label(name).evidence == "counter"]
    assert len(counted) == 3
    assert found.conflicts(sorted(names)) == ()


EMULATES_FP8 = ("sm_90a", "sm_100a", "sm_103f")
NATIVE_INT4 = ("sm_80", "sm_89")
NATIVE_BITS = ("sm_80", "sm_89", "sm_90a")
TENSOR = {
    "mma_f16": "fp16", "mma_bf16": "bf16", "mma_f16_f16": "fp16", "mma_tf32": "tf32",
    "mma_s8": "int8", "mma_f64": None, "mma_e2m1": "fp8", "mma_e4m3_e2m1": "fp8",
    "mma_e3m2_e2m3": "fp8", "mma_mxf4": "fp4", "mma_nvf4": "fp4", "mma_sp_f16": "fp16",
    "wgmma_bf16": "bf16", "wgmma_f16": "fp16", "wgmma_tf32": "tf32", "wgmma_e4m3": "fp8",
    "wgmma_s8": "int8", "wgmma_b1": None, "tcgen05_f16": None, "tcgen05_tf32": None,
    "tcgen05_f8f6f4": None, "tcgen05_i8": "int8", "tcgen05_mxf4": "fp4", "tcgen05_nvf4": "fp4",
}  # fmt: skip
READS = {
    "mma_e2m1": ("fp4",), "mma_e4m3_e2m1": ("fp4",), "mma_e3m2_e2m3": ("fp6",),
    "cvt_e2m1_f16": ("fp4",), "cvt_e4m3_f16": ("fp8",), "cvt_ue8m0_bf16": ("e8m0",),
}  # fmt: skip
WRITES = {
    "cvt_f32_e2m1": ("fp4",), "cvt_f32_e4m3": ("fp8",), "cvt_f16_e4m3": ("fp8",),
    "cvt_f32_ue8m0": ("e8m0",),
}  # fmt: skip


def expected(kernel: str, architecture: str) -> tuple[str, str | None, tuple[str, ...]]:
    """Engine, precision and what is read of a kernel, by what its PTX instruction computes."""
    if kernel in ("mma_e4m3", "mma_e5m2"):
        emulated = architecture in EMULATES_FP8
        return ("tensor-core", "fp16", ("fp8",)) if emulated else ("tensor-core", "fp8", ())
    if kernel == "mma_s4":
        native = architecture in NATIVE_INT4
        return ("tensor-core", None, ("int4",)) if native else ("tensor-core", "int8", ())
    if kernel == "mma_b1":
        native = architecture in NATIVE_BITS
        return ("tensor-core", None, ()) if native else ("tensor-core", "int8", ("int4",))
    if kernel in TENSOR:
        return "tensor-core", TENSOR[kernel], READS.get(kernel, ())
    return "cuda-core", "int8" if kernel == "dp4a" else None, READS.get(kernel, ())


@pytest.mark.slow
@each_row("architecture", ARCHITECTURES)
def test_every_probe(architecture: str, tmp_path: Path) -> None:
    code = read_machine_code({probes(architecture, tmp_path): None})
    assert not code.lost
    rows = code_rows(code.rows)
    found = {row.name: (row.engine, row.precision, row.reads) for row in rows}
    assert found == {row.name: expected(row.name, architecture) for row in rows}
    assert {row.name: row.writes for row in rows if row.writes} == {
        row.name: WRITES[row.name] for row in rows if row.name in WRITES
    }
    assert {row.name for row in rows if row.doubles} == {"cvt_f32_f64"}
    assert {row.target for row in rows} == {architecture}
    suffix = architecture[-1] if architecture[-1] in "af" else "plain"
    assert {row.suffix for row in rows} == {suffix}


def row(text: str, name: str = "k") -> CodeRow:
    return code_row(opcode_counts(text), name=name)


@each_row(
    ("opcodes", "engine", "precision"),
    [
        ("FFMA 900\nHMMA.16816.F32.BF16 1\nSTG 4", "tensor-core", "bf16"),
        ("HMMA.16816.F32.BF16 90\nHMMA.16816.F32 10\nSTG 4", "tensor-core", "bf16"),
        ("HMMA.16816.F32.BF16 89\nHMMA.16816.F32 11\nSTG 4", "tensor-core", None),
        ("UTCQMMA 8\nUTCHMMA 8\nSTG 4", "tensor-core", None),
        ("UTCOMMA 1\nUTCHMMA 8\nSTG 4", "tensor-core", None),
        ("FFMA 900\nSTG 4", "cuda-core", None),
        ("HFMA2.MMA 900\nSTG.64 4", "cuda-core", None),
        ("IDP.4A.S8.S8 64\nFFMA 8\nSTG 4", "cuda-core", "int8"),
        ("FFMA 900\nATOMG 4", "cuda-core", None),
        # What is not there may be in the function that is called.
        ("FFMA 900\nSTG 4\nCALL.ABS.NOINC 1", None, None),
        ("FFMA 900\nSTG 4\nCALL.REL.NOINC 1", "cuda-core", None),
        ("HMMA.16816.F32 1\nSTG 4\nCALL.ABS.NOINC 1", "tensor-core", "fp16"),
        # A kernel that is empty on this architecture.
        ("LDC 1\nEXIT 1\nBRA 1\nNOP 5", None, None),
        ("", None, None),
        ("no count\nSTG x\nSTG -1\nSTG 99999999999\n 4\n\n", None, None),
    ],
)
def test_what_opcodes_say(opcodes: str, engine: str | None, precision: str | None) -> None:
    assert (row(opcodes).engine, row(opcodes).precision) == (engine, precision)


def test_local_memory_is_counted_in_all_widths() -> None:
    found = row("LDL 3\nLDL.128 4\nSTL.U16 5\nLDLX 7\nSTG 1")
    assert (found.local_loads, found.local_stores) == (7, 5)


MARLIN = (
    "void marlin::Marlin<1125899906909960l, 562949953487106l, 1125899906909960l, 2814749767172868l,"
    " 256, 1, 8, 8, true, 4, 1, false>(int4 const*)"
)
BF16_CODE, FP8_CODE, NONE = (
    "HMMA.16816.F32.BF16 9\nSTG 1",
    "QMMA.16832.F32.E4M3.E4M3 9\nSTG 1",
    "FFMA 9\nSTG 1",
)


@each_row(
    ("name", "opcodes", "said"),
    [
        (GEMM, FP8_CODE, ("tensor-core", "fp8", None)),
        (GEMM, NONE, ("cuda-core", None, None)),
        # A name adds the precision that machine code cannot tell.
        (GEMM, "UTCHMMA 9\nSTG 1", ("tensor-core", "bf16", None)),
        ("void cutlass::device_kernel<Sm100Bf16>", "UTCHMMA 9\nSTG 1", ("tensor-core", None, None)),
        (GEMM, "HMMA.16816.F32 9\nQMMA.16832.F32.E4M3.E4M3 9\nSTG 1", ("tensor-core", None, None)),
        # Marlin multiplies in bf16 what is stored in fp4.
        (MARLIN, BF16_CODE + "\nLOP3 99\nPRMT 9", ("tensor-core", "bf16", "fp4")),
    ],
)
def test_machine_code_goes_before_the_name(
    name: str, opcodes: str, said: tuple[str, str | None, str | None]
) -> None:
    label = KernelEvidence(codes=[row(opcodes, name)]).label(name)
    assert (label.engine, label.precision, label.weights) == said
    assert label.evidence == "sass"


@each_row(
    ("opcodes", "weights"),
    [
        ("HMMA.16816.F32 2\nF2FP.F16.E4M3.UNPACK_B 12\nSTG 1", "fp8"),
        ("QMMA.16832.F32.E4M3.E2M1 2\nSTG 1", "fp4"),
        ("HMMA.16816.F32 2\nF2FP.F16.E2M1.UNPACK_B 4\nF2FP.BF16.E8.UNPACK_B 4\nSTG 1", "fp4"),
        ("HMMA.16816.F32 2\nF2FP.F16.E2M1.UNPACK_B 4\nF2FP.F16.E4M3.UNPACK_B 4\nSTG 1", None),
        ("FFMA 2\nF2FP.F16.E4M3.UNPACK_B 12\nSTG 1", None),
    ],
)
def test_what_a_product_unpacks_is_how_its_weights_are_stored(
    opcodes: str, weights: str | None
) -> None:
    assert KernelEvidence(codes=[row(opcodes)]).label("k").weights == weights


def test_pieces_that_disagree_leave_it_to_the_name() -> None:
    agree = KernelEvidence(codes=[row(BF16_CODE, GEMM), row(BF16_CODE + "\nFADD 3", GEMM)])
    assert agree.label(GEMM).evidence == "sass"
    differ = KernelEvidence(codes=[row(BF16_CODE, GEMM), row(NONE, GEMM)])
    assert differ.label(GEMM).evidence == "name"
    assert differ.conflicts([GEMM]) == ()
    assert len(differ.codes([GEMM])) == 2


@each_row(
    ("opcodes", "found"),
    [
        (NONE, ("cuda-core", "no tensor-core instruction")),
        (FP8_CODE, ("tensor-core fp8", "QMMA.16832.F32.E4M3.E4M3")),
        ("HMMA.16816.F32 2\nF2FP.F16.E4M3.UNPACK_B 9\nSTG 1",
         ("tensor-core fp16", "HMMA.16816.F32, stored as fp8")),
        *((opcodes, None) for opcodes in (BF16_CODE, "UTCHMMA 4\nSTG 1", "EXIT 1")),
    ],
)  # fmt: skip
def test_contradictions_are_told_machine_code(opcodes: str, found: tuple[str, str] | None) -> None:
    told = [
        (conflict.by_name, conflict.evidence, conflict.found, conflict.basis)
        for conflict in KernelEvidence(codes=[row(opcodes, GEMM)]).conflicts([GEMM])
    ]
    assert told == ([("tensor-core bf16", "sass", *found)] if found else [])
    assert (
        KernelEvidence(codes=[row(opcodes, "nobody knows it")]).conflicts(["nobody knows it"]) == ()
    )
