"""What an engine is that vLLM has built: versions, GPUs, limits."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from spark_prof.ab.messages import Facts


def engine_facts(config: Any, vocabulary: int, seconds: float) -> Facts:
    """What `Facts` says of an engine.

    Args:
        config: vLLM's configuration of it.
        vocabulary: tokens that the model knows.
        seconds: that it took to start.
    """
    from vllm.platforms import current_platform as platform

    from spark_prof.profiler.facts import execution_of, processor

    gpu = bool(platform.is_cuda())
    text = getattr(config.model_config, "hf_text_config", None)
    layers = getattr(text, "num_hidden_layers", None)
    cache = config.cache_config
    blocks, size = getattr(cache, "num_gpu_blocks", None), getattr(cache, "block_size", None)
    parallel = config.parallel_config
    return Facts(
        versions=_versions(),
        gpu=str(platform.get_device_name()) if gpu else "",
        uuids=_uuids(int(parallel.world_size)) if gpu else (),
        gpus=int(parallel.world_size),
        processor=processor(),
        model=str(config.model_config.model),
        longest=int(config.model_config.max_model_len),
        most_requests=int(config.scheduler_config.max_num_seqs),
        most_tokens=int(config.scheduler_config.max_num_batched_tokens),
        vocabulary=vocabulary,
        cache_tokens=blocks * size if blocks and size else None,
        load_seconds=seconds,
        execution=execution_of(config.compilation_config),
        dummy=str(config.load_config.load_format).rpartition(".")[2].lower() == "dummy",
        layers=layers if isinstance(layers, int) and layers > 0 else None,
        routed=bool(config.model_config.get_num_experts()),
    )


def _versions() -> dict[str, str]:
    import torch
    import vllm

    found = {
        "vllm": str(vllm.__version__),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda or ""),
        "python": sys.version.split()[0],
    }
    with suppress(PackageNotFoundError):
        found["spark_prof"] = version("spark-prof")
    with suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        found["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
    return found


def _uuids(count: int) -> tuple[str, ...]:
    """Of the first GPUs that this process may use; torch would have to start CUDA to tell."""
    named = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    found: list[str] = []
    with suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        for word in ([*filter(None, named)] or [str(number) for number in range(count)])[:count]:
            handle = (
                None if word.startswith("GPU-") else pynvml.nvmlDeviceGetHandleByIndex(int(word))
            )
            found.append(word if handle is None else str(pynvml.nvmlDeviceGetUUID(handle)))
    return tuple(found)
