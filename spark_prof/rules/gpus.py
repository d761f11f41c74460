"""Bandwidth, arithmetic and sizes of GPUs, and how to find one by what a driver calls it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_KIB = 1024


@dataclass(frozen=True)
class SmLimits:
    """Limits of one multiprocessor.

    From "Technical Specifications per Compute Capability" in the CUDA programming guide and, of
    the same figures, CCCL's cuda/__device/arch_traits.h. Allocation granularities are those of the
    occupancy calculator, cuda_occupancy.h.
    """

    shared_bytes: int  # shared memory of all blocks together
    block_shared_bytes: int  # most shared memory of one block, by opt-in, without what is reserved
    threads: int  # resident threads
    blocks: int  # resident blocks
    registers: int = 64 * _KIB  # 32-bit registers
    register_granularity: int = 256  # registers are given out to a warp in multiples of this
    # Shared memory is given out to a block in multiples of this, in bytes.
    shared_granularity: int = 128
    reserved_shared_bytes: int = _KIB  # what the driver takes of each block's shared memory
    partitions: int = 4  # schedulers, among which the warps and their registers are split

    @property
    def warps(self) -> int:
        """Resident warps of 32 threads."""
        return self.threads // 32


def _limits(shared_kib: int, threads: int, blocks: int) -> SmLimits:
    """Limits from compute capability 8.0 on: each block pays 1 KiB for the driver."""
    return SmLimits(shared_kib * _KIB, (shared_kib - 1) * _KIB, threads, blocks)


def _older(shared_kib: int, threads: int, blocks: int) -> SmLimits:
    """Limits before compute capability 8.0: nothing reserved, coarser pieces."""
    size = shared_kib * _KIB
    return SmLimits(size, size, threads, blocks, shared_granularity=256, reserved_shared_bytes=0)


SM_LIMITS: Mapping[str, SmLimits] = {
    "7.0": _older(96, 2048, 32),
    "7.2": _older(96, 2048, 32),
    "7.5": _older(64, 1024, 16),
    "8.0": _limits(164, 2048, 32),
    "8.6": _limits(100, 1536, 16),
    "8.7": _limits(164, 1536, 16),
    "8.9": _limits(100, 1536, 24),
    "9.0": _limits(228, 2048, 32),
    "10.0": _limits(228, 2048, 32),
    "10.3": _limits(228, 2048, 32),
    "11.0": _limits(228, 1536, 24),
    "12.0": _limits(100, 1536, 24),
    # A GB10 reported the same: 65,536 registers, 102,400 bytes, 101,376 a block, 1,536 threads
    # (christopherowen/spark-vllm-mxfp4-docker, SM121_MOE_TILE_PROFILING_FINDINGS.md).
    "12.1": _limits(100, 1536, 24),
}
"""Limits by compute capability, as a driver writes it."""


_MB = 1024 * 1024


@dataclass(frozen=True)
class SourcedFigure:
    """A number and who says so."""

    value: float
    source: str


@dataclass(frozen=True)
class Gpu:
    """One model of GPU."""

    name: str  # what people call it
    short: str  # its name on the command line
    pattern: str  # searched in what a driver calls it, in lower case with single blanks
    compute_capability: str  # such as 12.1
    memory_bandwidth: SourcedFigure  # of its data sheet, in bytes per second
    memory_bytes: int  # what it is sold with, in units of 10^9; a little more is there
    multiprocessors: int  # how many of them are enabled
    l2_bytes: int | None  # size of its level-2 cache, None where the sources do not say
    clock_hz: int | None  # boost clock, None where the sources do not say
    # Operations per second by precision, a multiply-add counted as two. On tensor cores, of dense
    # matrices, accumulated in FP32 (int8: INT32); `fp32` is on CUDA cores. A precision that it has
    # no instructions for is left out.
    peaks: Mapping[str, SourcedFigure]
    source: str  # of all figures that carry none of their own
    # What a kernel that only reads reached, in bytes per second; None where nobody said.
    read_bandwidth: SourcedFigure | None = None

    @property
    def bandwidth(self) -> SourcedFigure:
        """What a kernel that reads reaches, else the data sheet's."""
        return self.read_bandwidth or self.memory_bandwidth


def _gpu(
    named: tuple[str, str, str, str],
    source: str,
    memory: tuple[int, float],
    sizes: tuple[int, int | None, int | None],
    teraops: Mapping[str, float],
    read: SourcedFigure | None = None,
) -> Gpu:
    size, bandwidth = memory
    multiprocessors, l2, clock = sizes
    return Gpu(
        *named,
        memory_bandwidth=SourcedFigure(bandwidth * 1e9, source),
        memory_bytes=size * 1_000_000_000,
        multiprocessors=multiprocessors,
        l2_bytes=None if l2 is None else l2 * _MB,
        clock_hz=None if clock is None else clock * 1_000_000,
        peaks={k: SourcedFigure(v * 1e12, source) for k, v in teraops.items()},
        source=source,
        read_bandwidth=read,
    )


