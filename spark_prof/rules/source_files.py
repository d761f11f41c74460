"""What vLLM's source files work for, where every kernel that a file launches does.

A linear layer's file serves products of attention and mlp alike, an activation's experts and mlp,
that of the embedding its lookup and the product of the logits: such files have no row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class SourceFile:
    """Files below the package `vllm` that match, and their component."""

    pattern: str
    component: str
    example: str


SOURCE_FILES = (
    SourceFile(r"model_executor/layers/(?:layernorm|minimax_rms_norm/\w+)\.py", "norm",
               "model_executor/layers/layernorm.py"),
    SourceFile(r"model_executor/layers/rotary_embedding/\w+\.py", "rope",
               "model_executor/layers/rotary_embedding/base.py"),
    SourceFile(r"model_executor/layers/fused_moe/router/\w+\.py", "router",
               "model_executor/layers/fused_moe/router/grouped_topk_router.py"),
    SourceFile(r"model_executor/layers/fused_moe/(?:\w+/)*\w+\.py", "experts",
               "model_executor/layers/fused_moe/layer.py"),
    SourceFile(r"model_executor/layers/mamba/(?:\w+/)*\w+\.py", "ssm",
               "model_executor/layers/mamba/mamba_mixer2.py"),
    SourceFile(r"model_executor/layers/logits_processor\.py", "lm_head",
               "model_executor/layers/logits_processor.py"),
    SourceFile(r"(?:v1|model_executor/layers)/attention/(?:\w+/)*\w+\.py", "attention",
               "v1/attention/backends/flash_attn.py"),
    SourceFile(r"v1/(?:worker/gpu/)?sample/(?:\w+/)*\w+\.py", "sampler", "v1/sample/sampler.py"),
)  # fmt: skip

_COMPILED = tuple((re.compile(row.pattern), row.component) for row in SOURCE_FILES)


def component_of_source(file: str) -> str:
    """The component of a file by its path below vLLM's package; empty where it serves several."""
    return next((component for pattern, component in _COMPILED if pattern.fullmatch(file)), "")
