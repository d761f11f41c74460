"""The facts of a run: what is read from the engine, and what never gets into a bundle."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from spark_prof.profiler.facts import engine_facts, visible_environment

from .fakes import Worker


class Mode(Enum):
    NONE = 0
    VLLM_COMPILE = 3


class Graphs(Enum):
    NONE = 0
    FULL = 2


@dataclass
class CacheConfig:
    block_size: int = 16
    api_key: str = "sk-cache"
    long: str = "x" * 5000


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reads the facts of a worker after `change` has had its way with the configuration."""
    pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0"))

    def read(change: Any = lambda config: None) -> dict[str, Any]:
        worker = Worker()
        change(worker.vllm_config)
        return engine_facts(worker)

    return read


def test_the_facts_of_a_small_engine(facts: Any) -> None:
    expected = {
        "vllm": "0.32.0", "model": "tiny", "model_config": {}, "quantization": "", "dtype": "",
        "model_runner": "V1", "async_scheduling": False,
        "parallel": {"tensor": 1, "pipeline": 1, "data": 1},
    }  # fmt: skip
    found = facts()
    assert {name: found[name] for name in expected} == expected


def test_the_model_s_configuration_is_whole(facts: Any) -> None:
    class HfConfig:
        def to_json_string(self, use_diff: bool) -> str:
            return json.dumps({"hidden_size": 64} | ({} if use_diff else {"rope_theta": 1e4}))

    found = facts(lambda config: setattr(config.model_config, "hf_config", HfConfig()))
    assert found["model_config"] == {"hidden_size": 64, "rope_theta": 1e4}


def test_format_and_quantization(facts: Any) -> None:
    import torch

    def change(config: Any) -> None:
        config.model_config.dtype = torch.bfloat16
        config.model_config.quantization = "mxfp4"

    found = facts(change)
    assert (found["dtype"], found["quantization"]) == ("bfloat16", "mxfp4")


@pytest.mark.parametrize(
    ("mode", "graphs", "execution"),
    [
        (Mode.NONE, Graphs.NONE, "eager"),
        (Mode.NONE, None, "eager"),
        (Mode.NONE, Graphs.FULL, "eager, CUDA graphs (FULL)"),
        (Mode.VLLM_COMPILE, Graphs.NONE, "torch.compile (VLLM_COMPILE)"),
        (Mode.VLLM_COMPILE, Graphs.FULL, "torch.compile (VLLM_COMPILE), CUDA graphs (FULL)"),
        (3, Graphs.FULL, "torch.compile (3), CUDA graphs (FULL)"),
    ],
)
def test_how_the_model_is_executed(facts: Any, mode: Any, graphs: Any, execution: str) -> None:
    compilation = SimpleNamespace(mode=mode, cudagraph_mode=graphs)
    found = facts(lambda config: setattr(config, "compilation_config", compilation))
    assert found["execution"] == execution


def test_breakable_graphs_are_named(facts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM sets the variable itself for models that have them by default."""
    compilation = SimpleNamespace(mode=Mode.NONE, cudagraph_mode=Graphs.FULL)
    for value, told in (("1", "breakable CUDA graphs (FULL)"), ("0", "CUDA graphs (FULL)")):
        monkeypatch.setenv("VLLM_USE_BREAKABLE_CUDAGRAPH", value)
        found = facts(lambda config: setattr(config, "compilation_config", compilation))
        assert found["execution"] == f"eager, {told}"


def test_a_configuration_is_short_strings_without_secrets(facts: Any) -> None:
    found = facts(lambda config: setattr(config, "cache_config", CacheConfig()))
    assert found["engine_config"]["cache_config"] == {"block_size": "16", "long": "x" * 2000}


def test_variables_that_are_kept_and_left_out() -> None:
    kept = ("VLLM_USE_V1", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "TORCHINDUCTOR_CACHE_DIR",
            "PYTORCH_CUDA_ALLOC_CONF", "TRITON_CACHE_DIR", "OMP_NUM_THREADS", "LD_PRELOAD",
            "HF_HUB_OFFLINE")  # fmt: skip
    others = ("VLLM_API_KEY", "CUDA_SECRET", "NVIDIA_API_KEY", "VLLM_AUTH_TOKEN", "HF_TOKEN",
              "HOME", "AWS_SECRET_ACCESS_KEY", "MY_VLLM_USE_V1", "vllm_use_v1")  # fmt: skip
    found = visible_environment(dict.fromkeys((*kept, *others), "1"))
    assert found == dict.fromkeys(kept, "1")
