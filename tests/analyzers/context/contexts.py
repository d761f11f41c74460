"""Recordings made by hand of steps at planted contexts, whose attention takes planted times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_prof.traces.bundle import Bundle
from tests.support import PREPARE, Piece, Recorded, call, engine, kernel, kineto, step

GPU = {"name": "NVIDIA H200", "compute_capability": "9.0"}
FULL: Mapping[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 8,
    "head_dim": 64, "model_type": "qwen3",
}  # fmt: skip
"""Two layers of full attention: 2 x 8 x 64 elements of 2 bytes a token and layer, 2,048 bytes."""

Us = Callable[[float, int], float]
"""What attention takes in a layer, in us, of the context of a request and the step's number."""


@dataclass(frozen=True)
class Sized:
    """A step: the context that each of its requests has."""

    context: int
    requests: int = 1
    phase: str = "decode"
    prompt_tokens: int = 0
    rest_us: float = 100.0  # of everything but attention


def recorded(
    path: Path,
    steps: Sequence[Sized],
    layers: Sequence[tuple[str, Us]],
    model: Mapping[str, Any] = FULL,
    *,
    placed: bool = True,
    **facts: Any,
) -> Bundle:
    """The bundle of these steps.

    Args:
        layers: the component that each layer's kernel works for, and what it takes.
        placed: whether modules of layers are known.
    """
    modules = [
        {"path": "step.prepare", "type": "", "layer": -1, "component": "attention"},
        {"path": "lm_head", "type": "", "layer": -1, "component": "lm_head"},
        *(
            {"path": f"model.layers.{number}.{_MODULE[component]}", "type": "", "layer": number,
             "component": component}
            for number, (component, _) in enumerate(layers)
        ),
    ]  # fmt: skip
    rows, engines, calls, traced = [], [], [], []
    at = 0
    for number, one in enumerate(steps):
        begin = at + 5000
        launched = at + 100
        calls += call(PREPARE, at + 20, at + 60)
        for layer, (component, us) in enumerate(layers):
            end = begin + round(1000 * us(one.context, number))
            if placed:
                calls += call(2 + layer, launched, launched + 50)
            name = f"{component}_kernel"
            traced.append(kernel(name, begin, end, 100 * number + layer, launched + 10))
            begin, launched = end, launched + 100
        calls += call(1, launched, launched + 50)
        end = begin + round(1000 * one.rest_us)
        traced.append(kernel("gemm_lm_head", begin, end, 100 * number + 99, launched + 10))
        counts = {
            "decode_requests": one.requests, "decode_tokens": one.requests,
            "context_tokens": one.context * one.requests, "prefill_tokens": one.prompt_tokens,
            "prefill_requests": 1 if one.prompt_tokens else 0,
        }  # fmt: skip
        rows.append(step(number, at + 10, end - 10, one.phase, **counts))
        given = one.requests + bool(one.prompt_tokens)
        engines.append(engine(number, at, end, output_tokens=given, output_requests=given))
        at = end
    everything = {"model_config": dict(model), "gpu": GPU, "execution": "eager",
            "dtype": "bfloat16"} | facts  # fmt: skip
    recording = Recorded(
        {0: [Piece(rows, calls, kineto(*traced))]}, {0: engines}, everything, modules=modules
    )
    return recording.assemble(path)


_MODULE = {
    "attention": "self_attn.attn", "ssm": "linear_attn", "mlp": "mlp", "experts": "mlp.experts",
}  # fmt: skip
