"""The audit of runs and machines: three witnesses, the checkpoint, causes, the set-up."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.fallbacks.audit import audit_of_log
from spark_prof.analyzers.fallbacks.audit_rows import AuditRow, EngineSetup
from spark_prof.analyzers.fallbacks.engine_facts import (
    differences,
    engine_of_facts,
    engine_of_log,
    merged,
)
from spark_prof.analyzers.fallbacks.layer_groups import _of_trace
from spark_prof.analyzers.fallbacks.machine_checks import (
    Library,
    Machine,
    Package,
    machine_findings,
)
from spark_prof.analyzers.model import Report
from spark_prof.rules.environment import SettingRow
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


MXFP4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
FLOATS = "FloatingPointType<{}, FloatingPointType<4u, 2u, 1u>, FloatingPointType<16u, 8u, 7u>, "
HUMMING = "void humming<MmaOpClass, Shape<0u, 512u, 256u>, Shape<0u, 0u, 0u>, {}LayerConfig>(int*)"
E4M3, BF16 = (HUMMING.format(FLOATS.format(a)) for a in ("8u, 4u, 3u>", "16u, 8u, 7u>"))


@each_row(
    ("kernel", "inputs", "executed", "cause"),
    [
        (E4M3, None, "W4A8 mxfp4", "rounds"),
        (BF16, None, "W4A16 mxfp4", "scheme"),
        (E4M3, {"num_bits": 8, "type": "float", "dynamic": True, "strategy": "token"},
         "W4A8 mxfp4", ""),
    ],
)  # fmt: skip
def test_activations_that_the_checkpoint_leaves_alone_and_the_kernel_rounds(
    kernel: str, inputs: dict[str, object] | None, executed: str, cause: str, tmp_path: Path
) -> None:
    """As vLLM 0.33 runs weights in MXFP4 on Hopper, whatever the checkpoint says of activations."""
    group = {"targets": ["Linear"], "weights": MXFP4, "input_activations": inputs}
    quantized = {
        "quant_method": "compressed-tensors",
        "format": "mxfp4-pack-quantized",
        "config_groups": {"group_0": group},
    }
    layer = module("HummingMxFp4LinearKernel", "CompressedTensorsLinearMethod")
    given = facts(H100, {"quantization_config": quantized}, "0.33.0")
    done = report(tmp_path, layer, kernel, given)
    found = row(done)
    assert (found.executed, found.cause, found.conflict) == (executed, cause, "")
    findings = [each for each in done.findings if each.id == "activations-rounded"]
    assert bool(findings) == (cause == "rounds")
    if findings:
        assert "although the checkpoint asks for W4A16 mxfp4" in findings[0].text
        assert "--linear-backend marlin keeps them at 16 bits" in findings[0].fix


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}


@each_row(
    ("quantized", "kernel", "method", "executed"),
    [
        ({}, "CutlassFP8ScaledMMLinearKernel", "Fp8OnlineLinearMethod", "W8A8 fp8"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized",
          "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT4}}},
         "WNA16MoEBackend.FLASHINFER_TRTLLM", "CompressedTensorsWNA16MoEMethod", "W4 int4"),
    ],
)  # fmt: skip
def test_activations_are_not_rounded_against_the_checkpoint(
    quantized: dict[str, object], kernel: str, method: str, executed: str, tmp_path: Path
) -> None:
    """Weights quantized by the engine's own option; integers, which 16 bits are multiplied with."""
    given = facts(H100, {"quantization_config": quantized}, "0.33.0")
    done = report(tmp_path, module(kernel, method), CUTLASS, given)
    found = row(done)
    assert (found.executed, found.cause) == (executed, "")
    assert not [each for each in done.findings if each.id == "activations-rounded"]


def humming(precision: str | None, weights: str | None) -> KernelRow:
    return KernelRow(
        "humming<>", 1, 1.0, 0.1, "qkv", "tensor-core", precision, "", None, weights
    )  # fmt: skip


@each_row(
    ("rows", "weights", "activations"),
    [
        ([humming("fp8", "fp4"), humming("bf16", "fp4")], "mxfp4", ""),
        ([humming("bf16", "fp4"), humming("fp8", "fp4")], "mxfp4", ""),
        ([humming(None, None), humming("fp8", "fp4")], "mxfp4", "fp8"),
        ([humming("bf16", "fp4"), humming("fp16", "fp4")], "mxfp4", "16-bit"),
        ([humming("fp8", "fp4")], "int4", ""),
        ([humming(None, None)], "fp8", ""),
    ],
)
def test_kernels_of_other_layers_of_a_component_tell_nothing(
    rows: list[KernelRow], weights: str, activations: str
) -> None:
    [source] = _of_trace("qkv", rows, weights)
    assert source.activations == activations


@pytest.mark.slow
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


@each_row(
    ("ran", "lines", "words"),
    [
        (MARLIN, (), ("the engine says FlashInfer CUTLASS", "the trace Marlin")),
        (CUTLASS, ("Using MarlinNvFp4LinearKernel for NVFP4 GEMM",), ("the log Marlin",)),
        # A draft model has a log of its own.
        (CUTLASS, ("Using MarlinNvFp4LinearKernel for NVFP4 GEMM",
                   "Using FlashInferCutlassNvFp4LinearKernel for NVFP4 GEMM",
                   "Using MarlinMxFp4LinearKernel for MXFP4 GEMM"), ()),
    ],
)  # fmt: skip
def test_who_contradicts_the_engine(
    tmp_path: Path, ran: str, lines: tuple[str, ...], words: tuple[str, ...]
) -> None:
    said = log(*lines) if lines else None
    conflict = row(report(tmp_path, module(NATIVE), ran, said=said)).conflict
    assert bool(conflict) is bool(words)
    assert all(word in conflict for word in words)