def _rates(
    fp32: float, bf16: float, *, fp8: float = 0, fp4: float = 0, int8: float = 0
) -> dict[str, float]:
    """Peaks of a GPU whose FP16 is as fast as BF16 and whose TF32 is half as fast."""
    narrow = {"fp8": fp8, "fp4": fp4, "int8": int8}
    rates = {precision: rate for precision, rate in narrow.items() if rate}
    return {"bf16": bf16, "fp16": bf16, "tf32": bf16 / 2, **rates, "fp32": fp32}


_RTX_50 = "NVIDIA RTX Blackwell GPU architecture white paper, appendix A"
_RTX_PRO = "NVIDIA RTX Blackwell PRO GPU architecture white paper"
_RTX_40 = "NVIDIA Ada GPU architecture white paper, appendix A"
_H100 = "NVIDIA H100 data sheet and Hopper architecture white paper; sparse figures halved"
_H200 = "NVIDIA H200 data sheet, sparse figures halved; Hopper architecture white paper"
_A100 = "NVIDIA A100 data sheet and Ampere architecture white paper"
_LONGEST = 200

GPUS: tuple[Gpu, ...] = (
    _gpu(("GB10 (DGX Spark)", "gb10", r"\bgb10\b|\bspark\b", "12.1"),
        "NVIDIA DGX Spark data sheet (273 GB/s; 1 PFLOP of FP4 with sparsity, halved), Hot Chips "
        "2025 (31 TFLOPS of FP32), huggingface/kernels#283 (48 multiprocessors, 24 MB of L2)",
        (128, 273), (48, 24, None), {"fp4": 500, "fp32": 31}, read=SourcedFigure(231e9,
        "reported for a kernel that only reads, 231 to 234 GB/s: antirez/ds4#773")),
    _gpu(("RTX 5090", "rtx5090", r"rtx 5090(?! d| laptop)", "12.0"), _RTX_50, (32, 1792),
        (170, 96, 2407), _rates(104.8, 209.5, fp8=419, fp4=1676, int8=838)),
    _gpu(("RTX 5080", "rtx5080", r"rtx 5080(?! laptop)", "12.0"), _RTX_50, (16, 960),
        (84, 64, 2617), _rates(56.3, 112.6, fp8=225.1, fp4=900.4, int8=450.2)),
    _gpu(("RTX 5070 Ti", "rtx5070ti", r"rtx 5070 ti(?! laptop)", "12.0"), _RTX_50, (16, 896),
        (70, 48, 2452), _rates(43.9, 87.9, fp8=175.8, fp4=703, int8=351.5)),
    _gpu(("RTX 5070", "rtx5070", r"rtx 5070(?! ti| laptop)", "12.0"), _RTX_50, (12, 672),
        (48, 48, 2512), _rates(30.9, 61.7, fp8=123.5, fp4=493.9, int8=246.9)),
    _gpu(("RTX PRO 6000 Blackwell", "pro6000", r"rtx pro 6000 blackwell(?! max-q)", "12.0"),
        _RTX_PRO, (96, 1792), (188, 128, 2617),
        _rates(126, 503.8, fp8=1007.6, fp4=2015.2, int8=1007.6)),
    _gpu(("RTX PRO 6000 Blackwell Max-Q", "pro6000maxq", r"rtx pro 6000 blackwell max-q", "12.0"),
        "NVIDIA RTX PRO 6000 Blackwell Max-Q data sheet (110 TFLOPS of FP32, 3,511 AI TOPS of FP4 "
        "with sparsity, halved)",
        (96, 1792), (188, 128, None), {"fp4": 1755.5, "fp32": 110}),
    _gpu(("H100 SXM", "h100", r"h100 (?:80gb hbm3|sxm)|h100-sxm|^(?:nvidia )?h100$", "9.0"), _H100,
        (80, 3350), (132, 50, 1830), _rates(66.9, 989.4, fp8=1978.9, int8=1978.9),
        read=SourcedFigure(3.03e12,
            "measured in this project: a float32 sum on an H100 80GB HBM3")),
    _gpu(("H100 PCIe", "h100pcie", r"h100[ -]pcie", "9.0"), _H100, (80, 2039), (114, 50, 1620),
        _rates(51.2, 756, fp8=1513, int8=1513)),
    _gpu(("H100 NVL", "h100nvl", r"h100[ -]nvl", "9.0"), _H100, (94, 3938), (132, 50, None),
        _rates(60, 835.5, fp8=1670.5, int8=1670.5)),
    _gpu(("H200 SXM", "h200", r"\bh200(?! ?-?nvl)\b", "9.0"), _H200, (141, 4800), (132, 50, None),
        _rates(67, 989.5, fp8=1979, int8=1979)),
    _gpu(("H200 NVL", "h200nvl", r"\bh200[ -]nvl", "9.0"), _H200, (141, 4800), (132, 50, None),
        _rates(60, 835.5, fp8=1670.5, int8=1670.5)),
    _gpu(("B200", "b200", r"\bb200\b", "10.0"),
        "NVIDIA DGX B200 and HGX B200 data sheets, an eighth each, sparse figures halved; "
        "Blackwell tuning guide (126 MB of L2); what its driver reports (148 multiprocessors)",
        (180, 8000), (148, 126, None), _rates(75, 2250, fp8=4500, fp4=9000, int8=4500)),
    _gpu(("A100 80GB SXM", "a100", r"a100-sxm4?-80gb|^(?:nvidia )?a100$", "8.0"), _A100, (80, 2039),
        (108, 40, 1410), _rates(19.5, 312, int8=624)),
    _gpu(("A100 80GB PCIe", "a100pcie", r"a100 80gb pcie|a100-pcie-80gb", "8.0"), _A100, (80, 1935),
        (108, 40, 1410), _rates(19.5, 312, int8=624)),
    _gpu(("A100 40GB", "a100-40gb", r"a100-(?:sxm4|pcie)-40gb", "8.0"), _A100, (40, 1555),
        (108, 40, 1410), _rates(19.5, 312, int8=624)),
    _gpu(("L40S", "l40s", r"\bl40s\b", "8.9"),
        "NVIDIA L40S data sheet, sparse figures halved; Ada GPU architecture white paper",
        (48, 864), (142, 96, 2520), _rates(91.6, 362.05, fp8=733, int8=733)),
    _gpu(("RTX 4090", "rtx4090", r"rtx 4090(?! d| laptop)", "8.9"), _RTX_40, (24, 1008),
        (128, 72, 2520), _rates(82.6, 165.2, fp8=330.3, int8=660.6)),
)  # fmt: skip
"""Every GPU that is known, the one that this project is for first."""


