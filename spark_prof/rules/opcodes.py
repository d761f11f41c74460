"""The one table that says what an opcode of the machine code tells: a row a family.

An opcode is a word and modifiers, such as HMMA.16816.F32.BF16; the first row whose word and
modifiers it has counts. `HFMA2.MMA` is no tensor-core instruction, in spite of its name, and
UTCCP, UTCBAR, WARPGROUP, MOVM.MT88 and LDSM only move or wait.

Sources: CUDA Binary Utilities, tables of the instruction sets; which operands a family has was
measured by assembling one PTX instruction each with ptxas 12.8 to 13.5 for sm_80, sm_89, sm_90a,
sm_100a, sm_120, sm_120a, sm_121a and sm_121f, see scripts/make_cubins.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal


@dataclass(frozen=True)
class Opcode:
    """One family of opcodes."""

    words: str  # the opcode's first word, one of these
    modifiers: str  # all of which it must have
    # Product: a matrix product on tensor cores. reads, writes: turns a stored format into one to
    # compute with, or back. dot: a dot product on CUDA cores. double: a detour through double
    # precision.
    does: Literal["product", "reads", "writes", "dot", "double"]
    # In which a product is computed; None where the opcode does not tell, or where there is no word
    # for it.
    precision: str | None
    stored: str | None  # format in which an operand is stored, where that is not the precision
    example: str  # an opcode of the family


_PACKED = "F2FP UF2FP"

OPCODES = (
    # Products of a warp; of a warp group (G, sm_90a); in tensor memory (UTC, sm_100a).
    Opcode("HMMA HGMMA", "BF16", "product", "bf16", None, "HMMA.16816.F32.BF16"),
    Opcode("HMMA HGMMA", "TF32", "product", "tf32", None, "HGMMA.64x8x8.F32.TF32"),
    Opcode("HMMA HGMMA", "", "product", "fp16", None, "HMMA.SP.16832.F32"),
    # Which of fp16, bf16 and tf32 is in a register, as with UTCQMMA's fp8, fp6 and fp4.
    Opcode("UTCHMMA", "", "product", None, None, "UTCHMMA.2CTA"),
    Opcode("IMMA", "S4", "product", None, "int4", "IMMA.16864.S4.S4"),
    Opcode("IMMA", "U4", "product", None, "int4", "IMMA.16864.U4.U4"),
    Opcode("IMMA IGMMA UTCIMMA", "", "product", "int8", None, "IGMMA.64x8x32.S8.S8"),
    # There is no word for one bit or fp64.
    Opcode("BMMA BGMMA", "", "product", None, None, "BMMA.168256.AND.POPC"),
    Opcode("DMMA", "", "product", None, None, "DMMA.8x8x4"),
    # It takes fp4 and fp6 too, at the rate of fp8.
    Opcode("QMMA", "E2M1", "product", "fp8", "fp4", "QMMA.16832.F32.E4M3.E2M1"),
    Opcode("QMMA", "E2M3", "product", "fp8", "fp6", "QMMA.16832.F32.E3M2.E2M3"),
    Opcode("QMMA", "E3M2", "product", "fp8", "fp6", "QMMA.16832.F32.E4M3.E3M2"),
    Opcode("QMMA QGMMA", "", "product", "fp8", None, "QMMA.SF.16832.F32.E4M3.E4M3.E8"),
    Opcode("UTCQMMA", "", "product", None, None, "UTCQMMA"),
    Opcode("OMMA UTCOMMA", "", "product", "fp4", None, "OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X"),
    # Conversions in hardware.
    Opcode(_PACKED, "UNPACK_B E2M1", "reads", None, "fp4", "F2FP.F16.E2M1.UNPACK_B"),
    Opcode(_PACKED, "UNPACK_B E4M3", "reads", None, "fp8", "F2FP.F16.E4M3.UNPACK_B"),
    Opcode(_PACKED, "UNPACK_B E5M2", "reads", None, "fp8", "F2FP.F16.E5M2.UNPACK_B"),
    Opcode(_PACKED, "UNPACK_B E2M3", "reads", None, "fp6", "F2FP.F16.E2M3.UNPACK_B"),
    Opcode(_PACKED, "UNPACK_B E3M2", "reads", None, "fp6", "F2FP.F16.E3M2.UNPACK_B"),
    Opcode(_PACKED, "UNPACK_B E8", "reads", None, "e8m0", "F2FP.BF16.E8.UNPACK_B"),
    Opcode("MOVM", "U4TO8", "reads", None, "int4", "MOVM.U4TO8.M832"),
    Opcode(_PACKED, "E2M1 F32", "writes", None, "fp4", "F2FP.SATFINITE.E2M1.F32.PACK_AB_MERGE_C"),
    Opcode(_PACKED, "E4M3 F32", "writes", None, "fp8", "F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C"),
    Opcode(_PACKED, "E4M3 SATFINITE", "writes", None, "fp8",
           "F2FP.SATFINITE.E4M3.F16.UNPACK_B_MERGE_C"),
    Opcode(_PACKED, "E5M2 F32", "writes", None, "fp8", "F2FP.SATFINITE.E5M2.F32.PACK_AB_MERGE_C"),
    Opcode(_PACKED, "E5M2 SATFINITE", "writes", None, "fp8",
           "F2FP.SATFINITE.E5M2.F16.UNPACK_B_MERGE_C"),
    Opcode(_PACKED, "E2M3 F32", "writes", None, "fp6", "F2FP.SATFINITE.E2M3.F32.PACK_AB_MERGE_C"),
    Opcode(_PACKED, "E3M2 F32", "writes", None, "fp6", "F2FP.SATFINITE.E3M2.F32.PACK_AB_MERGE_C"),
    Opcode(_PACKED, "E8 F32", "writes", None, "e8m0", "F2FP.SATFINITE.E8.F32.PACK_AB_MERGE_C.RZ"),
    Opcode("F2I", "S8", "writes", None, "int8", "F2I.S8.NTZ"),
    # cuda_fp4.h goes through double precision where it is built without the conversion above.
    Opcode("F2F", "F64 F32", "double", None, None, "F2F.F64.F32"),
    Opcode("IDP", "4A", "dot", "int8", None, "IDP.4A.S8.S8"),
)  # fmt: skip
"""The families; the first that fits counts."""

_SPLIT = tuple((row, row.words.split(), row.modifiers.split()) for row in OPCODES)


@lru_cache(maxsize=4096)
def find_opcode(opcode: str) -> Opcode | None:
    """The row of an opcode; None where it tells nothing."""
    word, *modifiers = opcode.split(".")
    for row, words, required in _SPLIT:
        if word in words and all(modifier in modifiers for modifier in required):
            return row
    return None


@dataclass(frozen=True)
class OpcodeMark:
    """What a reader of a listing looks for."""

    name: str
    meaning: str
    words: str = ""  # the opcodes' first words; none where `find_opcode` tells

    @property
    def plural(self) -> str:
        """The name in the plural, for behind a number."""
        return f"{self.name}es" if self.name.endswith("s") else f"{self.name}s"


MARKS = (
    OpcodeMark("matrix product", "runs on the tensor cores"),
    OpcodeMark("conversion", "turns one number format into another",
         "F2F F2FP UF2FP F2I I2F I2FP I2I FRND MOVM"),
    OpcodeMark("byte permute", "moves bytes in a register, as unpacking does", "PRMT UPRMT"),
    OpcodeMark("local memory access", "loads or stores spilled registers, or local arrays",
        "LDL STL"),
)  # fmt: skip
"""What a listing marks, in the order of its legend."""

_MARK_OF = {word: mark for mark in MARKS for word in mark.words.split()}


def mark_of(opcode: str) -> OpcodeMark | None:
    """What a listing marks this opcode as; None for most."""
    row = find_opcode(opcode)
    if row is not None and row.does == "product":
        return MARKS[0]
    return _MARK_OF.get(opcode.partition(".")[0])