def test_the_layer_of_marlin_is_told_from_its_warning() -> None:
    warning = (
        "Your GPU does not have native support for FP4 computation but FP4 quantization is being "
        "used. Weight-only FP4 compression will be used leveraging the Marlin kernel."
    )
    said = log(f"WARNING 06-01 21:40:20 [marlin.py:34] {warning}")
    assert [r.layer for r in audit_of_log(said).rows] == ["linear"]
    assert audit_of_log(log(warning)).rows == ()


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


CONFIG = (
    "Initializing a V1 LLM engine (v0.24.0) with config: model='m', quantization=modelopt_fp4, "
    "enforce_eager=False, kv_cache_dtype=fp8_e4m3, enable_prefix_caching=False, "
    "compilation_config={'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, "
    "'cudagraph_capture_sizes': [1, 2, 4, 8]}, kernel_config=KernelConfig(moe_backend='marlin', "
    "linear_backend='auto')"
)


@each_row(
    ("lines", "wanted"),
    [
        ((), vars(EngineSetup())),
        (("vLLM API server version 0.24.0", CONFIG), vars(EngineSetup(
            vllm="0.24.0", quantization="modelopt_fp4", eager=False, serves=True,
            graph_mode="FULL_AND_PIECEWISE", graph_sizes=(1, 2, 4, 8), prefix_caching=False,
            moe_backend="marlin", kv_cache="fp8_e4m3"))),
        # Later lines count over the configuration.
        ((CONFIG, "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode for "
          "attention backend X (support: Y); setting cudagraph_mode=PIECEWISE",
          "Enforce eager set, disabling torch.compile and CUDAGraphs."),
         {"graph_mode": "PIECEWISE", "eager": True}),
        (("non-default args: {'enforce_eager': True}",), {"eager": True}),
        ((CONFIG, "Auto-enabling VLLM_USE_BREAKABLE_CUDAGRAPH=1. Set "
          "VLLM_USE_BREAKABLE_CUDAGRAPH=0 to opt out."),
         {"breakable_graphs": True, "graph_mode": "FULL_AND_PIECEWISE"}),
        (("Breakable CUDA graph enabled",), {"breakable_graphs": True}),
        (("server_args=ServerArgs(model_path='m', disable_cuda_graph=True, "
          "disable_radix_cache=True, quantization='modelopt_fp4')",),
         {"eager": True, "prefix_caching": False, "serves": True}),
        (("Found GPU0 NVIDIA GB10 which is of cuda capability 12.1.",),
         {"gpu": "NVIDIA GB10", "capability": "12.1"}),
        (("Using default MoE config. Performance might be sub-optimal! Config file not found at "
          "/x/E=256,N=512,device_name=NVIDIA_GB10.json",),
         {"gpu": "NVIDIA GB10", "capability": "12.1"}),
        (("FlashInfer resolved query dtypes: prefill=a, decode=b, decode_backend=xqa, "
          "kv_cache_dtype=c, arch=sm120",), {"gpu": "", "capability": "12.0"}),
        (("ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",),
         {"gpu": "", "capability": ""}),
    ],
)  # fmt: skip
def test_the_engine_that_wrote(lines: tuple[str, ...], wanted: dict[str, object]) -> None:
    found = engine_of_log(log(*lines).statements)
    assert {name: getattr(found, name) for name in wanted} == wanted


def test_a_recording_without_configuration_tells_what_it_has() -> None:
    assert engine_of_facts({}, []) == EngineSetup()
    assert engine_of_facts({"execution": "eager"}, ["vllm", "serve", "m"]) == EngineSetup(
        eager=True, serves=True
    )
    for strange in ({"gpu": 3}, {"engine_config": {"cache_config": 4}}, {"environment": {"A": 1}}):
        engine_of_facts(strange, [])


@pytest.mark.parametrize(
    ("asked", "architecture", "version", "capability", "breakable"),
    [
        # What the worker's environment says holds, for vLLM writes its default there.
        ("1", "LlamaForCausalLM", "0.33.0", "9.0", True),
        ("0", "KimiLinearForCausalLM", "0.33.0", "9.0", False),
        # Recordings without an environment: the default of that version, on NVIDIA.
        (None, "KimiLinearForCausalLM", "0.33.0", "9.0", True),
        (None, "KimiLinearForCausalLM", "0.24.0", "9.0", False),
        (None, "LlamaForCausalLM", "0.33.0", "9.0", False),
        (None, "KimiLinearForCausalLM", "0.33.0", None, None),
        (None, "KimiLinearForCausalLM", "9.9", "9.0", None),
    ],
)
def test_breakable_graphs_are_a_mode(
    asked: str | None, architecture: str, version: str, capability: str | None,
    breakable: bool | None,
) -> None:  # fmt: skip
    known = {
        "vllm": version,
        "gpu": {"compute_capability": capability},
        "model_config": {"architectures": [architecture]},
        "environment": {} if asked is None else {"VLLM_USE_BREAKABLE_CUDAGRAPH": asked},
    }
    assert engine_of_facts(known, []).breakable_graphs is breakable
    eager = {**known, "execution": "eager"}
    assert engine_of_facts(eager, []).breakable_graphs is None


def test_two_sources_are_one_engine_or_differ() -> None:
    recorded = engine_of_facts(facts(cudagraph_capture_sizes="[1, 2]"), [])
    logged = EngineSetup(vllm="0.26.0", prefix_caching=True)
    assert differences(recorded, logged) == ()
    assert merged(recorded, logged) == replace(recorded, prefix_caching=True)
    assert len(differences(recorded, replace(logged, vllm="0.24.0", eager=True))) == 2


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
