"""Compiles CUDA C++ to machine code with NVRTC; needs neither a GPU nor nvcc.

NVRTC is called through cuda-bindings. What was compiled once is kept (`compiled.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from spark_prof.extras import install_command
from spark_prof.kernels.kernel_error import KernelError, MissingInstructionError
from spark_prof.kernels.runtime.code import SOURCES, KernelCode
from spark_prof.kernels.runtime.compiled import keep_compiled, kept_compiled

_INSTALL = f"install it with: {install_command('kernels')}"
_OLDEST_NVRTC = (12, 9)
"""The first that knows the families (sm_100f) and sm_121."""
_OPTIONS = ("-std=c++17", "-lineinfo")
_TARGETS = {
    (9, 0): "sm_90a",
    (10, 0): "sm_100f",
    (10, 3): "sm_103f",
    (12, 0): "sm_120f",
    (12, 1): "sm_121a",
}
"""GPUs with instructions that only they or their family have: the compiler may use those."""

FP4_PRODUCTS = ("sm_120f", "sm_121a")
"""Targets whose `mma.sync` multiplies FP4 with block scales (PTX ISA, mma)."""


def check_target(kernel: str, targets: Sequence[str], architecture: str) -> None:
    """Refuses to run a kernel where its instructions are not; on the CPU they are emulated."""
    if architecture not in ("cpu", *targets):
        raise MissingInstructionError(
            f"{kernel} needs {' or '.join(targets)}, whose tensor cores multiply FP4 with block"
            f" scales by mma.sync (DGX Spark, RTX 50); this GPU is {architecture}"
        )


def architecture_of(capability: tuple[int, int]) -> str:
    """The target to compile for, such as sm_90a for (9, 0)."""
    major, minor = capability
    if major < 8:
        raise KernelError(
            f"a GPU of compute capability {major}.{minor} has no bf16 tensor cores; "
            "these kernels need 8.0 or newer"
        )
    return _TARGETS.get(capability, f"sm_{major}{minor}")


def compile_code(code: KernelCode, arch: str) -> bytes:
    """The cubin of a kernel for a target such as sm_121a, compiled now or taken from the cache.

    It is an ELF file with all entries of that source.
    """
    nvrtc = _nvrtc()
    version = _checked(nvrtc.nvrtcVersion())
    if tuple(version) < _OLDEST_NVRTC:
        installed, least = (".".join(map(str, v)) for v in (version, _OLDEST_NVRTC))
        raise KernelError(f"NVRTC {installed} is too old, {least} is the least; {_INSTALL}")
    folders = list(dict.fromkeys([SOURCES, (SOURCES / code.source).parent]))
    options = [f"--gpu-architecture={arch}", *_OPTIONS]
    options += [f"-D{name}={value}" for name, value in code.defines]
    source = (SOURCES / code.source).read_bytes()
    headers = sorted(path for folder in folders for path in folder.glob("*.cuh"))
    parts = [source, *(path.name.encode() + b"\n" + path.read_bytes() for path in headers)]
    parts += [option.encode() for option in (*options, str(version))]
    key = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
    cubin = kept_compiled(key)
    if cubin is None:
        options += [f"-I{folder}" for folder in folders]
        cubin = _compile(nvrtc, code, arch, source, options)
        keep_compiled(key, cubin)
    return cubin


def _compile(nvrtc: Any, code: KernelCode, arch: str, source: bytes, options: list[str]) -> bytes:
    program = _checked(nvrtc.nvrtcCreateProgram(source, code.source.encode(), 0, [], []))
    try:
        words = [option.encode() for option in options]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(words), words)
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytearray(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
            nvrtc.nvrtcGetProgramLog(program, log)
            reason = _first_error(bytes(log).decode(errors="replace")) or result.name
            raise KernelError(f"{code.label} does not compile for {arch}: {reason}")
        cubin = bytearray(_checked(nvrtc.nvrtcGetCUBINSize(program)))
        _checked(nvrtc.nvrtcGetCUBIN(program, cubin))
        return bytes(cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _first_error(log: str) -> str:
    lines = [line.strip(" \0") for line in log.splitlines()]
    return next((line for line in lines if "error" in line), next(filter(None, lines), ""))


def _nvrtc() -> Any:
    """The bindings, once it is sure that the library behind them loads."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise KernelError(f"NVRTC, the compiler of CUDA C++, is missing; {_INSTALL}") from error
    return nvrtc


def _checked(answer: tuple[Any, ...]) -> Any:
    """What a call of NVRTC returns beside its result."""
    result, *values = answer
    if result.value:
        raise KernelError(f"NVRTC failed: {result.name}")
    return values[0] if len(values) == 1 else tuple(values)
