"""The section about machine code, and what the list of `spark-prof classify` shows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from spark_prof.analyzers.classify.code_rows import CodeRow, code_row, opcode_counts
from spark_prof.dashboards import json_report, text
from spark_prof.dashboards.about_machine_code import machine_code, products
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


def test_without_machine_code_there_is_no_section() -> None:
    assert "Machine code" not in text.render(HEALTHY)
    assert machine_code(HEALTHY).rows == ()


def test_a_kernel_without_tensor_cores() -> None:
    row = code_row({"FFMA": 9, "STG": 1}, name="k")
    assert products(row) == "-"
    (shown,) = machine_code(replace(HEALTHY, machine_code=(row,))).rows
    assert shown[1:5] == ("-", "-", "-", "-")


@pytest.mark.parametrize("evil", ["\x1b[2J", "\u202e", "a\nb"])
def test_hostile_opcodes_do_not_reach_the_terminal(evil: str) -> None:
    row = code_row({f"HMMA.{evil}": 1, "STG": 1}, name=evil, architecture=evil)
    shown = text.render(replace(HEALTHY, machine_code=(row,)))
    assert "Machine code" in shown
    assert evil not in shown


def test_json_has_all_of_it() -> None:
    found = json.loads(json_report.render(replace(HEALTHY, machine_code=(code(), code("l")))))
    assert [row["name"] for row in found["machine_code"]] == ["k", "l"]
    assert found["machine_code"][0]["products"][0] == {"opcode": "HMMA.16816.F32.BF16", "count": 8}
    assert found["machine_code"][0]["suffix"] == "f"
    assert found["conflicts"] == []
