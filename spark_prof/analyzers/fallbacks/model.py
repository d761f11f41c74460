"""What the fallback audit says, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from spark_prof.rules.environment import SettingRow


@dataclass(frozen=True)
class Engine:
    """How an engine was set up; empty or None where nothing tells.

    Attributes:
        vllm: its version.
        gpu: what the driver calls the GPU.
        capability: the GPU's compute capability, such as 12.1.
        quantization: the method, as vLLM calls it.
        eager: whether it runs without CUDA graphs.
        graph_mode: which CUDA graphs it uses, as vLLM calls it.
        graph_sizes: token counts of a step for which graphs were captured.
        prefix_caching: whether common beginnings of prompts are kept.
        moe_backend: what was asked for with --moe-backend, or auto.
        linear_backend: the same with --linear-backend.
        kv_cache: the format of the KV cache that was asked for.
        serves: whether it answers requests over the network.
        environment: its environment variables that matter, by name.
    """

    vllm: str = ""
    gpu: str = ""
    capability: str = ""
    quantization: str = ""
    eager: bool | None = None
    graph_mode: str = ""
    graph_sizes: tuple[int, ...] = ()
    prefix_caching: bool | None = None
    moe_backend: str = ""
    linear_backend: str = ""
    kv_cache: str = ""
    serves: bool = False
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Witness:
    """What one source says runs a group of layers.

    Attributes:
        who: engine (the live model's own objects), log or trace.
        kernel: the class, backend or kernel in its own words.
        family: the library or method, such as Marlin.
        activations: their format in the product, 16-bit where they are not quantized.
    """

    who: str
    kernel: str
    family: str
    activations: str


@dataclass(frozen=True)
class AuditRow:
    """Layers of one component that run alike.

    Attributes:
        layer: a component; linear or moe, where only a log tells.
        modules: how many, 0 where only a log tells.
        checkpoint: the scheme that the checkpoint asks for, such as W4A4 nvfp4.
        executed: the scheme that runs.
        witnesses: who says so; they agree unless `conflict` says otherwise.
        cause: the name of what made vLLM choose it, where it is not what the checkpoint asks for.
        why: that cause in a sentence.
        fix: what changes it in this vLLM; empty where nothing should.
        conflict: who contradicts whom.
    """

    layer: str
    modules: int
    checkpoint: str
    executed: str
    witnesses: tuple[Witness, ...]
    cause: str = ""
    why: str = ""
    fix: str = ""
    conflict: str = ""


@dataclass(frozen=True)
class BatchRow:
    """Decode steps of one size.

    Attributes:
        tokens: that the step computes.
        steps: how many there are.
        graph: the captured size that such a step is padded to; None where there is none.
    """

    tokens: int
    steps: int
    graph: int | None


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
    conflicts: tuple[str, ...] = ()
    """Where two sources tell different things about the same run."""
    notes: tuple[str, ...] = ()
    """What could not be told, and why."""

    def said(self, *rules: str) -> tuple[LogRow, ...]:
        """What the log says by these rules."""
        return tuple(row for row in self.log if row.id in rules)
