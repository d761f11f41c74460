"""Reads a quantization configuration: which modules have weights and activations in which format.

Formats: Hugging Face's quantization_config (mxfp4, fp8, compressed-tensors, awq, gptq,
bitsandbytes, modelopt) and the `quantization` object of ModelOpt's hf_quant_config.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from spark_prof.rules.tensor_names import split_name

BYTES: Mapping[str, float] = {
    "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0,
    "mxfp8": 1.0 + 1 / 32, "mxfp4": 0.5 + 1 / 32,  # a scale of one byte for 32 elements
    "nvfp4": 0.5 + 1 / 16,  # a scale of one byte for 16 elements
    "int4": 0.5 + 2.5 / 128,  # as AWQ: two bytes of scale and four bits of zero point for 128
    "nf4": 0.5 + 1 / 64,  # as bitsandbytes: a scale for 64 elements, itself quantized to a byte
}  # fmt: skip
"""Bytes of one weight in each format, scales included."""

SIXTEEN_BIT = "16-bit"  # activations, or weights, as the model has them: BF16 or FP16

_BITS = {
    "nvfp4": 4, "mxfp4": 4, "int4": 4, "nf4": 4, "mxfp6": 6, "fp8": 8, "mxfp8": 8, "int8": 8,
    "bf16": 16, "fp16": 16, SIXTEEN_BIT: 16,
}  # fmt: skip


def bits_of(form: str) -> int | None:
    """Bits of one number in a format."""
    return _BITS.get(form)


def label(weights: str, activations: str) -> str:
    """A scheme as the field writes it: W4A16 nvfp4; W4 mxfp4 where nothing tells activations."""
    bits = bits_of(weights)
    if bits in (None, 16):
        return SIXTEEN_BIT if bits else ""
    activation_bits = bits_of(activations)
    return f"W{bits}{f'A{activation_bits}' if activation_bits else ''} {weights}"


_PLAIN = {
    "BF16": "bf16", "F16": "fp16", "F32": "fp32", "F8_E4M3": "fp8", "F8_E5M2": "fp8",
    "F8_E4M3FNUZ": "fp8", "F8_E5M2FNUZ": "fp8", "I8": "int8", "U8": "int8",
}  # fmt: skip
_PACKED_WORDS = ("I32", "U32", "I64")
_POWERS_OF_TWO = ("U8", "F8_E8M0")


def format_of(
    dtype: str, part: str, elements: int, scales: Mapping[str, int], bits: int
) -> tuple[str, int]:
    """The format of weights, and how many there are unpacked.

    Args:
        scales: by type of their block scales, how many of those are stored.
        bits: of an integer weight that is packed into words, as the configuration has it.
    """
    if dtype in _PACKED_WORDS and part in ("qweight", "weight_packed"):
        word = 64 if dtype == "I64" else 32
        return f"int{bits}", elements * word // bits
    # NVFP4's scales are FP8; MXFP4's are powers of two, one for 32 weights: were the bytes MXFP8,
    # there would be half as many.
    blocks = sum(scales.get(kind, 0) for kind in _POWERS_OF_TWO)
    halved = "absmax" in scales or "F8_E4M3" in scales or elements * 2 < 48 * blocks
    packed = dtype in ("U8", "I8") and halved
    if packed or dtype == "F4":
        weights = elements * 2 if packed else elements
        if "absmax" in scales:
            return "nf4", weights
        return ("nvfp4" if "F8_E4M3" in scales else "mxfp4"), weights
    if dtype in ("F8_E4M3", "F8_E5M2") and any(kind in scales for kind in _POWERS_OF_TWO):
        return "mxfp8", elements
    return _PLAIN.get(dtype, dtype.lower()), elements


_MOST_PATTERNS = 2_000
_LONGEST_PATTERN = 300
Formats = tuple[str, str]  # formats of weights and of activations; empty where nothing tells

ALGORITHMS: Mapping[str, Formats] = {
    "NVFP4": ("nvfp4", "nvfp4"),
    "NVFP4_AWQ": ("nvfp4", "nvfp4"),
    "W4A16_NVFP4": ("nvfp4", SIXTEEN_BIT),
    "MXFP4": ("mxfp4", ""),
    "MXFP8": ("mxfp8", "mxfp8"),
    "FP8": ("fp8", "fp8"),
    "FP8_PB_WO": ("fp8", ""),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", "fp8"),
    "W4A16_AWQ": ("int4", SIXTEEN_BIT),
    "W4A8_AWQ": ("int4", "fp8"),
    "INT8_SQ": ("int8", "int8"),
}
"""What ModelOpt's algorithms ask for."""

