"""The table of opcodes, against what ptxas made of one PTX instruction each."""

from __future__ import annotations

import csv
from pathlib import Path

from spark_prof.analyzers.classify.code_rows import code_row
from spark_prof.rules.opcodes import MARKS, OPCODES, Opcode, find_opcode, mark_of
from spark_prof.vocabulary import PRECISIONS
from tests.rows import each_row

MEASURED = Path(__file__).parents[1] / "data" / "opcodes.csv"
FORMATS = ("fp4", "fp6", "fp8", "int4", "int8", "e8m0")


@each_row("row", OPCODES)
def test_each_row_knows_its_example(row: Opcode) -> None:
    assert find_opcode(row.example) is row
    assert row.precision in (*PRECISIONS, None)
    assert row.stored in (*FORMATS, None)


@each_row(
    "opcode",
    [
        "HFMA2.MMA", "HFMA2.MMA.BF16_V2", "HFMA2", "UTCCP.T.S.4x32dp128bit", "UTCBAR", "UTCSHIFT",
        "UTCATOMSWS", "WARPGROUP.ARRIVE", "MOVM.16.MT88", "LDSM.16.M88.4", "LDTM", "FFMA", "DFMA",
        "IDP.2A.LO.U16.U8", "F2F.BF16.F32", "F2FP.BF16.F32.PACK_AB", "I2FP.F32.S32", "", ".", "MMA",
        "XHMMA.16816.F32", "hmma.16816.f32",
    ],
)  # fmt: skip
def test_what_is_no_product_and_no_conversion_tells_nothing(opcode: str) -> None:
    assert find_opcode(opcode) is None


@each_row(
    "measured",
    list(csv.DictReader(MEASURED.open(encoding="utf-8"))),
)
def test_every_measured_instruction(measured: dict[str, str]) -> None:
    counts = {"STG": 1}
    for item in measured["opcodes"].split():
        opcode, _, count = item.rpartition("*")
        counts[opcode] = int(count)
    row = code_row(counts, name="probe")
    assert row.engine == measured["engine"]
    assert (row.precision or "") == measured["precision"]
    assert " ".join(row.reads) == measured["reads"]
    assert " ".join(row.writes) == measured["writes"]


def test_a_listing_marks_what_the_table_knows() -> None:
    for row in OPCODES:
        mark = mark_of(row.example)
        assert (mark == MARKS[0]) == (row.does == "product")
        assert (mark is not None and mark.name == "conversion") == (
            row.does in ("reads", "writes", "double")
        )
    opcodes = ("LDL.LU.64", "STL", "PRMT", "I2F.S16", "LDG.E", "FFMA")
    marks = [mark.name for opcode in opcodes if (mark := mark_of(opcode))]
    assert marks == ["local memory access", "local memory access", "byte permute", "conversion"]
