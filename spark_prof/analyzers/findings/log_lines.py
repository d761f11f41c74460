"""Findings that a line of the engine's log makes by itself: one table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_prof.analyzers.fallbacks.audit_rows import Audit, LogRow
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.rule import AuditRule, Look

_LONGEST = 240
_MOST_LINES = 20


@dataclass(frozen=True)
class LineFinding:
    """Lines of a log that are a finding."""

    id: str  # of the finding
    fires: str  # what fires it
    rules: tuple[str, ...]  # ids of the rules that read such lines
    fix: str  # what to do; {detail} stands for what the line names
    page: str = "fallbacks"  # of the explorer


LINE_FINDINGS: tuple[LineFinding, ...] = (
    LineFinding("kernel-fallback", "the log says that a better kernel was not to be had",
        ("simulated-mx", "mxfp8-widened", "no-kernel", "no-moe-backend",
        "activations-not-quantized", "activations-ignored", "mxfp4-activations",
        "flashinfer-unavailable-moe", "marlin-fp4-moe", "int4-fallback", "transformers-model",
        "deepgemm-off", "kernel-failed", "no-image"),
        "VLLM_LOGGING_LEVEL=DEBUG makes vLLM name the reason; from 0.22 on --moe-backend and "
        "--linear-backend ask for another kernel."),
    LineFinding("setting-overridden",
        "the log says that a backend or size that was asked for is not used",
        ("backend-not-for-layer", "kernel-not-forced", "batch-invariant", "block-size"),
        "Leave the setting out where it does not apply, or ask for a backend that has a kernel for "
        "every format of the checkpoint."),
    LineFinding("library-missing",
        "the log says that FlashInfer, nvcc or Triton's kernels are missing", ("flashinfer-missing",
        "flashinfer-disabled", "nvcc-missing", "architecture-unknown", "triton-kernels-missing",
        "sampler-fallback"),
        "Install flashinfer-python and flashinfer-cubin of the version that vLLM pins, and a CUDA "
        "toolkit that knows the GPU (12.9 or later for compute capability 12.1)."),
    LineFinding("missing-moe-config",
        "the log says that the Triton experts have no tuned configuration for the GPU",
        ("default-moe-config",),
        "Make {detail} with vLLM's benchmarks/kernels/benchmark_moe.py --tune, and name its folder "
        "in VLLM_TUNED_CONFIG_FOLDER."),
    LineFinding("default-block-config", "the log says so of the block-scaled Triton GEMM",
        ("default-block-config",),
        "Make {detail} with vLLM's benchmarks/kernels/benchmark_w8a8_block_fp8.py, or try another "
        "kernel with --linear-backend cutlass."),
    LineFinding("padded-weights",
        "the log says that weights or activations are padded to fit a kernel",
        ("marlin-padding", "hidden-padding", "intermediate-padding"),
        "Another tensor-parallel size or backend may need no padding; the conversions of a report "
        "show what padding and cutting take per token."),
    LineFinding("compiled-in-flight",
        "the log says that a kernel was compiled while requests waited", ("compiled-in-flight",),
        "Send requests of every size that you serve before you measure; its time is in no later "
        "step.",
        "steps"),
)  # fmt: skip


def _look(row: LineFinding) -> Look:
    def find(audit: Audit) -> Iterator[Finding]:
        alike: dict[tuple[str, str], list[LogRow]] = {}
        for said in audit.said(*row.rules):
            fix = row.fix.replace("{detail}", said.detail or "a configuration")
            alike.setdefault((said.means, fix), []).append(said)
        for (means, fix), lines in alike.items():
            more = f" And {len(lines) - 1} more lines like it." if len(lines) > 1 else ""
            yield Finding(row.id, None,
                f"{means} The log: {lines[0].text[:_LONGEST]}{more}",
                fix,
                tuple(
                    f"Line {said.line} of the log, {said.count} times: {said.text[:_LONGEST]}"
                    for said in lines[:_MOST_LINES]
                ),
            )  # fmt: skip

    return find


LINES = tuple(AuditRule(row.id, row.fires, _look(row), row.page) for row in LINE_FINDINGS)
