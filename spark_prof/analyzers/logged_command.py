"""How an engine is started again that wrote a log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_OPTIONS = (
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "quantization",
    "dtype", "kv_cache_dtype", "block_size", "max_model_len", "max_num_seqs",
    "max_num_batched_tokens", "gpu_memory_utilization", "enforce_eager", "trust_remote_code",
    "enable_expert_parallel", "moe_backend", "linear_backend", "attention_backend",
    "speculative_config", "load_format", "hf_overrides",
)  # fmt: skip
"""Arguments of vLLM that change how it computes, and so belong to a command that compares."""


def logged_words(arguments: Mapping[str, Any], model: str) -> list[str]:
    """What `spark-prof ab` takes after `--` to start an engine like the one that wrote a log.

        logged_words({"tensor_parallel_size": 2}, "m/x") == ["m/x", "--tensor-parallel-size", "2"]

    Args:
        arguments: what vLLM was given beyond its defaults.
    """
    if not model or model.startswith("-"):
        return []
    words = [model]
    for name in _OPTIONS:
        value, option = arguments.get(name), f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif isinstance(value, dict):
            words += [option, json.dumps(value)]
        elif isinstance(value, str | int | float) and value is not False:
            words += [option, str(value)]
    return words
