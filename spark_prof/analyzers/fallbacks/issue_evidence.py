"""What a log or a recording shows of an engine, as the conditions of known issues ask for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_prof.analyzers.fallbacks.audit_rows import Audit
from spark_prof.analyzers.fallbacks.layer_groups import format_of
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.traces.readers.engine_log import Statement

_PLACES: Mapping[str, tuple[str, str]] = {
    "kv_cache_dtype": ("cache_config", "cache_dtype"),
    "tensor_parallel_size": ("parallel_config", "tensor_parallel_size"),
    "pipeline_parallel_size": ("parallel_config", "pipeline_parallel_size"),
    "data_parallel_size": ("parallel_config", "data_parallel_size"),
    "nnodes": ("parallel_config", "nnodes"),
    "distributed_executor_backend": ("parallel_config", "distributed_executor_backend"),
    "max_num_batched_tokens": ("scheduler_config", "max_num_batched_tokens"),
    "max_num_seqs": ("scheduler_config", "max_num_seqs"),
    "max_seq_len": ("model_config", "max_model_len"),
    "async_scheduling": ("scheduler_config", "async_scheduling"),
    "moe_backend": ("kernel_config", "moe_backend"),
    "linear_backend": ("kernel_config", "linear_backend"),
    "enforce_eager": ("model_config", "enforce_eager"),
    "speculative_method": ("speculative_config", "method"),
    "num_speculative_tokens": ("speculative_config", "num_speculative_tokens"),
    "draft_sample_method": ("speculative_config", "draft_sample_method"),
}
"""Where a recorded configuration has what the rules call so."""

_SPECULATIVE = ("speculative_method", "num_speculative_tokens", "draft_sample_method")
_NO_DRAFTS = ("none", "0", "none")
_DRAFTS = re.compile(r"speculative_config['\"]?[=:] ?(?:(None)\b|\w*[({]([^)}]{0,4000}))")
_ARCHITECTURE = re.compile(r"Resolved architecture: (\w{1,120})")
_BACKEND = re.compile(r"(\w+?)MoeBackend\.(\w+)")
_MOST_DIGITS = 12
_CHOOSING = ("kernel", "fallback", "warning", "attention")


@dataclass(frozen=True)
class IssueEvidence:
    """What is known of a run; None or nothing where it is not known."""

    vllm: str  # the version; empty where nothing tells
    capability: float | None
    settings: Mapping[str, str]  # in lower case, by the names of the rules
    complete: bool  # whether what is not among the settings has its default
    environment: Mapping[str, str] | None  # what is set; None where nothing tells
    architectures: tuple[str, ...]
    model: str  # its name or folder
    chosen: Mapping[str, tuple[str, ...]]  # formats and names of what runs, by kind
    checkpoint_schemes: Mapping[str, tuple[str, ...]]  # schemes of the checkpoint, by kind
    lines: tuple[str, ...]  # what the log says
    traced: tuple[str, ...] | None  # kernels of the recording; None of a log


def evidence_of(
    audit: Audit,
    statements: Sequence[Statement],
    facts: Mapping[str, Any] | None = None,
    kernels: Iterable[str] = (),
    attention: Iterable[str] = (),
) -> IssueEvidence:
    """What an audit and what it was made of show.

    Args:
        facts: what the recorded worker told of itself; None of a log alone.
        kernels: names of the kernels that ran.
        attention: classes that run attention in the live model.
    """
    engine = audit.engine
    arguments = _first(statements, "arguments")
    config = _first(statements, "engine-config")
    settings = {**_logged(f"{config} {arguments}"), **_recorded(facts or {})}
    settings |= {
        name: value.lower()
        for name, value in (
            ("quantization", engine.quantization),
            ("model_runner", _runner(statements)),
        )
        if value and name not in settings
    }
    if beyond := _beyond_graphs(statements, settings):
        settings["decode_tokens_beyond_graphs"] = beyond
    if engine.eager is not None:
        settings["enforce_eager"] = str(engine.eager).lower()
    environment: Mapping[str, str] | None = None
    if facts and "environment" in facts:
        environment = dict(engine.environment)
    return IssueEvidence(
        vllm="" if any(line.rule.id == "sglang-arguments" for line in statements) else engine.vllm,
        capability=_number(engine.capability),
        settings=settings,
        complete=bool(arguments) or bool(facts and facts.get("engine_config")),
        environment=environment,
        architectures=_architectures(statements, facts or {}),
        model=str((facts or {}).get("model") or "") or _model(f"{arguments} {config}"),
        chosen=_chosen(audit, statements, attention),
        checkpoint_schemes=_checkpoint_schemes(audit),
        lines=tuple(line.text for line in statements),
        traced=tuple(kernels) if facts is not None else None,
    )


def arguments_of(statements: Sequence[Statement]) -> Mapping[str, Any]:
    """What vLLM was given beyond its defaults, as its log tells; nothing where it is not whole."""
    text = _first(statements, "arguments")
    try:
        arguments = ast.literal_eval(text) if text.startswith("{") else {}
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    return arguments if isinstance(arguments, dict) else {}


def whole_number(text: str) -> int | None:
    """The number that a text is, if it is one of a size that settings have."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 1 <= number < 100 else None


