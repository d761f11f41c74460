"""Known issues: each one is found in a run that has it, and in none that only comes near."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_prof.analyzers.fallbacks import issue_evidence
from spark_prof.analyzers.fallbacks.audit import audit_of_log
from spark_prof.analyzers.fallbacks.audit_rows import AuditRow, EvidenceSource
from spark_prof.analyzers.fallbacks.known_issues import every_known_issue
from spark_prof.rules.known_issue import Capability, Model
from spark_prof.rules.known_issues import ISSUES
from tests.analyzers.fallbacks.issue_runs import (
    A100,
    B200,
    GB10,
    H100,
    L40S,
    LLAMA,
    LOGS,
    RTX,
    V4,
    Engine,
)
from tests.analyzers.fallbacks.runs import CUTLASS, facts, log, module, report
from tests.rows import each_row

OF = {issue.id: issue for issue in ISSUES}
ALL_GPUS = (A100, L40S, H100, B200, RTX, GB10)
OTHER_KERNELS = (
    "Using EmulationNvFp4LinearKernel for NVFP4 GEMM",
    "Using 'AITER' NvFp4 MoE backend out of potential backends: ['AITER'].",
    "Using 'AITER' Mxfp4 MoE backend out of potential backends: ['AITER'].",
    "Using 'AITER' Fp8 MoE backend out of potential backends: ['AITER'].",
    "Using 'AITER' Unquantized MoE backend out of potential backends: ['AITER'].",
    "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].",
    "Using FlashInfer GDN prefill kernel (requested=auto, head_k_dim=128).",
)
INVARIANT = {"VLLM_BATCH_INVARIANT": "1", "VLLM_USE_BREAKABLE_CUDAGRAPH": "0"}
MASK = "apply_token_bitmask_inplace_kernel"
TRACED: dict[str, tuple[dict[str, Any], str]] = {
    "structured-output-mask-on-host": (
        {"vllm": "0.25.1", "model_runner": "V1", "environment": {}}, MASK,
    ),
    "breakable-graphs-switched-off": (
        {"vllm": "0.27.0", "architecture": V4,
         "environment": {"VLLM_USE_BREAKABLE_CUDAGRAPH": "0"}}, CUTLASS,
    ),
    "batch-invariant-tiles-frozen": (
        {"vllm": "0.29.0", "gpu": "9.0", "environment": INVARIANT}, CUTLASS,
    ),
}  # fmt: skip
"""Those that only a recording tells: what its worker told, and a kernel that ran."""


def found(engine: Engine) -> list[str]:
    audit = audit_of_log(engine.log(), capability=engine.capability)
    return [row.id for row in audit.known_issues]


def recorded(tmp_path: Path, told: dict[str, Any], ran: str) -> list[str]:
    gpu = {"name": "NVIDIA GPU", "compute_capability": told.get("gpu", "12.1")}
    model = {"architectures": [told.get("architecture", LLAMA)]}
    given = facts(gpu, model, told["vllm"], told["environment"])
    given |= {"model_runner": told.get("model_runner", "V2")}
    row = module("UnquantizedLinearMethod", "UnquantizedLinearMethod")
    audit = report(tmp_path, row, ran, given).audit
    assert audit is not None
    return [each.id for each in audit.known_issues]


def test_every_issue_is_planted() -> None:
    assert set(LOGS) | set(TRACED) == set(OF)
    assert len(OF) == len(ISSUES) >= 30


@each_row(("name", "engine"), LOGS.items())
def test_a_log_that_has_it(name: str, engine: Engine) -> None:
    assert found(engine) == [name]


@pytest.mark.slow
@each_row(("name", "run"), TRACED.items())
def test_a_recording_that_has_it(
    tmp_path: Path, name: str, run: tuple[dict[str, Any], str]
) -> None:
    told, ran = run
    assert recorded(tmp_path / "1", told, ran) == [name]
    for number, near in enumerate((
        told | {"vllm": "0.23.0"}, told | {"vllm": "0.33.0"}, told | {"vllm": ""},
        told | {"environment": {"OMP_NUM_THREADS": "1", "VLLM_USE_BREAKABLE_CUDAGRAPH": "1"}},
    )):  # fmt: skip
        assert recorded(tmp_path / f"near-{number}", near, ran) == []


@each_row(("name", "engine"), LOGS.items())
def test_another_version_does_not(name: str, engine: Engine) -> None:
    window = OF[name].vllm
    _, minor, *_ = re.findall(r"\d+", window.since)
    others = [f"0.{int(minor) - 1}.0", "0.99.0", window.fixed, f"{engine.vllm}+nv26.11", "dev"]
    for version in filter(None, others):
        assert name not in found(replace(engine, vllm=version)), version
    untold = [line for line in engine.lines() if "Initializing" not in line]
    assert not audit_of_log(log(*untold), capability=engine.capability).known_issues


@each_row(("name", "engine"), LOGS.items())
def test_a_version_between_the_last_and_the_fixed_one_is_not_told(
    name: str, engine: Engine
) -> None:
    fixed = OF[name].vllm.fixed
    if fixed:
        assert name not in found(replace(engine, vllm=f"{fixed}rc1.dev9+g8a728663c"))
        assert OF[name].vllm.holds(f"{fixed}rc1.dev9") is None


@each_row(("name", "engine"), LOGS.items())
def test_another_gpu_does_not(name: str, engine: Engine) -> None:
    spans = [each.spans for each in OF[name].when if isinstance(each, Capability)]
    for gpu in (*ALL_GPUS, ""):
        inside = all(
            gpu and any(low <= round(10 * float(gpu)) <= high for low, high in each)
            for each in spans
        )
        said = engine.said if gpu == GB10 else [line.replace("GB10", "X") for line in engine.said]
        other = replace(engine, capability=gpu, said=tuple(said))
        assert (name in found(other)) == inside, gpu


@each_row(("name", "engine"), LOGS.items())
def test_another_model_kernel_or_setting_does_not(name: str, engine: Engine) -> None:
    if any(isinstance(each, Model) for each in OF[name].when):
        other = replace(engine, architecture="OPTForCausalLM", model="/models/served")
        assert name not in found(other)
    if engine.said:
        assert name not in found(replace(engine, said=())), "without its lines"
        assert name not in found(replace(engine, said=OTHER_KERNELS)), "with other kernels"
    if engine.given and name != "drafts-chosen-without-flashinfer":
        assert name not in found(replace(engine, given={})), "with default settings"


def test_an_engine_of_another_kind_has_none() -> None:
    lines = LOGS["nvfp4-scales-not-zeroed"].lines()
    lines.append("server_args=ServerArgs(model_path='m', attention_backend='triton')")
    assert not audit_of_log(log(*lines), capability=B200).known_issues


def test_what_proves_it_here() -> None:
    engine = LOGS["sm120-marlin-experts-not-b12x"]
    engine = replace(engine, model="m/x", given={"max_model_len": 8192})
    (row,) = audit_of_log(engine.log(), capability=RTX).known_issues
    assert shlex.split(row.command) == [
        "spark-prof", "ab", "--b", "--moe-backend flashinfer_b12x", "--", "m/x",
        "--max-model-len", "8192",
    ]  # fmt: skip
    assert row.evidence == (
        "vLLM 0.29.0", "compute capability 12.0", "checkpoint, moe: W4A16 nvfp4",
        "moe: nvfp4 MARLIN", "moe_backend auto",
    )  # fmt: skip
    assert row.reported[0] == "https://github.com/vllm-project/vllm/pull/47577"
    # What cannot start cannot be timed.
    audit = audit_of_log(LOGS["triton-fp8-experts-before-ada"].log(), capability=A100)
    assert [(each.side, each.command) for each in audit.known_issues] == [
        ("--moe-backend marlin", "")
    ]


def test_a_graph_that_is_cut_and_large_enough_harms_nothing() -> None:
    engine = LOGS["graphs-too-small-for-drafts"]
    drafts = engine.given["speculative_config"]
    for requests, wrong in ((5, False), (6, True)):
        given = {"max_num_seqs": requests, "speculative_config": drafts}
        assert bool(found(replace(engine, given=given))) is wrong, requests


def test_few_drafts_that_are_refused_say_nothing() -> None:
    engine = LOGS["drafts-never-accepted-after-32k"]
    few = [line.replace("Drafted: 901", "Drafted: 9") for line in engine.said]
    assert found(replace(engine, said=tuple(few))) == []


@each_row("size", ["9" * 5000, "many", "-2", "2.0"])
def test_a_setting_that_is_no_number_is_not_told(size: str) -> None:
    engine = LOGS["gb10-workers-spin"]
    assert found(replace(engine, given={"tensor_parallel_size": size, "nnodes": 2})) == []


def test_what_was_asked_for_is_no_default() -> None:
    engine = replace(LOGS["sm120-marlin-experts-not-b12x"], given={"moe_backend": "marlin"})
    assert found(engine) == []


@each_row(
    ("kernel", "gpu", "vllm", "names"),
    [
        ("FlashInferCutlassNvFp4LinearKernel", "10.0", "0.24.0", ["nvfp4-scales-not-zeroed"]),
        ("FlashInferCutlassNvFp4LinearKernel", "10.0", "0.25.0", []),
        ("FlashInferCutlassNvFp4LinearKernel", "12.1", "0.24.0", []),
        ("MarlinNvFp4LinearKernel", "10.0", "0.24.0", []),
        ("FlashInferCuteDslNvFp4W4A16LinearKernel", "12.1", "0.28.1rc1.dev388+g8a728663c",
         ["weight-only-before-fp4"]),
        ("FlashInferCuteDslNvFp4W4A16LinearKernel", "12.1", "0.30.0", []),
    ],
)  # fmt: skip
def test_the_classes_of_a_recorded_engine(
    tmp_path: Path, kernel: str, gpu: str, vllm: str, names: list[str]
) -> None:
    given = facts({"name": "NVIDIA GPU", "compute_capability": gpu}, vllm=vllm)
    audit = report(tmp_path, module(kernel), CUTLASS, given).audit
    assert audit is not None
    assert [row.id for row in audit.known_issues] == names


def test_the_table_has_nothing_of_a_run() -> None:
    rows = every_known_issue()
    assert [row.id for row in rows] == [issue.id for issue in ISSUES]
    assert not any(row.command or row.evidence for row in rows)


@each_row(("layer", "kind"), [("experts", "moe"), ("moe", "moe"), ("linear", "linear"),
                              ("mlp", "linear"), ("shared_experts", "linear")])  # fmt: skip
def test_a_live_engine_s_kernels_and_schemes_are_by_kind(layer: str, kind: str) -> None:
    engine = EvidenceSource("engine", "NvFp4MoeBackend.MARLIN", "Marlin", "16-bit")
    log = EvidenceSource("log", "CUTLASS", "CUTLASS", "nvfp4")
    row = AuditRow(layer, 2, "W4A4 nvfp4", "W4A16 nvfp4", (log, engine))
    audit: Any = SimpleNamespace(rows=(row, row, replace(row, witnesses=(log,), checkpoint="")))
    chosen = issue_evidence._chosen(audit, (), ("FLASH_ATTN",))
    assert chosen == {kind: ("nvfp4 NvFp4MoeBackend.MARLIN", "nvfp4 MARLIN"),
                      "attention": ("FLASH_ATTN",)}  # fmt: skip
    assert issue_evidence._checkpoint_schemes(audit) == {kind: ("W4A4 nvfp4", "W4A4 nvfp4")}
