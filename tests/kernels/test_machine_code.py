"""What the compiler makes of every kernel, for every target: nothing here is run on a GPU."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")

from spark_prof import kernels
from spark_prof.cores import cores
from spark_prof.kernels.entry import ARCHITECTURES
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.compiler import compile_code
from spark_prof.traces.cuda_tools import find_tool, missing_tool
from spark_prof.traces.readers.cubin import Code, read_code
from spark_prof.traces.readers.nvdisasm import count_opcodes

REGISTERS = 65536
"""Of a multiprocessor, on all targets (CUDA C++ Programming Guide, compute capabilities)."""

NEVER = {
    "local memory": r"(LDL|STL)\b",
    "double precision": r"D(ADD|MUL|FMA|SETP)\b|.*\.F64\b",
    "addresses whose space is unknown": r"(LD|ST)\.",
}

VECTOR_LOAD = r"LDG\.E\..*\b128\b"
STREAMED = r"LDG\.E\.NA\..*\b128\b.*CONSTANT"
TENSOR_CORES = r"HMMA\.16816\.F32\.BF16"
TO_E4M3 = r"F2FP\.SATFINITE\.E4M3\."
TO_E2M1 = r"F2FP\.SATFINITE\.E2M1\."


@dataclass(frozen=True)
class Expected:
    """What the machine code of an entry must hold.

    Attributes:
        entry: the name of the kernel.
        only: where a constant of the compilation has this value; empty for all.
        holds: patterns of opcodes of which each must be found.
        native: patterns that must be found on targets of a family, and nowhere else.
        blocks: how many blocks of a multiprocessor the registers must suffice for.
        threads: of a block, where no constant says so.
    """

    entry: str
    holds: tuple[str, ...]
    only: tuple[tuple[str, int], ...] = ()
    native: tuple[str, ...] = ()
    blocks: int = 2
    threads: int = 0


NVFP4, MXFP8 = (("FORMAT", 0),), (("FORMAT", 3),)
EXPECTED = (
    Expected("dense", (STREAMED, TENSOR_CORES)),
    Expected("quantize", (VECTOR_LOAD, TO_E4M3), NVFP4, native=(TO_E2M1,)),
    Expected("quantize", (VECTOR_LOAD, TO_E4M3), MXFP8),
    Expected("activation_quantize", (VECTOR_LOAD, TO_E4M3), NVFP4, native=(TO_E2M1,)),
    Expected("activation_quantize", (VECTOR_LOAD, TO_E4M3), MXFP8),
    Expected("expand_quantize", (VECTOR_LOAD, TO_E4M3), NVFP4, native=(TO_E2M1,)),
    Expected("expand_quantize", (VECTOR_LOAD, TO_E4M3), MXFP8),
    # Its block is a row, up to 1024 threads: two of them have 32 registers a thread.
    Expected("norm_quantize", (VECTOR_LOAD, TO_E4M3), NVFP4, (TO_E2M1,), 1, 1024),
    Expected("norm_quantize", (VECTOR_LOAD, TO_E4M3), MXFP8, (), 1, 1024),
)


def modules() -> Iterator[str]:
    """The modules of kernels that say what they compile."""
    for found in pkgutil.iter_modules(kernels.__path__):
        text = Path(kernels.__path__[0], f"{found.name}.py")
        if text.is_file() and "\ndef codes(" in text.read_text(encoding="utf-8"):
            yield found.name


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("module", sorted(modules()))
def test_machine_code(module: str, arch: str, tmp_path: Path) -> None:
    tool = find_tool("nvdisasm")
    if tool is None:
        pytest.skip(missing_tool("nvdisasm"))
    codes = importlib.import_module(f"{kernels.__name__}.{module}").codes()
    codes = list(dict.fromkeys(codes))
    assert codes
    with ThreadPoolExecutor(cores()) as pool:
        cubins = list(pool.map(lambda code: compile_code(code, arch), codes))
    functions = [
        function_of(cubin, code.entry, tmp_path / str(number))
        for number, (code, cubin) in enumerate(zip(codes, cubins, strict=True))
    ]
    counted = count_opcodes(
        tool, functions[0].architecture, [f.instructions for f in functions], seconds=300
    )
    faults = [
        f"{code.label}: {fault}"
        for code, function, opcodes in zip(codes, functions, counted, strict=True)
        for fault in faults_of(code, function, opcodes, arch)
    ]
    assert not faults, "\n".join([f"{len(faults)} faults for {arch}", *faults])


def function_of(cubin: bytes, entry: str, path: Path) -> Code:
    path.write_bytes(cubin)
    return next(code for code in read_code(path) if code.symbol == entry)


def faults_of(
    code: KernelCode, function: Code, opcodes: Counter[str] | None, arch: str
) -> Iterator[str]:
    """What is not as it should be."""
    if opcodes is None:
        yield "nvdisasm does not know an instruction"
        return
    constants = dict(code.defines)
    expected = [
        row
        for row in EXPECTED
        if row.entry == code.entry and all(constants.get(name) == v for name, v in row.only)
    ]
    if len(expected) != 1:
        yield f"{len(expected)} rows of EXPECTED are for it"
        return
    (row,) = expected
    in_family = not arch.startswith("sm_90")
    if function.architecture + function.suffix != arch:
        yield f"it was compiled for {function.architecture}{function.suffix}"
    for what, pattern in NEVER.items():
        if found := matching(pattern, opcodes):
            yield f"{what}: {found}"
    for pattern in row.holds + (row.native if in_family else ()):
        if not matching(pattern, opcodes):
            yield f"no {pattern}"
    for pattern in () if in_family else (TO_E2M1,):
        if found := matching(pattern, opcodes):
            yield f"{found}, which {arch} does not have"
    threads = row.threads or constants.get("THREADS") or 32 * constants.get("WARPS", 0)
    if not threads:
        yield "neither its constants nor EXPECTED tell how many threads a block has"
    elif function.registers * threads * row.blocks > REGISTERS:
        yield f"{function.registers} registers, {row.blocks} blocks of {threads} do not fit"
    elif not function.registers:
        yield "its registers are not told"


def matching(pattern: str, opcodes: Counter[str]) -> list[str]:
    return sorted(opcode for opcode in opcodes if re.match(pattern, opcode))
