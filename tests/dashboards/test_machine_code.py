"""The section about machine code, and what the list of `spark-prof classify` shows."""

from __future__ import annotations

from dataclasses import replace

from spark_prof.analyzers.classify.machine_code import code_row, opcode_counts
from spark_prof.analyzers.classify.model import CodeRow
from spark_prof.dashboards.sections.kernel_section import machine_code, products
from tests.analyzers.findings.reports import HEALTHY

OPCODES = (
    "HMMA.16816.F32.BF16 8\nHMMA.16816.F32 4\nQMMA.16832.F32.E4M3.E4M3 2\n"
    "F2FP.F16.E2M1.UNPACK_B 4\nF2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C 4\nLDL 3\nSTL.64 2\nSTG 1"
)


def code(name: str = "k", **known: object) -> CodeRow:
    row = code_row(opcode_counts(OPCODES), name=name, architecture="sm_120", suffix="f")
    return replace(row, us=12.0, registers=40, **known)  # type: ignore[arg-type]


def test_a_row() -> None:
    section = machine_code(replace(HEALTHY, machine_code=(code(),)))
    (row,) = section.rows
    assert row == (
        "12.0 us", "sm_120f", "HMMA.16816.F32.BF16, HMMA.16816.F32, 1 more",
        "from fp4 to fp8", "40", "5", "k",
    )  # fmt: skip
    assert len(section.columns) == len(row)


def test_a_kernel_without_tensor_cores() -> None:
    row = code_row({"FFMA": 9, "STG": 1}, name="k")
    assert products(row) == "-"
    (shown,) = machine_code(replace(HEALTHY, machine_code=(row,))).rows
    assert shown[1:5] == ("-", "-", "-", "-")
