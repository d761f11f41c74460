"""The machine code of one kernel, an instruction a line, from a cubin that a bundle keeps.

Only the bytes of the one function are given to nvdisasm, as a raw binary (`nvdisasm --binary
SM90`), never the ELF file, which anybody may have made. Branches then name the address that they
lead to; what the loader would fill in, such as the address of a called function, reads as it
stands in the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError
from spark_prof.traces.cuda_tools import find_tool, missing_tool, run_tool
from spark_prof.traces.machine_code import CUBINS_FOLDER
from spark_prof.traces.readers.cubin import read_code

_LARGEST = 4 << 20
"""Bytes of a function that is listed; the largest of vLLM's have half a megabyte."""
_SECONDS = 10.0
_HASH = re.compile(r"[0-9a-f]{16}")
_LINE = re.compile(
    rb"\s*/\*([0-9a-f]{4,8})\*/\s+((?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.x]*)[^;]{0,400});", re.IGNORECASE
)


@dataclass(frozen=True)
class Instruction:
    """One line of a listing."""

    address: int  # in the function, in bytes
    opcode: str  # with its modifiers, such as HMMA.16816.F32.BF16
    text: str  # predicate, opcode and operands


def list_function(bundle: Path, cubin: str, function: str) -> tuple[Instruction, ...]:
    """The instructions of a function, in order.

    list_function(Path("my-run"), row.cubin, row.function)
    """
    path = bundle / CUBINS_FOLDER / f"{cubin}.cubin"
    if not _HASH.fullmatch(cubin) or not path.is_file():
        raise CommandError(f"the recording does not keep {CUBINS_FOLDER}/{cubin:.16}.cubin")
    code = next((c for c in read_code(path, {function}) if c.symbol == function), None)
    if code is None or not code.instructions:
        raise CommandError(f"{path.name} holds no {function:.60}")
    if not code.architecture or len(code.instructions) > _LARGEST:
        raise CommandError(f"{path.name} names no architecture, or the kernel is too large to list")
    tool = find_tool("nvdisasm")
    if tool is None:
        raise CommandError(missing_tool("nvdisasm"))
    lines: list[Instruction] = []

    def note(line: bytes) -> None:
        if match := _LINE.match(line):
            text = " ".join(match[2].decode("ascii", "replace").split())
            lines.append(Instruction(int(match[1], 16), match[3].decode(), text))

    with temporary_folder() as folder:
        file = folder / "instructions.bin"
        file.write_bytes(code.instructions)
        run_tool([tool, "--binary", code.architecture.replace("sm_", "SM"), file], _SECONDS, note)
    return tuple(lines)
