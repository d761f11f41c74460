"""How an engine was set up, out of its log or a recording."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_prof.analyzers.fallbacks.audit_rows import Engine
from spark_prof.analyzers.fallbacks.engine_facts import (
    differences,
    engine_of_facts,
    engine_of_log,
    merged,
)
from tests.analyzers.fallbacks.runs import facts, log

CONFIG = (
    "Initializing a V1 LLM engine (v0.24.0) with config: model='m', quantization=modelopt_fp4, "
    "enforce_eager=False, kv_cache_dtype=fp8_e4m3, enable_prefix_caching=False, "
    "compilation_config={'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, "
    "'cudagraph_capture_sizes': [1, 2, 4, 8]}, kernel_config=KernelConfig(moe_backend='marlin', "
    "linear_backend='auto')"
)


def test_the_configuration_line() -> None:
    assert engine_of_log(log("vLLM API server version 0.24.0", CONFIG).statements) == Engine(
        vllm="0.24.0", quantization="modelopt_fp4", eager=False, graph_mode="FULL_AND_PIECEWISE",
        graph_sizes=(1, 2, 4, 8), prefix_caching=False, moe_backend="marlin", kv_cache="fp8_e4m3",
        serves=True,
    )  # fmt: skip


def test_arguments_and_sglang() -> None:
    assert engine_of_log(log("non-default args: {'enforce_eager': True}").statements).eager is True
    sglang = engine_of_log(
        log(
            "server_args=ServerArgs(model_path='m', disable_cuda_graph=True, "
            "disable_radix_cache=True, quantization='modelopt_fp4')"
        ).statements
    )
    assert (sglang.eager, sglang.prefix_caching, sglang.serves) == (True, False, True)


@pytest.mark.parametrize(
    ("line", "gpu", "capability"),
    [
        ("Found GPU0 NVIDIA GB10 which is of cuda capability 12.1.", "NVIDIA GB10", "12.1"),
        ("Using default MoE config. Performance might be sub-optimal! Config file not found at "
         "/x/E=256,N=512,device_name=NVIDIA_GB10.json",
         "NVIDIA GB10", "12.1"),
        ("FlashInfer resolved query dtypes: prefill=a, decode=b, decode_backend=xqa, "
         "kv_cache_dtype=c, arch=sm120",
         "", "12.0"),
        ("ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'", "", ""),
    ],
)  # fmt: skip
def test_the_gpu_out_of_a_line(line: str, gpu: str, capability: str) -> None:
    found = engine_of_log(log(line).statements)
    assert (found.gpu, found.capability) == (gpu, capability)


def test_lines_count_over_the_configuration() -> None:
    found = engine_of_log(
        log(
            CONFIG,
            "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode for attention "
            "backend X (support: Y); setting cudagraph_mode=PIECEWISE",
            "Enforce eager set, disabling torch.compile and CUDAGraphs.",
        ).statements
    )
    assert (found.graph_mode, found.eager) == ("PIECEWISE", True)


def test_an_empty_log_tells_nothing() -> None:
    assert engine_of_log(()) == Engine()


def test_a_recording_without_configuration_tells_what_it_has() -> None:
    assert engine_of_facts({}, []) == Engine()
    assert engine_of_facts({"execution": "eager"}, ["vllm", "serve", "m"]) == Engine(
        eager=True, serves=True
    )
    for strange in ({"gpu": 3}, {"engine_config": {"cache_config": 4}}, {"environment": {"A": 1}}):
        engine_of_facts(strange, [])


def test_two_sources_are_one_engine_or_differ() -> None:
    recorded = engine_of_facts(facts(cudagraph_capture_sizes="[1, 2]"), [])
    logged = Engine(vllm="0.26.0", prefix_caching=True)
    assert differences(recorded, logged) == ()
    assert merged(recorded, logged) == replace(recorded, prefix_caching=True)
    assert len(differences(recorded, replace(logged, vllm="0.24.0", eager=True))) == 2