def gpu_called(short: str) -> Gpu | None:
    """The GPU of that command-line name, however it is spelt: rtx5090, RTX-5090, PRO 6000."""
    letters = _letters(short)
    return next((gpu for gpu in GPUS if _letters(gpu.short) == letters), None)


def find_gpu(name: str, compute_capability: str | None = None) -> Gpu | None:
    """The GPU that a driver calls so, None for one that the table does not have.

    Its compute capability must agree where that is known.
    """
    spelt = " ".join(name.lower().replace("_", " ").split())[:_LONGEST]
    gpu = gpu_called(name) or next((row for row in GPUS if re.search(row.pattern, spelt)), None)
    if gpu and compute_capability and gpu.compute_capability != compute_capability:
        return None
    return gpu


def _letters(text: str) -> str:
    return "".join(c for c in text.lower()[:_LONGEST] if c.isalnum())


_GIB = 1 << 30


@dataclass(frozen=True)
class AmdGpu:
    """An accelerator, or several that cannot be told apart."""

    name: str
    architecture: tuple[int, int]  # major and minor number
    compute_units: int
    memory_gb: int  # of a device; a driver keeps some of it


AMD_GPUS = (
    AmdGpu("AMD Instinct MI210 or MI250", (9, 0), 104, 64),
    AmdGpu("AMD Instinct MI250X", (9, 0), 110, 64),
    AmdGpu("AMD Instinct MI100", (9, 0), 120, 32),
    AmdGpu("AMD Instinct MI300A", (9, 4), 228, 128),
    AmdGpu("AMD Instinct MI300X", (9, 4), 304, 192),
    AmdGpu("AMD Instinct MI325X", (9, 4), 304, 256),
    AmdGpu("AMD Instinct MI308X", (9, 4), 80, 192),
    AmdGpu("AMD Instinct MI350X or MI355X", (9, 5), 256, 288),
)

_LEAST = 0.9  # of its memory that a device reports


def amd_gpu(major: int, minor: int, compute_units: int, memory_bytes: int) -> str:
    """The name of the accelerator with those figures, empty where no row fits."""
    memory = memory_bytes / 1e9
    fitting = (
        gpu.name
        for gpu in AMD_GPUS
        if (gpu.architecture, gpu.compute_units) == ((major, minor), compute_units)
        and _LEAST * gpu.memory_gb <= memory <= gpu.memory_gb * _GIB / 1e9
    )
    return next(fitting, "")
