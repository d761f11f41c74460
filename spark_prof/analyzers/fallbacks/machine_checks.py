"""What is installed on a machine, and what that keeps from running fast on its GPU."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from spark_prof.analyzers.finding import Finding, command, keyed
from spark_prof.rules.environment import UNKNOWN, SettingRow, version_of

_FIRST_WITH_FAMILIES = 10  # major compute capability from which code can be built for a family
_OPTIONAL = re.compile(r"qutlass|flash_?mla|_fa\d|nvshmem|linalg|deep_?gemm", re.I)
"""Libraries that hold no product of a model, or that vLLM loads on the GPUs they are for only."""
_FLASHINFER = ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")
_KNOWS_121 = (12, 9)  # the first CUDA toolkit with the architectures sm_121 and sm_120f


@dataclass(frozen=True)
class Package:
    """A Python distribution; version is empty where it is not installed."""

    name: str
    version: str


@dataclass(frozen=True)
class Library:
    """GPU code in one shared library."""

    path: str  # of the file, from the folder of packages on
    # Of its machine code, such as sm_90a; counted where the suffix is known, as in 35 x sm_120f.
    architectures: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()  # architectures of what the driver can compile
    plain: int = 0  # cubins for the GPU's generation that were built without its own features
    specific: int = 0  # those that were built with them, suffix a or f


@dataclass(frozen=True)
class Machine:
    """One machine as it is now."""

    gpu: str = ""  # what the driver calls its GPU; empty without one
    capability: str = ""  # compute capability, such as 12.1
    driver: str = ""  # version of the driver
    packages: tuple[Package, ...] = ()  # that matter, those that are missing too
    nvcc: str = ""  # path of the CUDA compiler, empty where there is none
    cuda: str = ""  # version of that toolkit
    cupti: str = ""  # path of libcupti, which records kernels
    libraries: tuple[Library, ...] = ()  # with GPU code, of vLLM, FlashInfer and torch
    # Variables in the environment that the installed vLLM does not read.
    settings: tuple[SettingRow, ...] = ()
    lost: tuple[str, ...] = ()  # what could not be looked at, and why

    def version(self, name: str) -> str:
        """The version of a distribution; empty where it is not installed."""
        return next((package.version for package in self.packages if package.name == name), "")


def machine_findings(machine: Machine) -> tuple[Finding, ...]:
    """What on this machine makes vLLM choose slower kernels than its GPU has."""
    findings = (
        *_flashinfer(machine),
        *_toolkit(machine),
        *_plain_builds(machine),
        *_missing_code(machine),
        *_settings(machine),
    )
    return keyed(findings, command("spark-prof", "doctor"))


def _flashinfer(machine: Machine) -> Iterator[Finding]:
    if not machine.version("vllm") or not machine.gpu:
        return
    python = machine.version("flashinfer-python")
    if not python:
        yield Finding(
            "flashinfer-missing", None,
            "vLLM is installed without FlashInfer: its kernels for FP4 and for attention cannot be "
            "chosen.",
            "Install flashinfer-python and flashinfer-cubin of the version that vLLM pins.",
        )  # fmt: skip
        return
    if not machine.nvcc and not machine.version("flashinfer-cubin"):
        yield Finding(
            "flashinfer-missing", None,
            "FlashInfer is installed and vLLM will not use it: there is neither nvcc nor "
            "flashinfer-cubin.",
            f"pip install {_pinned('flashinfer-cubin', python)}, or install a CUDA toolkit and set "
            "CUDA_HOME.",
        )  # fmt: skip
    versions = {name: machine.version(name) for name in _FLASHINFER[1:]}
    for name, version in versions.items():
        if version and version.split("+")[0] != python.split("+")[0]:
            yield Finding(
                "flashinfer-mismatch", None,
                f"{name} {version} does not fit flashinfer-python {python}: FlashInfer refuses it "
                "or compiles anew.",
                f"pip install {_pinned(name, python)}",
                subject=name,
            )  # fmt: skip


def _pinned(package: str, version: str) -> str:
    """What pip is given; a version may be a foreign recording's, and this line is copied."""
    return shlex.quote(f"{package}=={version}")


def _toolkit(machine: Machine) -> Iterator[Finding]:
    version = version_of(machine.cuda)
    if machine.capability == "12.1" and UNKNOWN < version < _KNOWS_121:
        yield Finding(
            "old-toolkit", None,
            f"CUDA {machine.cuda} does not know this GPU (sm_121), nor its family (sm_120f): what "
            "is compiled here is built for plain sm_120, without FP4.",
            "Install CUDA 12.9 or later, 13.0 for what vLLM's wheels are built with.",
        )  # fmt: skip


def _plain_builds(machine: Machine) -> Iterator[Finding]:
    if int(machine.capability.partition(".")[0] or 0) < _FIRST_WITH_FAMILIES:
        return
    for library in machine.libraries:
        if library.plain and not library.specific and not _OPTIONAL.search(library.path):
            yield Finding(
                "plain-build", None,
                f"{library.path} holds {library.plain} cubins for this GPU's family, all built for "
                "the plain architecture: no block-scaled or FP4 products (OMMA, QMMA with E2M1), "
                "no conversion to FP4 in hardware: 129 instructions for two numbers instead of 14 "
                "(assembled with ptxas 13.0 for sm_121 and sm_121a).",
                "Build it for 12.0f or 12.1a (TORCH_CUDA_ARCH_LIST or FLASHINFER_CUDA_ARCH_LIST).",
                subject=library.path.rpartition("/")[2],
            )  # fmt: skip


def _missing_code(machine: Machine) -> Iterator[Finding]:
    number = machine.capability.replace(".", "")
    for library in machine.libraries if number else ():
        runs = library.plain or library.specific or library.ptx or _OPTIONAL.search(library.path)
        if runs or not library.architectures:
            continue
        if not any(_runs(name, number) for name in library.architectures):
            yield Finding(
                "no-gpu-code", None,
                f"{library.path} has no code for compute capability {machine.capability}, and no "
                "PTX that the driver could compile.",
                "Install a wheel for this GPU, or build it with TORCH_CUDA_ARCH_LIST.",
                subject=library.path.rpartition("/")[2],
            )  # fmt: skip


def _runs(architecture: str, number: str) -> bool:
    """Whether machine code for an architecture runs on the compute capability times ten."""
    name = architecture.rpartition("sm_")[2]
    digits = name.rstrip("af")
    if name.endswith("a"):
        return digits == number
    return digits[:-1] == number[:-1] and digits <= number


def _settings(machine: Machine) -> Iterator[Finding]:
    for row in machine.settings:
        yield Finding(
            "ignored-environment-variable", None,
            f"{row.name} is set and the installed vLLM {machine.version('vllm')} does not read it: "
            f"{row.why}.",
            f"Use {row.instead} instead." if row.instead else "Unset it.",
            subject=row.name,
        )  # fmt: skip
