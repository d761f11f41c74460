"""Engine and precision of real machine code, assembled for eleven architectures."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.analyzers.classify.code_rows import CodeRow, code_row, code_rows, opcode_counts
from spark_prof.analyzers.classify.evidence import Evidence
from spark_prof.traces.machine_code import read_machine_code
from tests.rows import each_row
from tests.traces.cubins import ARCHITECTURES, probes

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


@pytest.mark.parametrize(
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
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_execute_kernel__5x_cublas"
BF16, FP8, NONE = (
    "HMMA.16816.F32.BF16 9\nSTG 1",
    "QMMA.16832.F32.E4M3.E4M3 9\nSTG 1",
    "FFMA 9\nSTG 1",
)


def test_machine_code_goes_before_the_name() -> None:
    label = Evidence(codes=[row(FP8, GEMM)]).label(GEMM)
    assert (label.engine, label.precision, label.evidence) == ("tensor-core", "fp8", "sass")
    label = Evidence(codes=[row(NONE, GEMM)]).label(GEMM)
    assert (label.engine, label.precision, label.evidence) == ("cuda-core", None, "sass")


def test_a_name_adds_the_precision_that_machine_code_cannot_tell() -> None:
    name = "void cutlass::device_kernel<Sm100Bf16>"
    label = Evidence(codes=[row("UTCHMMA 9\nSTG 1", GEMM)]).label(GEMM)
    assert (label.engine, label.precision, label.evidence) == ("tensor-core", "bf16", "sass")
    assert Evidence(codes=[row("UTCHMMA 9\nSTG 1", name)]).label(name).precision is None
    mixed = row("HMMA.16816.F32 9\nQMMA.16832.F32.E4M3.E4M3 9\nSTG 1", GEMM)
    assert Evidence(codes=[mixed]).label(GEMM).precision is None


def test_marlin_multiplies_in_bf16_what_is_stored_in_fp4() -> None:
    label = Evidence(codes=[row(BF16 + "\nLOP3 99\nPRMT 9", MARLIN)]).label(MARLIN)
    assert (label.engine, label.precision, label.weights) == ("tensor-core", "bf16", "fp4")
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
    assert Evidence(codes=[row(opcodes)]).label("k").weights == weights


def test_pieces_that_disagree_leave_it_to_the_name() -> None:
    agree = Evidence(codes=[row(BF16, GEMM), row(BF16 + "\nFADD 3", GEMM)])
    assert agree.label(GEMM).evidence == "sass"
    differ = Evidence(codes=[row(BF16, GEMM), row(NONE, GEMM)])
    assert differ.label(GEMM).evidence == "name"
    assert differ.conflicts([GEMM]) == ()
    assert len(differ.codes([GEMM])) == 2


@pytest.mark.parametrize(
    ("opcodes", "found", "basis"),
    [
        (NONE, "cuda-core", "no tensor-core instruction"),
        (FP8, "tensor-core fp8", "QMMA.16832.F32.E4M3.E4M3"),
        ("HMMA.16816.F32 2\nF2FP.F16.E4M3.UNPACK_B 9\nSTG 1", "tensor-core fp16",
         "HMMA.16816.F32, stored as fp8"),
    ],
)  # fmt: skip
def test_contradictions_are_told(opcodes: str, found: str, basis: str) -> None:
    (conflict,) = Evidence(codes=[row(opcodes, GEMM)]).conflicts([GEMM])
    assert (conflict.by_name, conflict.found, conflict.evidence) == (
        "tensor-core bf16", found, "sass",
    )  # fmt: skip
    assert conflict.basis == basis


@pytest.mark.parametrize("opcodes", [BF16, "UTCHMMA 4\nSTG 1", "EXIT 1"])
def test_agreement_is_silent(opcodes: str) -> None:
    assert Evidence(codes=[row(opcodes, GEMM)]).conflicts([GEMM]) == ()
    assert Evidence(codes=[row(opcodes, "nobody knows it")]).conflicts(["nobody knows it"]) == ()
