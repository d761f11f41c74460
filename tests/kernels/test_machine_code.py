"""What the compiler makes of every kernel, for every target: nothing here is run on a GPU."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")

from spark_prof import kernels
from spark_prof.cores import cores
from spark_prof.kernels.bench.configurations import bf16_candidates
from spark_prof.kernels.candidate import ActivationName
from spark_prof.kernels.dense import LinearConfig, dense_code
from spark_prof.kernels.moe import MoeConfig, down_code, gate_up_code
from spark_prof.kernels.pack import FORMATS
from spark_prof.kernels.registry import ARCHITECTURES, KERNELS
from spark_prof.kernels.runtime.code import SOURCES, KernelCode
from spark_prof.kernels.runtime.compiler import compile_code
from spark_prof.kernels.tuning import SHIPPED, read
from spark_prof.traces.cuda_tools import count_opcodes, find_tool, missing_tool
from spark_prof.traces.readers.cubin import Code, read_code
from tests.rows import each_row

REGISTERS = 65536
"""Of a multiprocessor, on all targets (CUDA C++ Programming Guide, compute capabilities)."""

NEVER = {
    "local memory": r"(LDL|STL)\b",
    "double precision": r"D(ADD|MUL|FMA|SETP)\b|.*\.F64\b",
    "addresses whose space is unknown": r"(LD|ST)\.",
}

STREAMED = r"LDG\.E\.NA\..*\b128\b.*CONSTANT"
TENSOR_CORES = r"HMMA\.16816\.F32\.BF16"
FP4_PRODUCTS = r"OMMA\.SF\.16864\.F32\.E2M1\.E2M1\.UE4M3\.4X"

WAITS = r"ACQBULK\b"
"""Every kernel may be launched before the one before it has ended, so every kernel waits."""

MOVED = r"LDG\.E\.(?!NA\.).*CONSTANT"
"""A load that ptxas may move before the wait: right for weights alone, which are streamed, and for
the weights of norms."""


@dataclass(frozen=True)
class Expected:
    """What the machine code of an entry must hold."""

    entry: str
    holds: tuple[str, ...]  # patterns of opcodes of which each must be found
    only: tuple[tuple[str, int], ...] = ()  # where constants have these values; empty for all
    makes_norm: bool = False  # whose weight does not depend on the kernel before, as NORM says
    # Of a multiprocessor that the registers must suffice for: two blocks of 8 warps, of BF16 one,
    # as its units take the most registers.
    threads: int = 512


EXPECTED = (
    *(
        Expected("dense", (STREAMED, TENSOR_CORES), (("FORMAT", number),))
        for name, number in FORMATS.items()
        if name != "bf16"
    ),
    Expected("dense", (STREAMED, TENSOR_CORES), (("FORMAT", FORMATS["bf16"]),), threads=256),
    Expected("dense_w4a4", (STREAMED, FP4_PRODUCTS)),
    Expected("quantize_fp4", (r"F2FP\.SATFINITE\.E2M1", r"F2FP\.SATFINITE\.E4M3"), threads=1024),
    Expected("route", ()),
    Expected("row_norm", (), threads=1024, makes_norm=True),
    Expected("norm_route", (STREAMED,), threads=384, makes_norm=True),
    Expected("gate_up", (STREAMED, TENSOR_CORES)),
    Expected("down", (STREAMED, TENSOR_CORES)),
    *(
        Expected(
            "attention",
            (STREAMED if fp8 == 0 else STREAMED.replace("128", "64"), TENSOR_CORES),
            (("SIZE", size), ("FP8", fp8)),
            threads=512 if size == 64 else 256,
        )
        for size in (64, 80, 128, 256)
        for fp8 in range(2)
    ),
)


def modules() -> Iterator[str]:
    """The modules of kernels that say what they compile."""
    for found in pkgutil.iter_modules(kernels.__path__):
        text = Path(kernels.__path__[0], f"{found.name}.py")
        if text.is_file() and "\ndef codes(" in text.read_text(encoding="utf-8"):
            yield found.name


ENTRY = re.compile(r"^KERNEL\b(?:\s*__launch_bounds__\([^()]*\))?\s*(\w+)\s*\(", re.MULTILINE)


OF_NO_LAYER = ("node.cu", "late.cu")
"""Empty kernels, whose chains tell what a node costs, and one that checks others: tests of
analyzers/ceilings and of check/late.py compile them."""


def test_every_kernel_is_looked_at() -> None:
    """Those of a module without `codes`, or that no `codes` has, would be compiled by nobody."""
    paths = (path for path in SOURCES.glob("*.cu") if path.name not in OF_NO_LAYER)
    sources = [path.read_text(encoding="utf-8") for path in paths]
    entries = {entry for text in sources for entry in ENTRY.findall(text)}
    assert sum(len(re.findall("^KERNEL", text, re.MULTILINE)) for text in sources) == len(entries)
    known = [importlib.import_module(f"{kernels.__name__}.{name}").codes() for name in modules()]
    assert {code.entry for codes in known for code in codes} == entries
    assert {row.entry for row in EXPECTED} == entries
    listed = {kernel.module.rpartition(".")[2] for kernel in KERNELS}
    assert listed <= set(modules())


SAME = ("sm_120f", "sm_121a")
"""Targets of one family, for which the compiler makes the same machine code."""


def codes_of(module: str) -> list[KernelCode]:
    return list(dict.fromkeys(importlib.import_module(f"{kernels.__name__}.{module}").codes()))


LIMITED = {
    kernel.module.rpartition(".")[2]: kernel.targets
    for kernel in KERNELS
    if kernel.targets != ARCHITECTURES
}
"""Modules whose kernels other targets have no instructions for, and the targets that do."""
EVERYWHERE = sorted(set(modules()) - LIMITED.keys())


@pytest.mark.slow
@each_row(
    ("module", "arch"),
    [
        (module, arch)
        for module in sorted(modules())
        for arch in LIMITED.get(module, ARCHITECTURES)
        if arch != SAME[0]
    ],
)
def test_machine_code(module: str, arch: str, tmp_path: Path) -> None:
    codes = codes_of(module)
    assert codes
    faults = faults_of(codes, arch, EXPECTED, tmp_path)
    assert not faults, "\n".join([f"{len(faults)} faults for {arch}", *faults])


@pytest.mark.slow
@each_row("module", sorted(modules()))
def test_machine_code_is_the_same_within_a_family(module: str, tmp_path: Path) -> None:
    """So one target's stands for both; of each entry one configuration is looked at."""
    for code in {code.entry: code for code in codes_of(module)}.values():
        first, other = (
            function_of(compile_code(code, arch), code.entry, tmp_path / f"{code.entry}-{arch}")
            for arch in SAME
        )
        assert (first.instructions, first.registers) == (other.instructions, other.registers)


