"""Each rule of the audit: a run that makes it fire, and one that does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_prof.analyzers.fallbacks.audit import audit_of_log
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.audit_findings import FALLBACKS, findings_of_audit
from spark_prof.analyzers.model import Report
from tests.analyzers.fallbacks.runs import (
    CUTLASS,
    GB10,
    MARLIN,
    facts,
    log,
    module,
    report,
)
from tests.rows import each_row

NATIVE = "FlashInferCutlassNvFp4LinearKernel"
DENSE = "MarlinNvFp4LinearKernel"
WARNING = (
    "Your GPU does not have native support for FP4 computation but FP4 quantization is being used."
)
IDS = {rule.id for rule in FALLBACKS}


def own(found: Report | tuple[Finding, ...]) -> dict[str, Finding]:
    """What the rules of this part found, by id."""
    findings = found.findings if isinstance(found, Report) else found
    return {finding.id: finding for finding in findings if finding.id in IDS}


@pytest.fixture
def healthy(tmp_path: Path) -> Report:
    given = facts(cudagraph_capture_sizes="[1, 2, 4]", enable_prefix_caching="True")
    return report(tmp_path, module(NATIVE), CUTLASS, given)


def test_a_healthy_run_has_none(healthy: Report) -> None:
    assert own(healthy) == {}


@pytest.mark.slow
@each_row(
    ("layer", "ran", "given", "rule", "fix"),
    [
        (DENSE, MARLIN, facts(), "weight-only-fp4", "--linear-backend flashinfer_cutlass"),
        (DENSE, MARLIN, facts(linear_backend="marlin"), "marlin-forced", "Leave --linear-backend"),
        ("EmulationNvFp4LinearKernel", "x", facts(), "emulation-backend",
         "--linear-backend marlin"),
        (NATIVE, MARLIN, facts(), "witness-conflict", "Believe the trace"),
        (NATIVE, CUTLASS, facts(enforce_eager="True"), "eager-mode", "--enforce-eager"),
        (NATIVE, CUTLASS, facts(enable_prefix_caching="False"), "prefix-caching-off",
         "--enable-prefix-caching"),
        (NATIVE, CUTLASS, facts(environment={"VLLM_USE_FLASHINFER_MOE_FP4": "1"}),
         "ignored-environment-variable", "--moe-backend flashinfer_cutlass"),
    ],
)  # fmt: skip
def test_a_recording_makes_it_fire(
    tmp_path: Path, layer: str, ran: str, given: dict[str, object], rule: str, fix: str
) -> None:
    found = own(report(tmp_path, module(layer), ran, given))
    assert set(found) == {rule}
    assert fix in found[rule].fix
    assert found[rule].evidence
    if rule == "witness-conflict":  # each with its own words
        assert {line.split()[2] for line in found[rule].evidence} == {"engine", "trace"}


def test_what_a_weight_only_layer_reaches_is_evidence(tmp_path: Path) -> None:
    layer = {**module(DENSE), "bytes": 50_000_000}
    found = own(report(tmp_path, layer, MARLIN, facts()))["weight-only-fp4"]
    # 50 MB in 0.4 us of each step: nonsense that shows how it is calculated.
    assert any("50 MB of qkv weights in 0.40 us, 125,000 GB/s" in line for line in found.evidence)
    assert "not automatically slower" in found.text


@each_row(
    ("sizes", "tokens", "words", "fix"),
    [
        ("[1, 2, 4]", (1, 2, 4), "", ""),
        ("[1, 2, 4]", (5, 6, 4), "more than the largest", "1 2 4 5 6"),
        ("[1, 2, 4, 8, 12]", (9, 9, 9), "", ""),
        ("[1, 8]", (3, 3, 1), "3 to 8 tokens", "1 3 8"),
    ],
)
def test_graph_sizes(
    tmp_path: Path, sizes: str, tokens: tuple[int, ...], words: str, fix: str
) -> None:
    given = facts(cudagraph_capture_sizes=sizes)
    findings = own(report(tmp_path, module(NATIVE), CUTLASS, given, tokens=tokens))
    found = findings.get("graph-sizes-missing")
    assert bool(found) is bool(words)
    assert found is None or (words in found.text and found.fix.endswith(fix))


def test_eager_brings_at_most_the_gap(tmp_path: Path) -> None:
    found = report(tmp_path, module(NATIVE), CUTLASS, facts(enforce_eager="True"))
    assert found.steps.host_gap_us is not None
    eager = own(found)["eager-mode"]
    assert eager.ms_per_token == pytest.approx(found.steps.host_gap_us.median / 1e3)


@pytest.mark.slow
@each_row(
    ("line", "rule"),
    [
        (WARNING, "misleading-fp4-warning"),
        ("Using default MoE config. Performance might be sub-optimal! Config file not found at "
         "/x/E=256,N=512,device_name=NVIDIA_GB10.json", "missing-moe-config"),
        ("Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! Config "
         "file not found at /x/N=4096,K=1024,device_name=NVIDIA_GB10.json", "default-block-config"),
        ("Falling back to Marlin FP4 MoE kernel.", "kernel-fallback"),
        ("--linear-backend=cutlass has no kernel for this linear layer type; using automatic "
         "selection for that layer type.", "setting-overridden"),
        ("FlashInfer unavailable since package was not found", "library-missing"),
        ("Marlin requires thread-tile padding for some weight shapes in this model.",
         "padded-weights"),
        ("Triton kernel JIT compilation during inference: _topk", "compiled-in-flight"),
        ("Unknown vLLM environment variable detected: VLLM_MXFP4_BACKEND",
         "ignored-environment-variable"),
        ("Cudagraph mode FULL is not compatible with compilation mode 0.Overriding to NONE.",
         "graphs-downgraded"),
        ("Enforce eager set, disabling torch.compile and CUDAGraphs.", "eager-mode"),
        ("NVFP4 linear falling back to the slow and unoptimized emulation backend as no optimized "
         "backend is available", "emulation-backend"),
    ],
)  # fmt: skip
def test_a_line_makes_it_fire_beside_a_recording_and_alone(
    tmp_path: Path, line: str, rule: str
) -> None:
    said = log(line)
    alone = own(findings_of_audit(audit_of_log(said, GB10["name"], "12.1")))
    assert rule in alone
    assert alone[rule].evidence
    both = own(report(tmp_path, module(NATIVE), CUTLASS, said=said))
    # A recording that contradicts the log is believed, and told.
    contradicted = rule in ("emulation-backend", "eager-mode")
    assert ("witness-conflict" if contradicted else rule) in both
    assert all(finding.evidence for finding in both.values())


@pytest.mark.parametrize(
    "line",
    [
        "Using FlashInferCutlassNvFp4LinearKernel for NVFP4 GEMM",
        "Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend out of potential backends: ['MARLIN'].",
        "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].",
        "Acceleration for non-quantized schemes is not supported by Compressed Tensors. Falling "
        "back to UnquantizedLinearMethod",
        "Unknown vLLM environment variable detected: VLLM_BUILD_COMMIT",
        "CUDAGraphMode.FULL is not supported with X backend (support: Y); setting "
        "cudagraph_mode=FULL_AND_PIECEWISE",
        "Using V2 Model Runner",
        "flashinfer-cubin package was not found",
    ],
)
def test_lines_that_are_no_fault(line: str) -> None:
    assert findings_of_audit(audit_of_log(log(line), GB10["name"], "12.1")) == ()


@each_row(
    ("line", "gpu", "capability", "rule"),
    [
        ("Using 'MARLIN' Fp8 MoE backend out of x", "H100", "9.0", "weight-only-fp8"),
        ("Using 'MARLIN' Fp8 MoE backend out of x", "A100", "8.0", None),
        ("Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['MARLIN'].", "", "", None),
        ("Using MarlinLinearKernel for AWQMarlinLinearMethod", "NVIDIA GB10", "12.1", None),
        ("Using 'MARLIN' WNA16 MoE backend.", "NVIDIA GB10", "12.1", None),
        ("Using TRITON Fp8 MoE backend out of x", "H100", "9.0", None),
        # The warning is right on a GPU without FP4.
        (WARNING, "NVIDIA H100 80GB HBM3", "9.0", None),
        (WARNING, "", "", None),
    ],
)  # fmt: skip
def test_weight_only_by_format_and_gpu(
    line: str, gpu: str, capability: str, rule: str | None
) -> None:
    found = findings_of_audit(audit_of_log(log(line), gpu, capability))
    assert [finding.id for finding in found] == ([rule] if rule else [])


def test_a_cpu_engine_is_left_alone(healthy: Report) -> None:
    (eager,) = (rule for rule in FALLBACKS if rule.id == "eager-mode")
    assert healthy.audit is not None
    audit = replace(healthy.audit, engine=replace(healthy.audit.engine, eager=True))
    on_gpu = replace(healthy, audit=audit)
    assert list(eager.find(on_gpu))
    assert not list(eager.find(replace(on_gpu, run=replace(on_gpu.run, units="op"))))