_INTEGERS = ("awq", "gptq", "auto-round", "gptq_marlin", "awq_marlin")
_LEAVES_HEAD = (*_INTEGERS, "fp8", "bitsandbytes")
"""Methods that leave lm_head as it is without saying so; GPTQ's configuration may say otherwise."""

_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "experts.routed_experts": ("experts.0.gate_proj", "experts.0.down_proj"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}
"""The checkpoint's modules that vLLM keeps as one."""


@dataclass(frozen=True)
class Scheme:
    """Formats and the modules that they are for; without targets, all linear layers."""

    formats: Formats
    targets: tuple[str, ...] = ()
    bits: Any = None  # of each weight, where a group of compressed-tensors tells


@dataclass(frozen=True)
class Schemes:
    """Which formats a checkpoint uses."""

    schemes: tuple[Scheme, ...] = ()  # the first one that fits a module counts
    exclusions: tuple[str, ...] = ()  # modules that stay as they are, as globs
    bits: int = 4  # of integer weights packed into words
    lost: tuple[str, ...] = ()  # what could not be understood
    keeps_head: bool = False  # whether lm_head stays as it is in the engine

    def of(self, path: str) -> Formats | None:
        """Formats of the checkpoint's module at that path, None where it stays as the model is."""
        if any(_fits(path, pattern) for pattern in self.exclusions):
            return None
        for scheme in self.schemes:
            if not scheme.targets or any(_fits(path, pattern) for pattern in scheme.targets):
                return scheme.formats
        return None

    def of_engine(self, path: str) -> Formats:
        """Formats of a module as vLLM names it, in which several of the checkpoint may be fused."""
        if self.keeps_head and path.rpartition(".")[2] == "lm_head":
            return SIXTEEN_BIT, SIXTEEN_BIT
        fused = next((name for name in _FUSED if path.endswith(name)), "")
        parts = [path.removesuffix(fused) + part for part in _FUSED.get(fused, ("",))]
        return next(filter(None, map(self.of, parts)), (SIXTEEN_BIT, SIXTEEN_BIT))


def schemes_of(config: Mapping[str, Any]) -> Schemes:
    """Reads a quantization configuration; an empty one quantizes nothing."""
    lost: list[str] = []
    # vLLM renames the method of gpt-oss to its own; the checkpoint's is mxfp4.
    method = str(config.get("quant_method") or "").lower().removeprefix("gpt_oss_")
    names = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")
    lists = (config[name] for name in names if isinstance(config.get(name), list))
    exclusions: list[Any] = next(lists, [])
    bits = config.get("bits")
    groups = config.get("config_groups")
    layers = config.get("quantized_layers")
    if isinstance(layers, dict):
        schemes = _by_layer(layers, lost)
    elif isinstance(groups, dict):
        schemes = [_group(group, str(config.get("format") or "")) for group in groups.values()]
    elif method == "mxfp4":
        schemes = [Scheme(("mxfp4", ""), ("*.experts*",))]
    elif method == "fp8":
        schemes = [Scheme(("fp8", "fp8"))]
    elif method in _INTEGERS:
        schemes = [Scheme(("int8" if bits == 8 else "int4", SIXTEEN_BIT))]
    elif method == "bitsandbytes":
        schemes = [Scheme(("nf4" if config.get("load_in_4bit") else "int8", SIXTEEN_BIT))]
    else:
        schemes = [Scheme(_algorithm(str(config.get("quant_algo") or ""), lost))]
        if method and method != "modelopt" and not config.get("quant_algo"):
            lost.append(f"The quantization method {method} is not known: taken as unquantized.")
    return Schemes(
        tuple(scheme for scheme in schemes if scheme.formats[0]),
        _globs(exclusions, lost),
        int(
            next((n for n in (*(scheme.bits for scheme in schemes), bits) if n in (2, 3, 4, 8)), 4)
        ),
        tuple(lost),
        method in _LEAVES_HEAD and config.get("lm_head") is not True,
    )


