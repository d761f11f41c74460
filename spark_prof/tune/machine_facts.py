"""What a tune has to know of the GPU, the vLLM and the model before it tries anything."""

from __future__ import annotations

from dataclasses import dataclass

from spark_prof.traces.bundle import Bundle


@dataclass(frozen=True)
class MachineFacts:
    """The machine and the model; empty, None or 0 where nothing tells."""

    gpu: str = ""  # its name, of a CPU engine the processor's
    capability: str = ""  # compute capability, such as 12.1; empty without a GPU
    vllm: str = ""  # its version


def recorded_facts(bundle: Bundle) -> MachineFacts:
    """The facts that a recording holds."""
    raise NotImplementedError
