"""Rules about machine code: it contradicts a name, or lacks instructions that the GPU has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from spark_prof.analyzers.classify.classifier import classify, short_name
from spark_prof.analyzers.classify.code_rows import CodeRow, Conflict
from spark_prof.analyzers.finding import NamedKernel
from spark_prof.analyzers.findings.rule import Observation, ms_per_token, rule
from spark_prof.analyzers.model import Report

_NAMED = 3
_FP4 = re.compile(r"fp4|e2m1|float4", re.IGNORECASE)
_ARCHITECTURE = re.compile(r"sm_(\d+)")
_FIRST_WITH_FP4 = 100
_DOUBLES = 2
_BUILD = (
    "Build the library with a suffix: TORCH_CUDA_ARCH_LIST=12.0f (CUDA 12.9 or newer) serves "
    "compute capability 12.0 and 12.1, 12.1a a GB10 alone; with nvcc "
    "-gencode arch=compute_120f,code=sm_120f."
)


def _without_fp4(report: Report) -> list[CodeRow]:
    """Kernels that quantize to FP4 or multiply it by no instruction that an a or f build has.

    Those that only unpack weights to 16 bits are none of them.
    """
    return [row for row in report.machine_code if _works_on_fp4(row) and not _has_fp4(row)]


def _works_on_fp4(row: CodeRow) -> bool:
    number = _ARCHITECTURE.fullmatch(row.architecture)
    if number is None or int(number[1]) < _FIRST_WITH_FP4 or not _FP4.search(row.name):
        return False
    label = classify(row.name)
    return not (label.weights == "fp4" and label.precision in ("bf16", "fp16"))


def _has_fp4(row: CodeRow) -> bool:
    return "fp4" in (*row.reads, *row.writes, *row.precisions) or any(
        "E2M1" in product.opcode or product.opcode.startswith("UTC") for product in row.products
    )


@rule("software-fp4-conversion", "kernels",
      "kernels for sm_100 or newer whose name has FP4, with F2F.F64.F32 and no FP4 "
      "instruction")  # fmt: skip
def _software_conversion(report: Report) -> Iterator[Observation]:
    rows = [row for row in _without_fp4(report) if row.doubles >= _DOUBLES]
    if rows:
        yield Observation(ms_per_token(report, _decode_us(rows)),
            f"{_kernels(rows)} convert to FP4 in software, by way of double precision "
            f"(F2F.F64.F32), in {_share(report, rows)} of the time: {_targets(rows)}.",
            _BUILD,
            _facts(rows),
            kernels=_named(rows),
        )  # fmt: skip


@rule("plain-architecture-build", "kernels",
      "such kernels built for sm_120 and not sm_120f or sm_121a, without an FP4 "
      "instruction")  # fmt: skip
def _plain_build(report: Report) -> Iterator[Observation]:
    rows = [row for row in _without_fp4(report) if row.suffix == "plain" and row.doubles < _DOUBLES]
    if rows:
        yield Observation(ms_per_token(report, _decode_us(rows)),
            f"{_kernels(rows)} that work on FP4 were built without a suffix, and so without this "
            f"GPU's FP4 instructions: {_targets(rows)}.",
            _BUILD,
            _facts(rows),
            kernels=_named(rows),
        )  # fmt: skip


def _emulated(report: Report) -> list[Conflict]:
    """Products of fp8 that are made of fp16 ones."""
    by_name = {row.name: row for row in report.machine_code}
    return [
        row
        for row in report.conflicts
        if row.evidence == "sass"
        and (row.by_name, row.found) == ("tensor-core fp8", "tensor-core fp16")
        and "fp8" in by_name[row.name].reads
    ]


@rule("emulated-fp8", "kernels",
      "kernels with FP8 in their name whose code unpacks FP8 and multiplies FP16")  # fmt: skip
def _emulated_fp8(report: Report) -> Iterator[Observation]:
    emulated = _emulated(report)
    if not emulated:
        return
    yield Observation(None,
        f"{_kernels(emulated)} of {_share(report, emulated)} of the time multiply FP8 by unpacking "
        f"it to FP16 first: {_list([row.name for row in emulated])}. A warp's FP8 product "
        "(mma.sync) is not in this GPU's instruction set.",
        "Take a backend with the warp group's FP8 product (CUTLASS or DeepGEMM), and leave "
        "VLLM_MARLIN_INPUT_DTYPE=fp8 unset.",
        tuple(f"{short_name(row.name)}: {row.basis}" for row in emulated[:_NAMED]),
        kernels=_named(emulated),
    )  # fmt: skip


@rule("evidence-conflict", "kernels",
      "kernels whose counters or machine code say another engine or precision than "
      "their name")  # fmt: skip
def _conflicts(report: Report) -> Iterator[Observation]:
    conflicts = [row for row in report.conflicts if row not in _emulated(report)]
    if not conflicts:
        return
    contradictions = "; ".join(
        f"{short_name(row.name)} says {row.by_name}, its "
        f"{'counters' if row.evidence == 'counter' else 'machine code'} {row.found} ({row.basis})"
        for row in conflicts[:_NAMED]
    )
    rest = f"; and {len(conflicts) - _NAMED} more" if len(conflicts) > _NAMED else ""
    yield Observation(None,
        f"{_kernels(conflicts)} of {_share(report, conflicts)} of the time run elsewhere, or in "
        f"another precision, than their names say: {contradictions}{rest}.",
        "Believe the report, which goes by the counters or the machine code, and not the names; "
        "where a backend was chosen for what its name says, choose another.",
        tuple(f"{short_name(row.name)}: {row.basis}" for row in conflicts[:_NAMED]),
        kernels=_named(conflicts),
    )  # fmt: skip


def _decode_us(rows: Sequence[CodeRow]) -> float:
    return sum({row.name: row.decode_us for row in rows}.values())


def _share(report: Report, rows: Sequence[CodeRow | Conflict]) -> str:
    whole = sum(row.us for row in report.kernels)
    part_us = sum({row.name: row.us for row in rows}.values())
    return f"{100 * part_us / whole:.1f} %" if whole else "an unknown part"


def _kernels(rows: Sequence[CodeRow | Conflict]) -> str:
    number = len({row.name for row in rows})
    return "1 kernel" if number == 1 else f"{number} kernels"


def _named(rows: Sequence[CodeRow | Conflict]) -> tuple[NamedKernel, ...]:
    """The kernels that text and evidence name: those of so many different short names."""
    names = {short_name(row.name): row.name for row in reversed(rows)}
    return tuple(NamedKernel(name) for name in [*reversed(names.values())][:_NAMED])


def _targets(rows: Sequence[CodeRow]) -> str:
    return _list([f"{short_name(row.name)} ({row.target})" for row in rows])


def _facts(rows: Sequence[CodeRow]) -> tuple[str, ...]:
    return tuple(
        f"{short_name(row.name)}: {row.instructions:,} instructions for {row.target}, "
        f"{row.doubles} conversions to double precision, no FP4 instruction"
        for row in rows[:_NAMED]
    )


def _list(names: Sequence[str]) -> str:
    short_names = list(dict.fromkeys(short_name(name) for name in names))
    rest = [f"{len(short_names) - _NAMED} more"] if len(short_names) > _NAMED else []
    return ", ".join([*short_names[:_NAMED], *rest])