def _by_layer(layers: Mapping[str, Any], lost: list[str]) -> list[Scheme]:
    """ModelOpt's mixed precision: a format for each module, experts one by one or by a pattern."""
    targets: dict[str, dict[str, None]] = {}
    for path, chosen in layers.items():
        name = chosen.get("quant_algo") if isinstance(chosen, dict) else None
        pattern = _anywhere(split_name(path)[0])
        if len(pattern) <= _LONGEST_PATTERN:
            targets.setdefault(str(name or ""), {})[pattern] = None
    return [
        Scheme(_algorithm(name, lost), tuple(paths)[:_MOST_PATTERNS])
        for name, paths in targets.items()
    ]


def _algorithm(name: str, lost: list[str]) -> Formats:
    if name and name not in ALGORITHMS:
        lost.append(f"The quantization {name} is not known: taken as unquantized.")
    return ALGORITHMS.get(name, ("", ""))


def _group(group: object, overall: str) -> Scheme:
    """A group of compressed-tensors, or of ModelOpt in the same form."""
    if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
        return Scheme(("", ""))
    weights = group["weights"]
    bits, kind = weights.get("num_bits"), str(weights.get("type") or "")
    packing = str(group.get("format") or overall)
    size = weights.get("group_size")
    if kind == "float" and bits == 4:
        form = "mxfp4" if "mxfp4" in packing or size == 32 else "nvfp4"
    elif kind == "float":
        form = "mxfp8" if "mxfp8" in packing else "fp8"
    else:
        form = "int8" if bits == 8 else "int4"
    targets = group.get("targets")
    named = [t for t in targets if isinstance(t, str)] if isinstance(targets, list) else []
    # A class such as Linear stands for every module of it.
    formats = form, _inputs(group.get("input_activations"))
    return Scheme(formats, () if "Linear" in named else _globs(named, []), bits)


def _inputs(inputs: object) -> str:
    """The format of the activations of a group of compressed-tensors."""
    if not isinstance(inputs, dict):
        return SIXTEEN_BIT
    if inputs.get("num_bits") == 4:
        return "mxfp4" if inputs.get("group_size") == 32 else "nvfp4"
    if inputs.get("num_bits") == 8:
        return "fp8" if inputs.get("type") == "float" else "int8"
    return ""


def _globs(patterns: list[Any], lost: list[str]) -> tuple[str, ...]:
    """Patterns of modules as globs, which are matched in bounded time, unlike expressions."""
    globs = []
    for pattern in patterns[:_MOST_PATTERNS]:
        if not isinstance(pattern, str) or not 0 < len(pattern) <= _LONGEST_PATTERN:
            continue
        if not pattern.startswith("re:"):
            globs.append(_anywhere(pattern))
            continue
        glob = re.sub(r"\\d\+|\[0-9\]\+|\.\*|\.\+", "*", pattern.removeprefix("re:"))
        glob = glob.replace("\\.", ".").removeprefix("^")
        if re.search(r"[\\()\[\]|+?{}]", glob):
            lost.append(f"The pattern {pattern} is not understood: taken as fitting nothing.")
            continue
        # An expression that is found at the begin fits; only $ asks for the end.
        globs.append(_anywhere(glob.removesuffix("$") if glob.endswith("$") else f"{glob}*"))
    return tuple(globs)


def _anywhere(pattern: str) -> str:
    """The pattern for any prefix before the layers: checkpoints and configurations differ there."""
    before, layers, after = pattern.partition("layers.")
    return f"*{layers}{after}" if layers and "*" not in before else pattern


def _fits(path: str, pattern: str) -> bool:
    """Whether a pattern names the module, one that holds it, or a part of its path."""
    if "*" in pattern:
        return fnmatchcase(f"{path}.", f"{pattern}.*")
    return path == pattern or f".{pattern}." in f".{path}."
