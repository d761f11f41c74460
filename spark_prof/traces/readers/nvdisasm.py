"""Counts the opcodes of GPU functions with NVIDIA's nvdisasm.

An instruction is 16 bytes on every architecture since Volta, and kernels repeat most of theirs.
Only distinct instructions are disassembled, as a raw binary (`nvdisasm --binary SM90`): ELF files
of others are never given to the tool, and several times less is disassembled.

Output, a line an instruction: ``/*0010*/  @!P0 HMMA.16816.F32 R4, R4, R8, R12 ;``. Instructions
that it does not know it names on stderr, all of them, and then prints nothing else.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.cores import cores
from spark_prof.ending import temporary_folder
from spark_prof.traces.cuda_tools import ToolError, run_tool

Instructions = npt.NDArray[np.uint64]
"""One row an instruction, its two halves as columns."""

_BYTES = 16
_FEW = 4096
"""Instructions that are not worth another process."""
_ATTEMPTS = 8
"""It names only so many unknown instructions that are kept of its complaints."""
_LINE = re.compile(rb"\s*/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.x]*)", re.IGNORECASE)
_UNKNOWN = re.compile(r"at address 0x([0-9a-f]+)")


def count_opcodes(
    tool: Path, architecture: str, functions: Sequence[bytes], seconds: float
) -> list[Counter[str] | None]:
    """How often each opcode, with its modifiers, stands in each function.

    Args:
        architecture: of all the functions, such as sm_90.
        seconds: how long it may take.

    Returns:
        For each function its counts; None where it holds what is no instruction.

    Raises:
        ToolError: nvdisasm failed, does not know the architecture, or took too long.
    """
    whole = [code for code in functions if code and len(code) % _BYTES == 0]
    if not whole:
        return [None] * len(functions)
    words: Instructions = np.frombuffer(b"".join(whole), np.uint64).reshape(-1, 2)
    number, distinct = _distinct(words)
    names = _opcodes(tool, architecture, distinct, time.monotonic() + seconds)
    code_of, opcodes = pd.factorize(np.array(names, object), use_na_sentinel=True)
    found: list[Counter[str] | None] = []
    at = 0
    for code in functions:
        length = len(code) // _BYTES if code and len(code) % _BYTES == 0 else 0
        own = code_of[number[at : at + length]]
        at += length
        if not length or (own < 0).any():
            found.append(None)
            continue
        counts = np.bincount(own, minlength=len(opcodes))
        found.append(Counter({str(opcodes[i]): int(counts[i]) for i in np.flatnonzero(counts)}))
    return found


def _distinct(words: Instructions) -> tuple[npt.NDArray[np.intp], Instructions]:
    """For each instruction the number of its kind, and one instruction of each kind."""
    low, _ = pd.factorize(words[:, 0])
    high, highs = pd.factorize(words[:, 1])
    number, _ = pd.factorize(low.astype(np.int64) * len(highs) + high)
    first = np.zeros(int(number.max()) + 1, np.intp)
    first[number[::-1]] = np.arange(len(number))[::-1]
    return number, words[first]


def _opcodes(tool: Path, architecture: str, words: Instructions, until: float) -> list[str | None]:
    """The opcode of each instruction; None for what is none."""
    parts = min(cores(), -(-len(words) // _FEW))
    with ThreadPoolExecutor(parts) as pool:
        split = np.array_split(words, parts)
        done = pool.map(lambda part: _part(tool, architecture, part, until), split)
        return [name for names in done for name in names]


def _part(tool: Path, architecture: str, words: Instructions, until: float) -> list[str | None]:
    names: list[str | None] = [None] * len(words)
    wanted = np.arange(len(words))
    for last in (*[False] * (_ATTEMPTS - 1), True):
        if not len(wanted):
            break
        try:
            _run(tool, architecture, words, wanted, names, until)
            break
        except ToolError as error:
            bad = [int(address, 16) // _BYTES for address in _UNKNOWN.findall(error.said)]
            if last or not bad:
                raise
            wanted = np.delete(wanted, [index for index in bad if index < len(wanted)])
    return names


def _run(
    tool: Path,
    architecture: str,
    words: Instructions,
    wanted: npt.NDArray[Any],
    names: list[str | None],
    until: float,
) -> None:
    """Disassembles the wanted ones and puts down their names."""

    def note(line: bytes) -> None:
        match = _LINE.match(line)
        if match and (index := int(match[1], 16) // _BYTES) < len(wanted):
            names[wanted[index]] = match[2].decode()

    with temporary_folder() as folder:
        file = folder / "instructions.bin"
        file.write_bytes(words[wanted].tobytes())
        option = architecture.replace("sm_", "SM")
        run_tool([tool, "--binary", option, file], until - time.monotonic(), note)
