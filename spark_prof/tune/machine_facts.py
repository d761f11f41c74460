"""What a tune has to know of the GPU, the vLLM and the engine before it tries anything."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_prof.analyzers.lookup import mapping_in
from spark_prof.traces.bundle import Bundle

_WRITTEN = re.compile(r"\w+\((.*)\)", re.S)
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


def recorded_facts(bundle: Bundle, rank: int | None = None) -> MachineFacts:
    """The facts that a recording holds, of its lowest rank if none is given."""
    if rank is None:
        rank = min(bundle.ranks, default=0)
    facts = bundle.facts(rank)
    gpu = mapping_in(facts, "gpu")
    architectures = mapping_in(facts, "model_config").get("architectures")
    known = architectures if isinstance(architectures, list) and architectures else [""]
    flashinfer = facts.get("flashinfer")
    return MachineFacts(
        gpu=str(gpu.get("name") or ""),
        capability=str(gpu.get("compute_capability") or ""),
        vllm=str(facts.get("vllm") or ""),
        architecture=str(known[0]),
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
            if written := _WRITTEN.fullmatch(text):  # a configuration in another, as Python has it
                for inner, of in _FIELD.findall(written[1]):
                    yield f"{section}.{name}.{inner}", of