def _first(statements: Sequence[Statement], rule: str) -> str:
    return next((line.detail for line in statements if line.rule.id == rule and line.detail), "")


def _field(text: str, name: str) -> str:
    """A value in what Python prints of an object or a dictionary; the last one counts.

    Arguments stand behind the configuration, and say what was given.
    """
    matches = re.findall(rf"\b{name}['\"]?[=:] ?['\"]?([\w.:/-]+)", text)
    return matches[-1] if matches else ""


def _logged(text: str) -> dict[str, str]:
    names = [name for name in _PLACES if name not in _SPECULATIVE]
    settings = {name: _field(text, name).lower() for name in names}
    # The configuration does not tell all that was given.
    for drafts in _DRAFTS.finditer(text):
        inside = drafts[2] or ""
        draft_settings = (
            _field(inside, "method"),
            _field(inside, "num_speculative_tokens") or _field(inside, "num_spec_tokens"),
            _field(inside, "draft_sample_method"),
        )
        values = _NO_DRAFTS if drafts[1] else tuple(map(str.lower, draft_settings))
        settings |= {name: value for name, value in zip(_SPECULATIVE, values, strict=True) if value}
    return {name: value for name, value in settings.items() if value}


def _recorded(facts: Mapping[str, Any]) -> dict[str, str]:
    config = mapping_in(facts, "engine_config")
    if not config:
        return {}
    settings = {}
    for name, (part, field) in _PLACES.items():
        value = mapping_in(config, part).get(field)
        if value is not None:
            settings[name] = str(value).lower()
    if not mapping_in(config, "speculative_config"):
        settings |= zip(_SPECULATIVE, _NO_DRAFTS, strict=True)
    for name, value in (
        ("quantization", facts.get("quantization")), ("model_runner", facts.get("model_runner")),
    ):  # fmt: skip
        if isinstance(value, str) and value:
            settings[name] = value.lower()
    return settings


def _beyond_graphs(statements: Sequence[Statement], settings: Mapping[str, str]) -> str:
    """Tokens of the largest decode batch beyond the largest CUDA graph, where that was cut."""
    cut = next((line.value for line in statements if line.rule.id == "graph-size-truncated"), "")
    sizes = (cut, settings.get("max_num_seqs", ""), settings.get("num_speculative_tokens", ""))
    largest, requests, drafts = map(whole_number, sizes)
    if largest is None or requests is None or drafts is None:
        return ""
    return str(max(0, requests * (1 + drafts) - largest))


def _runner(statements: Sequence[Statement]) -> str:
    for line in statements:
        if line.rule.id == "model-runner":
            return line.value or "v1"
    return ""


def _architectures(statements: Sequence[Statement], facts: Mapping[str, Any]) -> tuple[str, ...]:
    names = mapping_in(facts, "model_config").get("architectures")
    if isinstance(names, list):
        return tuple(str(name) for name in names)
    # A draft model's stands behind that of the model.
    matches = (_ARCHITECTURE.search(line.text) for line in statements)
    return tuple(match[1] for match in matches if match)[:1]


def _model(text: str) -> str:
    match = re.search(r"\b(?:model_tag|model)['\"]?[=:] ?['\"]([^'\"]{1,300})", text)
    return match[1] if match else ""


def _chosen(
    audit: Audit, statements: Sequence[Statement], attention: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    by_kind: dict[str, list[str]] = {"linear": [], "moe": [], "attention": [*attention], "gdn": []}
    for line in statements:
        name = line.value
        if line.rule.id == "gdn-kernel":
            by_kind["gdn"].append(name)
        elif line.rule.topic == "attention" and line.rule.id.startswith("attention"):
            by_kind["attention"].append(name)
        elif line.rule.topic in _CHOOSING and line.layer in ("linear", "moe") and name:
            by_kind[line.layer].append(_named(line.format or format_of(name), name))
    for row in audit.rows:
        kind = "moe" if row.layer in ("experts", "moe") else "linear"
        for source in row.witnesses:
            if source.who == "engine":
                by_kind[kind] += _names(source.kernel)
    return {kind: tuple(dict.fromkeys(names)) for kind, names in by_kind.items() if names}


def _names(kernel: str) -> list[str]:
    """A class of a live engine, and the backend that stands behind it as a log writes that."""
    backend = _BACKEND.search(kernel)
    backend_names = [_named(backend[1].lower(), backend[2])] if backend else []
    return [_named(format_of(kernel), kernel), *backend_names]


def _named(stored: str, name: str) -> str:
    return f"{'unquantized' if stored == '16-bit' else stored} {name}".strip()


def _checkpoint_schemes(audit: Audit) -> dict[str, tuple[str, ...]]:
    by_kind: dict[str, list[str]] = {}
    for row in audit.rows:
        kind = "moe" if row.layer in ("experts", "moe") else "linear"
        if row.checkpoint:
            by_kind.setdefault(kind, []).append(row.checkpoint)
    return {kind: tuple(schemes) for kind, schemes in by_kind.items()}
