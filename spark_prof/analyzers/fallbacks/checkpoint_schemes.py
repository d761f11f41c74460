"""Which weights and activations a checkpoint asks for, and how a scheme is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_prof.analyzers.ceilings.schemes import schemes_of

SIXTEEN_BIT = "16-bit"
"""Activations, or weights, as the model has them: BF16 or FP16."""

_BITS = {
    "nvfp4": 4, "mxfp4": 4, "int4": 4, "nf4": 4, "mxfp6": 6, "fp8": 8, "mxfp8": 8, "int8": 8,
    "bf16": 16, "fp16": 16, SIXTEEN_BIT: 16,
}  # fmt: skip
_ALGORITHMS = {
    "NVFP4": "nvfp4", "NVFP4_AWQ": "nvfp4", "W4A16_NVFP4": SIXTEEN_BIT, "MXFP8": "mxfp8",
    "FP8": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8", "W4A16_AWQ": SIXTEEN_BIT,
    "W4A8_AWQ": "fp8", "INT8_SQ": "int8",
}  # fmt: skip
"""Activations of ModelOpt's algorithms; FP8_PB_WO does not tell."""

_METHODS = {
    "fp8": "fp8", "awq": SIXTEEN_BIT, "gptq": SIXTEEN_BIT, "awq_marlin": SIXTEEN_BIT,
    "gptq_marlin": SIXTEEN_BIT, "auto-round": SIXTEEN_BIT, "bitsandbytes": SIXTEEN_BIT,
}  # fmt: skip


def bits_of(format: str) -> int | None:  # noqa: A002 - a format is what it is
    """Bits of one number in a format."""
    return _BITS.get(format)


def label(weights: str, activations: str) -> str:
    """A scheme as the field writes it: W4A16 nvfp4; empty where neither part is known."""
    weight_bits, activation_bits = bits_of(weights), bits_of(activations)
    if weight_bits is None:
        return ""
    if weight_bits == 16:
        return "16-bit"
    return f"W{weight_bits}A{activation_bits or '?'} {weights}"


def scheme_of_algorithm(name: str) -> tuple[str, str]:
    """Weights and activations of one of ModelOpt's algorithms; empty where it is not known."""
    found = schemes_of({"quant_method": "modelopt", "quant_algo": name}).schemes
    return (found[0].format, _ALGORITHMS.get(name, "")) if found else ("", "")


class CheckpointSchemes:
    """The formats that a model's quantization configuration asks for, module by module."""

    def __init__(self, model_config: Mapping[str, Any]) -> None:
        found = model_config.get("quantization_config")
        config: Mapping[str, Any] = found if isinstance(found, dict) else {}
        # vLLM renames the method of gpt-oss to its own; the checkpoint's is mxfp4.
        method = str(config.get("quant_method") or "").removeprefix("gpt_oss_")
        self._config = {**config, "quant_method": method} if config else {}
        self.known = bool(model_config)
        """Whether there is a model configuration at all."""
        self._schemes = schemes_of(self._config)
        self._method = method

    def of(self, path: str) -> tuple[str, str]:
        """Formats of a module's weights and activations; empty where nothing tells.

        Args:
            path: as vLLM names the module; several checkpoint modules may be fused in it.
        """
        if not self.known:
            return "", ""
        weights = self._weights(path)
        if weights is None:
            return SIXTEEN_BIT, SIXTEEN_BIT
        return weights, self._activations(path, weights)

    def _weights(self, path: str) -> str | None:
        # These methods leave lm_head as it is without saying so; GPTQ's config may say otherwise.
        head = path.rpartition(".")[2] == "lm_head" and self._method in _METHODS
        if head and self._config.get("lm_head") is not True:
            return None
        found = (self._schemes.format_of(name) for name in _unfused(path))
        return next(filter(None, found), None)

    def _activations(self, path: str, weights: str) -> str:
        layers = self._config.get("quantized_layers")
        if isinstance(layers, dict):
            chosen = next((layers[name] for name in _unfused(path) if name in layers), None)
            algorithm = chosen.get("quant_algo") if isinstance(chosen, dict) else None
            return _ALGORITHMS.get(str(algorithm), "")
        groups = self._config.get("config_groups")
        if isinstance(groups, dict) and groups:
            found = {_inputs(group) for group in groups.values() if _is_of(group, weights)}
            return found.pop() if len(found) == 1 else ""
        if algorithm := self._config.get("quant_algo"):
            return _ALGORITHMS.get(str(algorithm), "")
        return _METHODS.get(self._method, "")


_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "experts.routed_experts": ("experts.0.gate_proj", "experts.0.down_proj"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}


def _unfused(path: str) -> tuple[str, ...]:
    """The checkpoint's modules that vLLM keeps as one."""
    for fused, parts in _FUSED.items():
        if path.endswith(fused):
            head = path.removesuffix(fused)
            return tuple(head + part for part in parts)
    return (path,)


def _is_of(group: object, weights: str) -> bool:
    """Whether a group of compressed-tensors stores weights with as many bits as that format."""
    found = group.get("weights") if isinstance(group, dict) else None
    return isinstance(found, dict) and found.get("num_bits") == bits_of(weights)


def _inputs(group: Any) -> str:
    """The format of a group's activations."""
    inputs = group.get("input_activations")
    if not isinstance(inputs, dict):
        return SIXTEEN_BIT
    if inputs.get("num_bits") == 4:
        return "mxfp4" if inputs.get("group_size") == 32 else "nvfp4"
    if inputs.get("num_bits") == 8:
        return "fp8" if inputs.get("type") == "float" else "int8"
    return ""
