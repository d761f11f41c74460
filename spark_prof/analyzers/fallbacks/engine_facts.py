"""How an engine was set up: from what was recorded of it, or from its log and its command."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from spark_prof.analyzers.fallbacks.audit_rows import Disagreement, EngineSetup
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.rules.gpus import find_gpu
from spark_prof.rules.vllm_versions import breakable_by_default
from spark_prof.traces.execution import Execution
from spark_prof.traces.readers.engine_log import Statement

_BREAKABLE = "VLLM_USE_BREAKABLE_CUDAGRAPH"
_BREAKABLE_LINES = ("breakable-graphs", "breakable-graphs-set")
_SERVERS = re.compile(r"\bserve\b|api_server|launch_server")
_DEVICE = re.compile(r"device_name=([^,\]'\"]{1,80}?)(?:,|\.json|$)")
_ARCHITECTURE = re.compile(r"^sm_?(\d{2,3})[af]?$")


def engine_of_facts(facts: Mapping[str, Any], command: Sequence[str]) -> EngineSetup:
    """The engine of a recorded process."""
    config = mapping_in(facts, "engine_config")
    compilation = mapping_in(config, "compilation_config")
    model = mapping_in(config, "model_config")
    gpu = mapping_in(facts, "gpu")
    kernels = mapping_in(config, "kernel_config")
    cache = mapping_in(config, "cache_config")
    execution = str(facts.get("execution") or "")
    eager = _flag(model.get("enforce_eager"))
    # An imported trace has no configuration and may have no execution.
    if eager is None and execution:
        eager = Execution.read(execution).launches_alone
    return EngineSetup(
        vllm=str(facts.get("vllm") or ""),
        gpu=str(gpu.get("name") or ""),
        capability=str(gpu.get("compute_capability") or ""),
        quantization=str(facts.get("quantization") or ""),
        eager=eager,
        graph_mode=_last_word(compilation.get("cudagraph_mode")),
        breakable_graphs=None if eager else _breakable(facts),
        graph_sizes=_sizes(str(compilation.get("cudagraph_capture_sizes") or "")),
        prefix_caching=_flag(cache.get("enable_prefix_caching")),
        moe_backend=str(kernels.get("moe_backend") or ""),
        linear_backend=str(kernels.get("linear_backend") or ""),
        kv_cache=str(cache.get("cache_dtype") or ""),
        serves=bool(_SERVERS.search(" ".join(command))),
        environment=tuple(
            (name, value)
            for name, value in mapping_in(facts, "environment").items()
            if isinstance(value, str)
        ),
    )


def engine_of_log(statements: Sequence[Statement]) -> EngineSetup:
    """The engine that wrote these lines."""
    config = _first(statements, "engine-config", "detail")
    arguments = _first(statements, "arguments", "detail")
    sglang = _first(statements, "sglang-arguments", "detail")
    text = f"{config} {arguments} {sglang}"
    name, capability = _gpu(statements)
    eager = _flag(_field(text, "enforce_eager") or _field(text, "disable_cuda_graph"))
    if any(line.rule.id in ("eager", "graphs-skipped", "graphs-off") for line in statements):
        eager = True
    prefix = _flag(_field(text, "enable_prefix_caching"))
    if (radix := _flag(_field(text, "disable_radix_cache"))) is not None:
        prefix = not radix
    if any(line.rule.id == "prefix-caching-off" for line in statements):
        prefix = False
    breakable = any(line.rule.id in _BREAKABLE_LINES for line in statements)
    modes = [line.value for line in statements if line.rule.id == "graph-mode" and line.value]
    mode = modes[-1] if modes else _last_word(_field(text, "cudagraph_mode", r"<?[\w.]+"))
    sizes = _field(text, "cudagraph_capture_sizes", r"\[[\d, ]*\]")
    return EngineSetup(
        vllm=_first(statements, "engine-config", "value")
        or _first(statements, "engine-version", "value"),
        gpu=name,
        capability=capability,
        quantization=_none(_field(text, "quantization")),
        eager=eager,
        graph_mode=mode,
        breakable_graphs=True if breakable and not eager and mode != "NONE" else None,
        graph_sizes=_sizes(sizes or _first(statements, "graph-sizes-sglang", "value")),
        prefix_caching=prefix,
        moe_backend=_none(_field(text, "moe_backend") or _field(text, "moe_runner_backend")),
        linear_backend=_none(_field(text, "linear_backend")),
        kv_cache=_none(_field(text, "kv_cache_dtype")),
        serves=bool(sglang) or any("API server" in line.text for line in statements),
    )


def _breakable(facts: Mapping[str, Any]) -> bool | None:
    """Whether the worker's environment, or else vLLM's default for its model, says so."""
    variable = mapping_in(facts, "environment").get(_BREAKABLE)
    if variable is not None:
        return bool(variable == "1")  # vLLM sets it itself where it is its default
    capability = mapping_in(facts, "gpu").get("compute_capability")
    named = mapping_in(facts, "model_config").get("architectures")
    version = str(facts.get("vllm") or "")
    if not capability or not isinstance(named, list) or not named or not version:
        return None
    return breakable_by_default(str(named[0]), version)


def merged(first: EngineSetup, second: EngineSetup) -> EngineSetup:
    """One engine as two sources know it; what the first one knows counts."""
    values = {
        name: getattr(first, name) if getattr(first, name) not in ("", None, ()) else other
        for name, other in vars(second).items()
    }
    return EngineSetup(**{**values, "serves": first.serves or second.serves})


def differences(recorded: EngineSetup, logged: EngineSetup) -> tuple[Disagreement, ...]:
    """What a recording and a log say differently, as far as both say anything."""
    disagreements = []
    for name, setting in (
        ("vllm", "the version of vLLM"), ("eager", "eager execution"),
        ("prefix_caching", "prefix caching"), ("quantization", "the quantization"),
        ("moe_backend", "--moe-backend"), ("linear_backend", "--linear-backend"),
        ("graph_sizes", "the sizes of CUDA graphs"), ("capability", "the compute capability"),
    ):  # fmt: skip
        ours, theirs = getattr(recorded, name), getattr(logged, name)
        if ours not in ("", None, ()) and theirs not in ("", None, ()) and ours != theirs:
            text = (
                f"The recording and the log differ in {setting}: {_short(ours)} and "
                f"{_short(theirs)}. Are they of the same run?"
            )
            disagreements.append(Disagreement(text, name))
    return tuple(disagreements)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) < 60 else f"{text[:57]}..."


def _gpu(statements: Sequence[Statement]) -> tuple[str, str]:
    name, capability = _first(statements, "gpu", "value"), _first(statements, "gpu", "detail")
    for line in statements:
        if not name and (match := _DEVICE.search(line.detail)):
            name = match[1].replace("_", " ")
        architecture = line.detail if line.rule.id == "flashinfer-decode" else line.format
        if not capability and (match := _ARCHITECTURE.match(architecture)):
            capability = f"{match[1][:-1]}.{match[1][-1]}"
    gpu = find_gpu(name) if name and not capability else None
    return name, gpu.compute_capability if gpu else capability


def _first(statements: Sequence[Statement], rule: str, attribute: str) -> str:
    values = (str(getattr(line, attribute)) for line in statements if line.rule.id == rule)
    return next((value for value in values if value), "")


def _field(text: str, name: str, value: str = r"[\w.:-]+") -> str:
    """A value in what Python prints of an object or a dictionary; the first one counts."""
    match = re.search(rf"\b{name}['\"]?[=:] ?['\"]?({value})", text)
    return match[1] if match else ""


def _none(text: str) -> str:
    return "" if text in ("None", "auto") else text


def _last_word(value: object) -> str:
    """The name in `<CUDAGraphMode.FULL: 2>`, `CUDAGraphMode.FULL` or `FULL`."""
    word = str(value or "").strip("<>").split(":")[0].split(".")[-1]
    return word if word.isidentifier() and word != "None" else ""


def _flag(value: object) -> bool | None:
    return {"true": True, "false": False}.get(str(value).lower())


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(size) for size in re.findall(r"\d{1,7}", text)}))


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
