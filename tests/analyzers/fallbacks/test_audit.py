"""The audit of whole runs: three witnesses, the checkpoint, causes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_prof.analyzers.fallbacks.audit import audit_of_log
from spark_prof.analyzers.fallbacks.audit_rows import AuditRow
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.summary import summarize
from spark_prof.traces.assemble import open_bundle
from tests.analyzers.fallbacks.runs import (
    A16_FIRST,
    CUTLASS,
    H100,
    MARLIN,
    W4A4,
    W4A16,
    facts,
    log,
    module,
    report,
)
from tests.rows import each_row

DATA = Path(__file__).parents[2] / "data"
NATIVE = "FlashInferCutlassNvFp4LinearKernel"
DENSE = "MarlinNvFp4LinearKernel"
OTHER = "CutlassNvFp4LinearKernel"


def row(found: Report) -> AuditRow:
    assert found.audit is not None
    (only,) = found.audit.rows
    return only


def test_a_native_kernel_needs_no_cause(tmp_path: Path) -> None:
    found = row(report(tmp_path, module(NATIVE), CUTLASS))
    assert (found.checkpoint, found.executed) == ("W4A4 nvfp4", "W4A4 nvfp4")
    assert (found.cause, found.conflict) == ("", "")
    assert [w.who for w in found.witnesses] == ["engine", "trace"]


@each_row(
    ("layer", "given", "lines", "cause", "words"),
    [
        (DENSE, facts(model=W4A16), (), "scheme", "16-bit"),
        (DENSE, facts(gpu=H100), (), "architecture", "10.0"),
        (DENSE, facts(linear_backend="marlin"), (), "forced", "leave --linear-backend out"),
        (DENSE, facts(vllm="0.20.0", environment={"VLLM_NVFP4_GEMM_BACKEND": "marlin"}), (),
         "forced", "unset VLLM_NVFP4_GEMM_BACKEND"),
        (DENSE, facts(environment={"VLLM_DISABLED_KERNELS": f"{NATIVE},{OTHER}"}), (), "disabled",
         "VLLM_DISABLED_KERNELS"),
        (A16_FIRST, facts(vllm="0.29.0"), (), "order", "VLLM_DISABLED_KERNELS=" + A16_FIRST),
        (A16_FIRST, facts(vllm="0.31.0"), (), "unknown", "--linear-backend flashinfer_cutlass"),
        (DENSE, facts(),
         ("FlashInfer unavailable since nvcc was not found and not using downloaded cubins",),
         "install", "flashinfer-cubin"),
        (DENSE, facts(), (" - CutlassNvFp4LinearKernel: CUTLASS FP4 is not built",), "refused",
         "CUTLASS FP4 is not built"),
        (DENSE, facts(), (), "unknown", "VLLM_LOGGING_LEVEL=DEBUG"),
        ("EmulationNvFp4LinearKernel", facts(), (), "emulation", "--linear-backend marlin"),
        ("EmulationNvFp4LinearKernel", facts(linear_backend="emulation"), (), "forced",
         "leave that flag out"),
    ],
)  # fmt: skip
def test_causes(
    tmp_path: Path, layer: str, given: dict[str, object], lines: tuple[str, ...], cause: str,
    words: str,
) -> None:  # fmt: skip
    found = row(report(tmp_path, module(layer), MARLIN, given, log(*lines) if lines else None))
    assert found.cause == cause
    assert words in f"{found.why} {found.fix}"
    assert found.checkpoint in ("W4A4 nvfp4", "W4A16 nvfp4")


def test_quantized_layers_that_run_unquantized(tmp_path: Path) -> None:
    found = row(report(tmp_path, module("", "UnquantizedLinearMethod"), "nvjet_sm121_x", facts()))
    assert (found.cause, found.executed) == ("unquantized", "16-bit")
    shutil.rmtree(tmp_path / "bundle")
    plain = facts(model={"quantization_config": {**W4A4["quantization_config"], "ignore": [
        "model.layers.0.self_attn*"]}})  # fmt: skip
    assert row(report(tmp_path, module("", "UnquantizedLinearMethod"), "x", plain)).cause == ""


def test_a_trace_that_contradicts_the_engine(tmp_path: Path) -> None:
    found = row(report(tmp_path, module(NATIVE), MARLIN))
    assert "the engine says FlashInfer CUTLASS" in found.conflict
    assert "the trace Marlin" in found.conflict


def test_a_log_that_contradicts_the_engine(tmp_path: Path) -> None:
    said = log("Using MarlinNvFp4LinearKernel for NVFP4 GEMM")
    assert "the log Marlin" in row(report(tmp_path, module(NATIVE), CUTLASS, said=said)).conflict


def test_a_log_with_a_draft_model_of_its_own_does_not(tmp_path: Path) -> None:
    said = log(
        "Using MarlinNvFp4LinearKernel for NVFP4 GEMM",
        "Using FlashInferCutlassNvFp4LinearKernel for NVFP4 GEMM",
        "Using MarlinMxFp4LinearKernel for MXFP4 GEMM",
    )
    assert row(report(tmp_path, module(NATIVE), CUTLASS, said=said)).conflict == ""


def test_sizes_of_steps_against_graphs(tmp_path: Path) -> None:
    given = facts(cudagraph_capture_sizes="[1, 2, 4]")
    found = report(tmp_path, module(NATIVE), CUTLASS, given, tokens=(1, 3, 3, 6))
    assert found.audit is not None
    assert [(b.tokens, b.steps, b.graph) for b in found.audit.batches] == [
        (1, 1, 1), (3, 2, 4), (6, 1, None),
    ]  # fmt: skip


def test_a_log_alone() -> None:
    audit = audit_of_log(
        log(
            "Using FlashInferCutlassNvFp4LinearKernel for NVFP4 GEMM",
            "Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['MARLIN'].",
            "Using TRITON Unquantized MoE backend out of potential backends: ['TRITON'].",
        ),
        "GB10 (DGX Spark)",
        "12.1",
    )
    assert [(r.layer, r.executed, r.cause) for r in audit.rows] == [
        ("linear", "W4A4 nvfp4", ""), ("moe", "W4A16 nvfp4", "unknown"), ("moe", "16-bit", ""),
    ]  # fmt: skip


def test_the_layer_of_marlin_is_told_from_its_warning() -> None:
    warning = (
        "Your GPU does not have native support for FP4 computation but FP4 quantization is being "
        "used. Weight-only FP4 compression will be used leveraging the Marlin kernel."
    )
    said = log(f"WARNING 06-01 21:40:20 [marlin.py:34] {warning}")
    assert [r.layer for r in audit_of_log(said).rows] == ["linear"]
    assert audit_of_log(log(warning)).rows == ()


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("h100-*-*")))
def test_recordings_of_an_h100(name: str) -> None:
    """Healthy runs: witnesses agree, and weight-only FP4 is the architecture's or the scheme's."""
    audit = summarize(open_bundle(DATA / name)).audit
    assert audit is not None
    assert audit.conflicts == ()
    assert audit.settings == ()
    assert {row.cause for row in audit.rows} <= {"", "architecture", "scheme"}
    quantized = [row for row in audit.rows if row.executed != "16-bit"]
    assert quantized
    assert all({w.who for w in row.witnesses} == {"engine", "trace"} for row in audit.rows)


@each_row(
    ("algorithms", "checkpoint", "cause"),
    [
        (("W4A16_NVFP4",), "W4A16 nvfp4", "scheme"),
        (("NVFP4",), "W4A4 nvfp4", "unknown"),
        (("FP8", "NVFP4"), "W4A4 nvfp4", "unknown"),
        # A mixed checkpoint names all that it may hold: which of them the layers are is open.
        (("FP8", "NVFP4", "W4A16_NVFP4"), "", "unknown"),
        (("NEWER",), "", "unknown"),
    ],
)
def test_a_log_may_tell_the_checkpoint(
    algorithms: tuple[str, ...], checkpoint: str, cause: str
) -> None:
    lines = [f"Detected ModelOpt NVFP4 checkpoint (quant_algo={name})." for name in algorithms]
    said = log(*lines, "Using MarlinNvFp4LinearKernel for NVFP4 GEMM")
    (found,) = audit_of_log(said, "NVIDIA GB10", "12.1").rows
    assert (found.checkpoint, found.cause) == (checkpoint, cause)


@pytest.mark.parametrize(
    ("vllm", "fix"),
    [("0.26.0", "--quantization_config.moe.activation mxfp8"), ("0.18.1", "MXFP4_MXFP8_CUTLASS=1")],
)
def test_gpt_oss_on_marlin_is_no_fault_and_says_what_else_there_is(vllm: str, fix: str) -> None:
    said = log(
        f"Initializing a V1 LLM engine (v{vllm}) with config: model='m', quantization=mxfp4",
        "Using 'MARLIN' Mxfp4 MoE backend.",
    )
    (found,) = audit_of_log(said, "NVIDIA GB10", "12.1").rows
    assert (found.executed, found.cause) == ("W4A16 mxfp4", "scheme")
    assert fix in found.fix
    assert audit_of_log(said, "H100", "9.0").rows[0].fix == ""
