"""Says what was recorded, and with what."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from spark_prof.analyzers.model import Run
from spark_prof.traces.bundle import Bundle

_SINCE_EPOCH_NS = 10**18
"""Times before this, in 2001, count from something else than the epoch."""


def run_of(bundle: Bundle, rank: int, kernels: pd.DataFrame, steps: pd.DataFrame) -> Run:
    """What the bundle tells of the run of a rank.

    Args:
        bundle: the bundle.
        rank: the rank.
        kernels: its kernels, at least `kind`.
        steps: its steps, at least `start_ns`.
    """
    facts = bundle.facts(rank)
    on_cpu = bool(len(kernels)) and bool((kernels["kind"] == "op").all())
    return Run(
        source=_source(bundle),
        model=_model_name(facts),
        command=shlex.join(bundle.meta.command),
        vllm=str(facts.get("vllm") or ""),
        torch=str(facts.get("torch") or ""),
        backend=bundle.meta.backend,
        recorded_at=_recorded_at(bundle, steps),
        execution=_execution(facts),
        state=bundle.meta.state,
        units="op" if on_cpu else "kernel",
    )


def _source(bundle: Bundle) -> str:
    """The bundle's folder; of an import what it was made of, as its folder may be gone by then."""
    made_of = bundle.meta.settings.get("source") if bundle.imported else None
    return str(made_of or bundle.path)


def _recorded_at(bundle: Bundle, steps: pd.DataFrame) -> str:
    """When the recording ended, of an import when its first step began; empty where unknown."""
    if not bundle.imported:
        return bundle.meta.created
    begin = int(steps["start_ns"].min())
    if begin < _SINCE_EPOCH_NS:
        return ""
    return datetime.fromtimestamp(begin // 10**9, UTC).isoformat(timespec="seconds")


def _model_name(facts: Mapping[str, Any]) -> str:
    config = facts.get("model_config")
    architectures = config.get("architectures") if isinstance(config, dict) else None
    architecture = architectures[0] if isinstance(architectures, list) and architectures else ""
    path = str(facts.get("model") or "unknown model").rstrip("/").rsplit("/", 1)[-1]
    known = [str(item) for item in (architecture, facts.get("quantization")) if item]
    return f"{path} ({', '.join(known)})" if known else path


def _execution(facts: Mapping[str, Any]) -> str:
    parts = [str(facts.get("execution") or "")]
    if runner := facts.get("model_runner"):
        parts.append(f"model runner {runner}")
    if facts.get("async_scheduling"):
        parts.append("asynchronous scheduling")
    return ", ".join(filter(None, parts))
