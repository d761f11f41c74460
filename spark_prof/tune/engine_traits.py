"""A recorded engine and its machine, and what they have of `rules.tune_candidates.TRAITS`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_prof.analyzers.ceilings.schemes import bits_of
from spark_prof.analyzers.findings.other_backends import stored_format
from spark_prof.analyzers.findings.rule import has_qk_norm, runs_eagerly
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.analyzers.model import ModuleRow, Report
from spark_prof.rules.environment import UNKNOWN, version_of
from spark_prof.rules.tune_candidates import TRAITS
from spark_prof.traces.bundle import Bundle

_OF_LAYERS = frozenset({
    "native-norms", "attention", "qk-norm", "mla", "gdn", "attention-quantizes", "fp8-activations",
    "mlp-quantizes", "o-quantizes", "flashinfer-blocks", "deepgemm", "small-marlin",
    "shared-experts", "b12x-experts",
})  # fmt: skip
"""Traits that only the model's layers tell."""
UNTOLD = "the recording does not tell the model's layers; spark-prof record does"
_RMS_NORM = "RMSNorm"  # the one class that vLLM's passes and its kernels of norms know
_QUANTIZING_ATTENTION = ("TritonAttentionImpl", "FlashInferImpl")
_LINEAR = {
    "qkv": "", "o_proj": "o-quantizes", "mlp": "mlp-quantizes", "shared_experts": "mlp-quantizes",
}  # fmt: skip
"""Linear layers that are alike in every model, and the trait of those that quantize what comes."""
_OF_MODULES: Mapping[str, Callable[[ModuleRow], bool]] = {
    "attention": lambda m: m.component == "attention" and bool(m.kernel),
    "attention-quantizes": lambda m: m.kernel in _QUANTIZING_ATTENTION,
    "shared-experts": lambda m: m.component == "shared_experts",
    "mla": lambda m: "MLAAttention" in m.type,
    "gdn": lambda m: "GatedDeltaNet" in m.type,
    "deepgemm": lambda m: "DeepGemm" in m.kernel,
    "flashinfer-blocks": lambda m: "FlashInfer" in m.kernel and "Block" in m.kernel,
}
_FUSES_SUMS = ("DeepseekV41", "KimiK3")
"""Models of vLLM 0.31 and later that read VLLM_ENABLE_GEMM_RS: models/deepseek_v41 and kimi_k3."""
_FULL = ("FULL", "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY")
_UNCOMPILED = ("0", "CompilationMode.NONE", "NONE")
_ATOMIC_ROWS = 2048
"""Marlin's own limit: marlin_utils.should_use_atomic_add_reduce of vLLM 0.26 and 0.32."""
_CODES = {"nvfp4": 8, "mxfp4": 8, "int4": 8, "fp8": 4}
"""Elements in a word of a weight as Marlin lays it out."""


_NESTED = re.compile(r"\w+\((.*)\)", re.S)
_FIELD = re.compile(r"(\w+)=(\[[^\]]*\]|[^,()]+)")


@dataclass(frozen=True)
class MachineFacts:
    """The machine and the engine; empty where nothing tells."""

    gpu: str = ""  # its name, of a CPU engine the processor's
    capability: str = ""  # compute capability, such as 12.1; empty without a GPU
    vllm: str = ""  # its version
    architecture: str = ""  # the model's class, such as GptOssForCausalLM
    runner: str = ""  # model runner V1 or V2
    flashinfer: str | None = None  # its version, empty if it is not installed; None if unknown
    # The configuration in effect by path, such as compilation_config.pass_config.fuse_act_quant.
    configuration: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)  # of the recorded engine
    # That are to be made fast; the recording's where it is empty.
    batch_sizes: tuple[int, ...] = ()


def recorded_facts(bundle: Bundle) -> MachineFacts:
    """The facts that a recording holds, of its lowest rank."""
    facts = bundle.facts(min(bundle.ranks, default=0))
    gpu = mapping_in(facts, "gpu")
    architectures = mapping_in(facts, "model_config").get("architectures")
    names = architectures if isinstance(architectures, list) and architectures else [""]
    flashinfer = facts.get("flashinfer")
    return MachineFacts(
        gpu=str(gpu.get("name") or ""),
        capability=str(gpu.get("compute_capability") or ""),
        vllm=str(facts.get("vllm") or ""),
        architecture=str(names[0]),
        runner=str(facts.get("model_runner") or ""),
        flashinfer=flashinfer if isinstance(flashinfer, str) else None,
        configuration=dict(_paths(mapping_in(facts, "engine_config"))),
        environment={k: str(v) for k, v in mapping_in(facts, "environment").items()},
    )


