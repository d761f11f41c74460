"""What on a machine is told, and that nothing is told of a good one."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from spark_prof.analyzers.fallbacks.machine_checks import (
    Library,
    Machine,
    Package,
    machine_findings,
)
from spark_prof.rules.environment import SettingRow
from tests.rows import each_row

LIBRARY = Library(
    "vllm/_C.abi3.so", ("9 x sm_90a", "50 x sm_120", "35 x sm_120f"), ("sm_80",), 50, 35
)
GOOD = Machine(
    gpu="NVIDIA GB10",
    capability="12.1",
    packages=(
        Package("vllm", "0.26.0"),
        Package("flashinfer-python", "0.6.12"),
        Package("flashinfer-cubin", "0.6.12"),
        Package("flashinfer-jit-cache", "0.6.12+cu130"),
    ),
    nvcc="/usr/local/cuda/bin/nvcc",
    cuda="13.0",
    libraries=(LIBRARY,),
)


def without(*names: str) -> Machine:
    packages = tuple(package for package in GOOD.packages if package.name not in names)
    return replace(GOOD, packages=packages)


def library(
    *architectures: str, ptx: tuple[str, ...] = (), plain: int = 0, path: str = "x.so"
) -> Machine:
    return replace(GOOD, libraries=(Library(path, architectures, ptx, plain),))


@pytest.mark.parametrize(
    ("machine", "ids"),
    [
        (GOOD, []),
        (Machine(), []),
        (without("flashinfer-python"), ["flashinfer-missing"]),
        (replace(without("flashinfer-cubin"), nvcc=""), ["flashinfer-missing"]),
        (without("flashinfer-cubin"), []),
        (replace(GOOD, packages=(*GOOD.packages[:2], Package("flashinfer-cubin", "0.6.8"))),
         ["flashinfer-mismatch"]),
        (replace(GOOD, cuda="12.8"), ["old-toolkit"]),
        (replace(GOOD, cuda="12.9"), []),
        (replace(GOOD, cuda="12.8", capability="9.0", libraries=()), []),
        (library("50 x sm_120", plain=50), ["plain-build"]),
        (library("99 x sm_120", plain=99, path="torch/lib/libtorch_cuda_linalg.so"), []),
        (replace(library("99 x sm_90", plain=99), capability="9.0"), []),
        (library("9 x sm_90a"), ["no-gpu-code"]),
        (library("9 x sm_90a", path="vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so"), []),
        (library("9 x sm_90a", ptx=("sm_80",)), []),
        (library("3 x sm_120a"), ["no-gpu-code"]),
        (replace(GOOD, settings=(SettingRow("VLLM_X", "1", "ignored", "why", ""),)),
         ["ignored-environment-variable"]),
    ],
)  # fmt: skip
def test_findings(machine: Machine, ids: list[str]) -> None:
    found = machine_findings(machine)
    assert [finding.id for finding in found] == ids
    assert all(finding.text and finding.fix for finding in found)


@each_row("version", ["0.6; touch x", "0.6'; touch x; '", "$(touch x)", "0.6\ntouch x"])
def test_a_version_is_one_word_of_the_line_for_pip(version: str) -> None:
    packages = (GOOD.packages[0], Package("flashinfer-python", version))
    for machine in (
        replace(GOOD, packages=packages, nvcc=""),
        replace(GOOD, packages=(*packages, Package("flashinfer-cubin", "0.5"))),
    ):
        [found] = machine_findings(machine)
        words = shlex.split(found.fix.partition(", or ")[0])
        assert words == ["pip", "install", f"flashinfer-cubin=={version}"]