EACH = 16
"""One of so many measured configurations is looked at, as all of them take a minute."""


def tuned_codes() -> list[KernelCode]:
    """What the package's measurements choose, each once, kernel by kernel."""
    codes: list[KernelCode] = []
    for row in (row for run in read(SHIPPED) if run.architecture == "sm_90a" for row in run.rows):
        work = row.work
        if work.kernel in ("dense", "layer-dense", "normed"):
            linear, normed = LinearConfig(**row.config), work.kernel == "normed"
            codes.append(dense_code(work.format, work.columns, work.tokens, linear, normed))
            continue
        config = MoeConfig(**row.config)
        activation: ActivationName = "swiglu" if work.format == "mxfp4" else "silu"
        codes += [
            gate_up_code(work.format, work.columns, activation, work.tokens, config),
            down_code(work.format, work.rows // 2, work.tokens, config),
        ]
    return sorted(dict.fromkeys(codes), key=lambda code: code.entry)


@pytest.mark.slow
def test_machine_code_of_measured_configurations(tmp_path: Path) -> None:
    codes = tuned_codes()
    in_layers = [code for code in codes if dict(code.defines).get("NORM")]
    assert in_layers
    sample = [*codes[::EACH], *in_layers]
    assert {code.entry for code in sample} == {"dense", "gate_up", "down"}
    assert not faults_of(sample, "sm_90a", EXPECTED, tmp_path)


@pytest.mark.slow
def test_machine_code_of_what_is_tried_of_bfloat16(tmp_path: Path) -> None:
    """Of each depth, and of few and many tokens, some."""
    tried = [
        dense_code("bf16", columns, tokens, config)
        for rows, columns in ((2048, 512), (5120, 2880), (201088, 2880))
        for tokens in (8, 16)
        for config in bf16_candidates(rows, columns, tokens, processors=132)
    ]
    sample = list(dict.fromkeys(tried))[::EACH]
    assert {dict(code.defines)["DEPTH"] for code in sample} == {1, 2, 3}
    assert not faults_of(sample, "sm_90a", EXPECTED, tmp_path)


@pytest.mark.slow
@each_row("module", EVERYWHERE)
def test_gpus_that_are_not_looked_at_get_machine_code_too(module: str) -> None:
    codes = importlib.import_module(f"{kernels.__name__}.{module}").codes()
    for code in {code.entry: code for code in codes}.values():
        for arch in ("sm_80", "sm_89", "sm_103f"):
            assert compile_code(code, arch)


def faults_of(
    codes: Sequence[KernelCode], arch: str, expected: Sequence[Expected], folder: Path
) -> list[str]:
    """What of the kernels' machine code is not as it should be."""
    tool = find_tool("nvdisasm")
    if tool is None:
        pytest.skip(missing_tool("nvdisasm"))
    with ThreadPoolExecutor(cores()) as pool:
        cubins = list(pool.map(lambda code: compile_code(code, arch), codes))
    functions = [
        function_of(cubin, code.entry, folder / str(number))
        for number, (code, cubin) in enumerate(zip(codes, cubins, strict=True))
    ]
    instructions = [function.instructions for function in functions]
    counted = count_opcodes(tool, functions[0].architecture, instructions, seconds=300)
    return [
        f"{code.label}: {fault}"
        for code, function, opcodes in zip(codes, functions, counted, strict=True)
        for fault in faults_in(code, function, opcodes, arch, expected)
    ]


def function_of(cubin: bytes, entry: str, path: Path) -> Code:
    path.write_bytes(cubin)
    return next(code for code in read_code(path) if code.symbol == entry)


def faults_in(
    code: KernelCode,
    function: Code,
    opcodes: Counter[str] | None,
    arch: str,
    expected: Sequence[Expected],
) -> Iterator[str]:
    if opcodes is None:
        yield "nvdisasm does not know an instruction"
        return
    constants = dict(code.defines)
    rows = [
        row
        for row in expected
        if row.entry == code.entry and all(constants.get(name) == v for name, v in row.only)
    ]
    if len(rows) != 1:
        yield f"{len(rows)} rows of EXPECTED are for it"
        return
    (row,) = rows
    if function.architecture + function.suffix != arch:
        yield f"it was compiled for {function.architecture}{function.suffix}"
    for what, pattern in NEVER.items():
        if found := matching(pattern, opcodes):
            yield f"{what}: {found}"
    if not (row.makes_norm or constants.get("NORM")) and (moved := matching(MOVED, opcodes)):
        yield f"may read what the kernel before has not written: {moved}"
    for pattern in (WAITS, *row.holds):
        if not matching(pattern, opcodes):
            yield f"no {pattern}"
    threads = 32 * constants["WARPS"] if "WARPS" in constants else row.threads
    if function.registers * threads > REGISTERS:
        yield f"{function.registers} registers for each of {threads} threads do not fit"
    elif not function.registers:
        yield "its registers are not told"


def matching(pattern: str, opcodes: Counter[str]) -> list[str]:
    return sorted(opcode for opcode in opcodes if re.match(pattern, opcode))


WAITING = '#include "platform.cuh"\nKERNEL wrong(%s) { wait_for_previous_kernel(); %s }\n'


@pytest.mark.slow
@each_row(
    ("parameters", "body", "row", "arch", "fault"),
    [
        ("int* x, int n", "int a[64]; for (int i = 0; i < 64; ++i) a[i ^ n] = x[i]; x[0] = a[n];",
         Expected("wrong", ()), "sm_90a", "local memory"),
        ("double* x, double y", "*x = *x * y;", Expected("wrong", ()), "sm_121a", "double"),
        ("float** x", "**x = 1.f;", Expected("wrong", ()), "sm_120f", "space is unknown"),
        ("float* x", "", Expected("wrong", (TENSOR_CORES,)), "sm_90a", "no HMMA"),
        ("u32* x", "x[0] = load_once_8(x + 2).y;", Expected("wrong", (STREAMED,)), "sm_90a",
         "no LDG"),
        ("uint4* x", "x[0] = load_constant_16(x + 1);", Expected("wrong", ()), "sm_90a",
         "has not written"),
        ("uint4* x", "x[0] = load_16(x + 1);", Expected("wrong", ()), "sm_90a", "no fault"),
        ("float* x", "", Expected("wrong", (), threads=1 << 20), "sm_90a", "do not fit"),
        ("float* x", "", Expected("another", ()), "sm_90a", "0 rows of EXPECTED"),
        ("float* x", "} KERNEL other(float* x) {", Expected("wrong", ()), "sm_90a", "no fault"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(
    parameters: str, body: str, row: Expected, arch: str, fault: str, tmp_path: Path
) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text(WAITING % (parameters, body))
    code = KernelCode(str(source), "wrong")
    faults = faults_of([code], arch, [row], tmp_path)
    assert any(fault in line for line in faults) if fault != "no fault" else not faults


def test_of_what_a_kernel_writes_nothing_is_loaded_as_constant() -> None:
    """Where the norm's weight is, too, the machine code does not tell one from the other."""
    loaded = [
        (path.name, argument)
        for path in sorted(SOURCES.glob("*.cu*"))
        for argument in re.findall(
            r"(?<!uint4 )\b(?:load_constant_16|__ldg)\(([^;]*?)\)(?:[ ,;])", path.read_text("utf-8")
        )
    ]
    floats = [("vectors.cuh", "from"), ("vectors.cuh", "from + 4")]
    assert [row for row in loaded if row[0] != "platform.cuh"] == [
        ("router.cu", "norm + column + 4 * i"), *floats
    ]  # fmt: skip
    weights = {
        argument
        for path in SOURCES.glob("*.cu*")
        for argument in re.findall(r"load_floats\(\w+, (\w+)", path.read_text("utf-8"))
    }
    assert weights == {"weight"}


def test_a_kernel_that_does_not_wait_is_found(tmp_path: Path) -> None:
    source = tmp_path / "hasty.cu"
    source.write_text('#include "platform.cuh"\nKERNEL hasty(float* x) { *x = 1.f; }\n')
    code = KernelCode(str(source), "hasty")
    faults = faults_of([code], "sm_121a", [Expected("hasty", ())], tmp_path)
    assert [fault.split(": ")[1] for fault in faults] == [f"no {WAITS}"]