def _paths(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for section in config:
        for name, value in mapping_in(config, section).items():
            text = str(value)
            yield f"{section}.{name}", text
            if nested := _NESTED.fullmatch(text):  # a configuration in another, as Python has it
                for inner, of in _FIELD.findall(nested[1]):
                    yield f"{section}.{name}.{inner}", of


@dataclass(frozen=True)
class EngineTraits:
    """The traits that an engine has, and its batch sizes."""

    present: frozenset[str]
    has_layers: bool  # whether the recording tells the model's layers
    sizes: tuple[int, ...]  # batch sizes that matter, ascending
    graphs: tuple[int, ...]  # of the CUDA graphs, ascending; empty where it has none

    @property
    def captured(self) -> tuple[int, ...]:
        """The batch sizes that have a CUDA graph of their own."""
        return tuple(size for size in self.sizes if size in self.graphs)

    def why_not(self, trait: str) -> str:
        """What is said of a trait that it lacks."""
        if trait in _OF_LAYERS and not self.has_layers:
            return UNTOLD
        return TRAITS[trait]


def traits_of(report: Report, facts: MachineFacts) -> EngineTraits:
    """The traits of a recorded engine."""
    engine = report.audit.engine if report.audit else None
    batches = report.audit.batches if report.audit else ()
    sizes = tuple(sorted({*(facts.batch_sizes or (row.tokens for row in batches))})) or (1,)
    graphs = engine.graph_sizes if engine else ()
    eager = runs_eagerly(report)
    present = {*_of_model(report), *_of_machine(report, facts)}
    if eager:
        present.add("eager")
    elif facts.configuration.get("compilation_config.mode", "") not in _UNCOMPILED:
        present.add("compiled")
    if engine and engine.graph_mode not in _FULL:
        present.add("no-full-graphs")
    if graphs and not set(sizes) <= set(graphs):
        present.add("uncaptured")
    return EngineTraits(
        frozenset(present), bool(report.modules), sizes, graphs if not eager else ()
    )


def _of_machine(report: Report, facts: MachineFacts) -> Iterator[str]:
    config = facts.configuration
    capability = version_of(facts.capability)
    if capability != UNKNOWN:
        yield "gpu"
    elif not facts.capability:
        yield "cpu"
    if capability >= (8, 9):
        yield "fp8-unit"
    if capability == (9, 0) or capability[0] == 10:
        yield "fused-sums"
    if config.get("parallel_config.tensor_parallel_size", "1") != "1":
        yield "several-gpus"
    if capability == (12, 0):
        yield "cards"
    if capability[0] == 10 and facts.architecture.startswith(_FUSES_SUMS):
        yield "sequence-parallel"
    if config.get("scheduler_config.async_scheduling") == "False":
        yield "synchronous"
    if facts.runner:
        yield f"{facts.runner.lower()}-runner"
    if config.get("cache_config.cache_dtype", "auto") in ("auto", "bfloat16", "float16"):
        yield "wide-cache"
    first = config.get("kernel_config.ir_op_priority.rms_norm", "").split(",")[0]
    if "native" in first and any(row.type == _RMS_NORM for row in report.modules):
        yield "native-norms"


def _of_model(report: Report) -> Iterator[str]:
    modules = report.modules
    for row in modules:
        yield from (trait for trait, holds in _OF_MODULES.items() if holds(row))
        if "Marlin" in row.kernel and row.component != "experts" and _is_small(row, report):
            yield "small-marlin"
    if has_qk_norm(m for m in modules if m.component != "norm" or m.type == _RMS_NORM):
        yield "qk-norm"
    for layers in report.audit.rows if report.audit else ():
        families = {source.family for source in layers.witnesses}
        fp4 = layers.weights in ("nvfp4", "mxfp4")
        if layers.layer == "experts" and "b12x" in families and fp4:
            yield "b12x-experts"
        if layers.layer in _LINEAR and layers.weights == "fp8" and bits_of(layers.activations) == 8:
            yield "fp8-activations"
        if layers.layer in _LINEAR and layers.narrow_activations:
            yield _LINEAR[layers.layer]


def _is_small(row: ModuleRow, report: Report) -> bool:
    """Whether Marlin may sum such a weight with atomic additions."""
    sides = row.shape.split("x")
    codes = _CODES.get(stored_format(report, row.component))
    if len(sides) != 2 or codes is None or not all(map(str.isdecimal, sides)):
        return False
    columns, rows = int(sides[0]) * 16, int(sides[1]) * codes // 16
    return rows < _ATOMIC_ROWS <= columns
