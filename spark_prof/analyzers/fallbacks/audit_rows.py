"""What the fallback audit says, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from spark_prof.rules.environment import SettingRow


@dataclass(frozen=True)
class Engine:
    """How an engine was set up; empty or None where nothing tells."""

    vllm: str = ""  # its version
    gpu: str = ""  # what the driver calls the GPU
    capability: str = ""  # the GPU's compute capability, such as 12.1
    quantization: str = ""  # the method, as vLLM calls it
    eager: bool | None = None  # whether it runs without CUDA graphs
    graph_mode: str = ""  # which CUDA graphs it uses, as vLLM calls it
    graph_sizes: tuple[int, ...] = ()  # token counts of a step for which graphs were captured
    prefix_caching: bool | None = None  # whether common beginnings of prompts are kept
    moe_backend: str = ""  # what was asked for with --moe-backend, or auto
    linear_backend: str = ""  # the same with --linear-backend
    kv_cache: str = ""  # the format of the KV cache that was asked for
    serves: bool = False  # whether it answers requests over the network
    environment: tuple[tuple[str, str], ...] = ()  # its environment variables that matter, by name


@dataclass(frozen=True)
class EvidenceSource:
    """What one source says runs a group of layers."""

    who: str  # engine (the live model's own objects), log or trace
    kernel: str  # the class, backend or kernel in its own words
    family: str  # the library or method, such as Marlin
    activations: str  # their format in the product, 16-bit where they are not quantized


@dataclass(frozen=True)
class AuditRow:
    """Layers of one component that run alike."""

    layer: str  # a component; linear or moe, where only a log tells
    modules: int  # how many, 0 where only a log tells
    checkpoint: str  # the scheme that the checkpoint asks for, such as W4A4 nvfp4
    executed: str  # the scheme that runs
    witnesses: tuple[EvidenceSource, ...]  # they agree unless `conflict` says otherwise
    cause: str = ""  # what made vLLM choose it, where the checkpoint does not ask for it
    why: str = ""  # that cause in a sentence
    fix: str = ""  # what changes it in this vLLM; empty where nothing should
    conflict: str = ""  # who contradicts whom


@dataclass(frozen=True)
class BatchRow:
    """Decode steps of one size."""

    tokens: int  # that the step computes
    steps: int
    graph: int | None  # the captured size that such a step is padded to; None where there is none


@dataclass(frozen=True)
class LogRow:
    """What a log says, once for all lines that say the same."""

    id: str
    topic: str
    means: str
    value: str
    format: str
    layer: str
    detail: str
    line: int
    count: int
    text: str


@dataclass(frozen=True)
class Audit:
    """What was chosen for which layers, who says so, and what is set to no effect."""

    engine: Engine
    rows: tuple[AuditRow, ...] = ()
    settings: tuple[SettingRow, ...] = ()
    batches: tuple[BatchRow, ...] = ()
    log: tuple[LogRow, ...] = ()
    conflicts: tuple[str, ...] = ()  # where two sources tell different things about the same run
    notes: tuple[str, ...] = ()  # what could not be told, and why

    def said(self, *rules: str) -> tuple[LogRow, ...]:
        """What the log says by these rules."""
        return tuple(row for row in self.log if row.id in rules)
