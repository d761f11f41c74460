"""In what the set-ups of two recordings differ: versions, GPU, engine, model, environment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from spark_prof.analyzers.comparing.comparison import Setting, Side

_GROUPS: Mapping[str, str] = {
    "spark_prof": "recording",
    "backend": "recording",
    "vllm": "versions",
    "torch": "versions",
    "cuda": "versions",
    "python": "versions",
    "driver": "versions",
    "gpu": "GPU",
    "device_after_steps": "GPU",
    "machine": "GPU",
    "host": "GPU",
    "model": "model",
    "model_config": "model",
    "quantization": "model",
    "dtype": "model",
    "environment": "environment",
}
"""The group of each fact by its first word; every other one is of the engine."""

_ORDER = ("GPU", "versions", "model", "engine", "environment", "command", "recording")

_NOT_COMPARED = re.compile(
    r"^(?:process|pid|run|boot|rank|time_ns|monotonic_ns"
    r"|gpu\.temperature_c|device_after_steps\.(?:temperature_c|power_w)"
    # The checkpoint's configuration is compared once, as model_config.
    r"|engine_config\.model_config\.(?:hf_config|hf_text_config|hf_image_processor_config)"
    r"|model_config\.(?:_name_or_path|transformers_version)"
    # Folders of caches carry hashes and random names.
    r"|.*(?:instance_id|cache_dir|_CACHE_DIR|_CACHE_ROOT|cache_root|compilation_time"
    r"|debug_dump_path|local_cache_dir|traced_files|enabled_custom_ops|disabled_custom_ops"
    r"|static_forward_context|static_all_moe_layers)(?:\..*)?)$"
)
"""Facts that differ between any two recordings, or that repeat others."""

_OF_A_START = re.compile(
    r"^device_after_steps\.|.*(?:_mhz|memory_used|memory_free|num_gpu_blocks|num_cpu_blocks"
    r"|kv_cache_size_tokens|kv_cache_max_concurrency|kv_cache_memory_bytes|_port|_ip|_address)$"
)
"""Settings that an engine chooses anew at every start of the same thing."""

_MOST = 200
_MOST_TOLD = 4
_OTHER_BATCHES = 0.5
"""Share of the decode steps that ran at other batch sizes from which on a load is another one."""
_LONGEST = 400
_DEEPEST = 8
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,16}\b")


def setup_differences(a: Side, b: Side) -> tuple[Setting, ...]:
    """Every setting whose value differs, by group; at most 200."""
    found = [
        Setting(_group(name), name, before, after)
        for name, before, after in _pairs(_settings(a), _settings(b))
    ]
    found += _command(a.report.run.command, b.report.run.command)
    ranked = sorted(found, key=lambda each: (_ORDER.index(each.group), each.name))
    return tuple(ranked[:_MOST])


def unlike(first: Side, other: Side) -> str:
    """In what two recordings of one side are not of the same thing; empty where they are."""
    found = [
        f"{each.name} ({_shown(each.a)} against {_shown(each.b)})"
        for each in setup_differences(first, other)
        if not _OF_A_START.match(each.name)
    ]
    batches = [_batches(each) for each in (first, other)]
    shared = sum(min(batches[0].get(size, 0.0), share) for size, share in batches[1].items())
    if all(batches) and shared < 1 - _OTHER_BATCHES:
        usual = [max(each, key=lambda size: each[size]) for each in batches]
        found.insert(0, f"the batch size of decode steps (mostly {usual[0]} against {usual[1]})")
    more = f" and {len(found) - _MOST_TOLD} more settings" if len(found) > _MOST_TOLD else ""
    return ", ".join(found[:_MOST_TOLD]) + more


def _batches(side: Side) -> dict[int, float]:
    """The share of the decode steps of each batch size."""
    decode = side.steps["phase"].astype(str) == "decode"
    shares = side.steps.loc[decode, "decode_requests"].value_counts(normalize=True)
    return {int(size): float(share) for size, share in shares.items()}  # type: ignore[call-overload]


def _shown(value: str) -> str:
    return f"{value[:40]}..." if len(value) > 43 else value or "nothing"


def _settings(side: Side) -> dict[str, str]:
    """All that is known of a side, as one text each name."""
    known: dict[str, str] = dict(_flat("", side.facts, 0))
    run, gpu = side.report.run, side.report.gpu
    # A foreign trace has few facts of its own; what its report says of the run stands for them.
    reported = {
        "vllm": run.vllm,
        "torch": run.torch,
        "backend": run.backend,
        "execution": run.execution,
        "gpu.name": gpu.name,
        "gpu.compute_capability": gpu.compute_capability or "",
    }
    if "model" not in known:
        reported["model"] = run.model
    for name, value in reported.items():
        known.setdefault(name, value)
    return known


def _flat(prefix: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and depth < _DEEPEST:
        for key, each in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), each, depth + 1)
    elif not _NOT_COMPARED.match(prefix[:_LONGEST]):
        yield prefix[:_LONGEST], _text(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    items = value if isinstance(value, list) else [value]
    # What is nested deeper than any configuration is not looked at.
    texts = ("..." if isinstance(item, Mapping | list) else str(item) for item in items[:_MOST])
    return _ADDRESS.sub("0x...", ", ".join(texts))[:_LONGEST]


def _pairs(a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys((*a, *b)):
        before, after = a.get(name, ""), b.get(name, "")
        if before != after:
            yield name, before, after


def _group(name: str) -> str:
    if name == "gpu.driver":
        return "versions"
    return _GROUPS.get(name.partition(".")[0], "engine")


def _command(a: str, b: str) -> Iterator[Setting]:
    """The words of the command lines that differ, if as many stand in both; else both whole."""
    if a == b:
        return
    words = [line.split() for line in (a, b)]
    if len(words[0]) != len(words[1]):
        yield Setting("command", "command", a[:_LONGEST], b[:_LONGEST])
        return
    for place, (before, after) in enumerate(zip_longest(*words, fillvalue="")):
        if before != after:
            option = words[0][place - 1] if place and words[0][place - 1].startswith("-") else ""
            yield Setting("command", option or "command", before[:_LONGEST], after[:_LONGEST])
