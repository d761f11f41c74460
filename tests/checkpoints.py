"""Writes model folders as they are downloaded, with headers of safetensors files and no weights.

The names, types and shapes of each format are those of published checkpoints: openai/gpt-oss-20b
(MXFP4), NVIDIA's ModelOpt (NVFP4, FP8), RedHatAI's compressed-tensors (NVFP4, MXFP4, int4),
Qwen's FP8, AutoAWQ, GPTQ and bitsandbytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from spark_prof.traces.checkpoint import BITS, Tensor

MODELS = Path(__file__).parent / "data" / "models"
Shape = tuple[str, tuple[int, ...]]
Linear = Callable[[int, int], Mapping[str, Shape]]
"""From the rows and columns of a matrix to its tensors, by what follows the module's name."""


def _nvfp4_modelopt(n: int, k: int) -> Mapping[str, Shape]:
    return {
        ".weight": ("U8", (n, k // 2)),
        ".weight_scale": ("F8_E4M3", (n, k // 16)),
        ".weight_scale_2": ("F32", ()),
        ".input_scale": ("F32", ()),
    }


def _nvfp4_compressed(n: int, k: int) -> Mapping[str, Shape]:
    return {
        ".weight_packed": ("U8", (n, k // 2)),
        ".weight_scale": ("F8_E4M3", (n, k // 16)),
        ".weight_global_scale": ("F32", (1,)),
        ".input_global_scale": ("F32", (1,)),
    }


def _mxfp4_compressed(n: int, k: int) -> Mapping[str, Shape]:
    return {".weight_packed": ("U8", (n, k // 2)), ".weight_scale": ("U8", (n, k // 32))}


def _mxfp8(n: int, k: int) -> Mapping[str, Shape]:
    return {".weight": ("F8_E4M3", (n, k)), ".weight_scale": ("U8", (n, k // 32))}


def _fp8_block(n: int, k: int) -> Mapping[str, Shape]:
    blocks = (math.ceil(n / 128), math.ceil(k / 128))
    return {".weight": ("F8_E4M3", (n, k)), ".weight_scale_inv": ("F32", blocks)}


def _fp8_modelopt(n: int, k: int) -> Mapping[str, Shape]:
    scale = ("F32", ())
    return {".weight": ("F8_E4M3", (n, k)), ".weight_scale": scale, ".input_scale": scale}


def _awq(n: int, k: int) -> Mapping[str, Shape]:
    return {
        ".qweight": ("I32", (k, n // 8)),
        ".qzeros": ("I32", (k // 128, n // 8)),
        ".scales": ("F16", (k // 128, n)),
    }


def _gptq(n: int, k: int) -> Mapping[str, Shape]:
    return {
        ".qweight": ("I32", (k // 8, n)),
        ".qzeros": ("I32", (k // 128, n // 8)),
        ".scales": ("F16", (k // 128, n)),
        ".g_idx": ("I32", (k,)),
    }


def _int4_compressed(n: int, k: int) -> Mapping[str, Shape]:
    return {
        ".weight_packed": ("I32", (n, k // 8)),
        ".weight_scale": ("BF16", (n, k // 128)),
        ".weight_shape": ("I64", (2,)),
    }


def _nf4(n: int, k: int) -> Mapping[str, Shape]:
    return {
        ".weight": ("U8", (n * k // 2, 1)),
        ".weight.absmax": ("U8", (n * k // 64,)),
        ".weight.quant_map": ("F32", (16,)),
        ".weight.nested_absmax": ("F32", (n * k // 64 // 256,)),
        ".weight.nested_quant_map": ("F32", (256,)),
        ".weight.quant_state.bitsandbytes__nf4": ("U8", (90,)),
    }


def _plain(n: int, k: int) -> Mapping[str, Shape]:
    return {".weight": ("BF16", (n, k))}


FORMATS: Mapping[str, tuple[str, Linear]] = {
    "NVFP4 by ModelOpt": ("nvfp4", _nvfp4_modelopt),
    "NVFP4 by compressed-tensors": ("nvfp4", _nvfp4_compressed),
    "MXFP4 by compressed-tensors": ("mxfp4", _mxfp4_compressed),
    "MXFP8": ("mxfp8", _mxfp8),
    "FP8 in blocks": ("fp8", _fp8_block),
    "FP8 by ModelOpt": ("fp8", _fp8_modelopt),
    "AWQ": ("int4", _awq),
    "GPTQ": ("int4", _gptq),
    "int4 by compressed-tensors": ("int4", _int4_compressed),
    "bitsandbytes NF4": ("nf4", _nf4),
    "BF16": ("bf16", _plain),
}


def config_of(name: str) -> dict[str, Any]:
    """The config.json of a model in tests/data/models, without its quantization."""
    config = json.loads((MODELS / name / "config.json").read_text())
    return {key: value for key, value in config.items() if key != "quantization_config"}


def as_tensors(tensors: Mapping[str, Shape]) -> tuple[Tensor, ...]:
    """The tensors as a file's header would have them."""
    return tuple(Tensor(name, *tensor, size_of(tensor)) for name, tensor in tensors.items())


def size_of(tensor: Shape) -> int:
    """Bytes that a tensor takes."""
    dtype, shape = tensor
    return -(-math.prod(shape) * BITS[dtype] // 8)


def header(tensors: Mapping[str, Shape]) -> bytes:
    """The begin of a safetensors file with these tensors: everything but their data."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in tensors.items():
        end = at + size_of((dtype, shape))
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


def write_model(
    folder: Path, config: Mapping[str, Any] | None, tensors: Mapping[str, Shape]
) -> Path:
    """Writes config.json and one model.safetensors of the right size, with nothing in its data."""
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    if tensors:
        path, begin = folder / "model.safetensors", header(tensors)
        path.write_bytes(begin)
        with open(path, "r+b") as file:
            file.truncate(len(begin) + sum(map(size_of, tensors.values())))
    return folder


def tensors_of(
    config: Mapping[str, Any], chosen: Callable[[str], Linear | None]
) -> dict[str, Shape]:
    """The tensors of a model in the names of its family.

    Args:
        config: its configuration.
        chosen: the format of the matrix of that name, None for BF16.
    """
    family = config["model_type"]
    values = config.get("text_config", config)
    layers = {
        "gpt_oss": _gpt_oss,
        "qwen3_next": _qwen3_next,
        "nemotron_h": _nemotron,
        "qwen3_vl_moe": _qwen3_vl,
    }.get(family, _llama)
    found: dict[str, Shape] = {}
    for name, shape in layers(values):
        if isinstance(shape, str) or len(shape) != 2:
            found[f"{name}.weight"] = ("BF16", shape)
            continue
        for part, tensor in (chosen(name) or _plain)(*shape).items():
            found[name + part] = tensor
    if family == "gpt_oss":
        found |= _gpt_oss_experts(values)
    return found


def _ends(c: Mapping[str, Any], prefix: str = "model") -> Iterator[tuple[str, tuple[int, ...]]]:
    embedding = "embeddings" if prefix == "backbone" else "embed_tokens"
    yield f"{prefix}.{embedding}", (c["vocab_size"], c["hidden_size"])
    yield f"{prefix}.norm", (c["hidden_size"],)
    yield "lm_head", (c["vocab_size"], c["hidden_size"])


def _self_attention(
    c: Mapping[str, Any], at: str, gate: int = 1
) -> Iterator[tuple[str, tuple[int, ...]]]:
    width = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    queries, keys = c["num_attention_heads"] * width, c["num_key_value_heads"] * width
    yield f"{at}.q_proj", (gate * queries, c["hidden_size"])
    yield f"{at}.k_proj", (keys, c["hidden_size"])
    yield f"{at}.v_proj", (keys, c["hidden_size"])
    yield f"{at}.o_proj", (c["hidden_size"], queries)


def _mlp(at: str, hidden: int, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{at}.gate_proj", (width, hidden)
    yield f"{at}.up_proj", (width, hidden)
    yield f"{at}.down_proj", (hidden, width)


def _llama(c: Mapping[str, Any], prefix: str = "model") -> Iterator[tuple[str, tuple[int, ...]]]:
    """Llama and Qwen3, dense or with experts."""
    hidden = c["hidden_size"]
    yield from _ends(c, prefix)
    for layer in range(c["num_hidden_layers"]):
        at = f"{prefix}.layers.{layer}"
        yield f"{at}.input_layernorm", (hidden,)
        yield f"{at}.post_attention_layernorm", (hidden,)
        yield from _self_attention(c, f"{at}.self_attn")
        if c.get("num_experts"):
            yield f"{at}.mlp.gate", (c["num_experts"], hidden)
            for expert in range(c["num_experts"]):
                yield from _mlp(f"{at}.mlp.experts.{expert}", hidden, c["moe_intermediate_size"])
        else:
            yield from _mlp(f"{at}.mlp", hidden, c["intermediate_size"])


def _qwen3_vl(c: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from _llama(c, "model.language_model")
    for block in range(27):
        yield f"model.visual.blocks.{block}.attn.qkv", (3456, 1152)
        yield f"model.visual.blocks.{block}.mlp.linear_fc1", (4304, 1152)


def _qwen3_next(c: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, width = c["hidden_size"], c["moe_intermediate_size"]
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    values = c["linear_num_value_heads"] * c["linear_value_head_dim"]
    yield from _ends(c)
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm", (hidden,)
        if (layer + 1) % c["full_attention_interval"] == 0:
            yield from _self_attention(c, f"{at}.self_attn", gate=2)
            yield f"{at}.self_attn.q_norm", (c["head_dim"],)
        else:
            mixer = f"{at}.linear_attn"
            yield f"{mixer}.in_proj_qkvz", (2 * keys + 2 * values, hidden)
            yield f"{mixer}.in_proj_ba", (2 * c["linear_num_value_heads"], hidden)
            yield f"{mixer}.conv1d", (2 * keys + values, 1, 4)
            yield f"{mixer}.out_proj", (hidden, values)
        yield f"{at}.mlp.gate", (c["num_experts"], hidden)
        yield f"{at}.mlp.shared_expert_gate", (1, hidden)
        yield from _mlp(f"{at}.mlp.shared_expert", hidden, c["shared_expert_intermediate_size"])
        for expert in range(c["num_experts"]):
            yield from _mlp(f"{at}.mlp.experts.{expert}", hidden, width)
    # The layer that drafts tokens.
    yield "mtp.fc", (hidden, 2 * hidden)
    yield from _self_attention(c, "mtp.layers.0.self_attn", gate=2)
    for expert in range(c["num_experts"]):
        yield from _mlp(f"mtp.layers.0.mlp.experts.{expert}", hidden, width)


def _nemotron(c: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = c["hidden_size"], c["mamba_num_heads"] * c["mamba_head_dim"]
    states = 2 * c["n_groups"] * c["ssm_state_size"]
    yield from _ends(c, "backbone")
    for layer, kind in enumerate(c["hybrid_override_pattern"]):
        at = f"backbone.layers.{layer}.mixer"
        yield f"backbone.layers.{layer}.norm", (hidden,)
        if kind == "M":
            yield f"{at}.in_proj", (2 * inner + states + c["mamba_num_heads"], hidden)
            yield f"{at}.conv1d", (inner + states, 1, 4)
            yield f"{at}.norm", (inner,)
            yield f"{at}.out_proj", (hidden, inner)
        elif kind == "*":
            yield from _self_attention(c, at)
        else:
            yield f"{at}.gate", (c["n_routed_experts"], hidden)
            for expert in range(c["n_routed_experts"]):
                width = c["moe_intermediate_size"]
                yield f"{at}.experts.{expert}.up_proj", (width, hidden)
                yield f"{at}.experts.{expert}.down_proj", (hidden, width)
            shared = c["moe_shared_expert_intermediate_size"]
            yield f"{at}.shared_experts.up_proj", (shared, hidden)
            yield f"{at}.shared_experts.down_proj", (hidden, shared)


def _gpt_oss(c: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from _ends(c)
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm", (c["hidden_size"],)
        yield from _self_attention(c, f"{at}.self_attn")
        yield f"{at}.mlp.router", (c["num_local_experts"], c["hidden_size"])


def _gpt_oss_experts(c: Mapping[str, Any]) -> dict[str, Shape]:
    """Experts in stacks, with biases, and the sinks of attention."""
    e, h, i = c["num_local_experts"], c["hidden_size"], c["intermediate_size"]
    found: dict[str, Shape] = {}
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}.mlp.experts"
        found |= {
            f"{at}.gate_up_proj_blocks": ("U8", (e, 2 * i, h // 32, 16)),
            f"{at}.gate_up_proj_scales": ("U8", (e, 2 * i, h // 32)),
            f"{at}.gate_up_proj_bias": ("BF16", (e, 2 * i)),
            f"{at}.down_proj_blocks": ("U8", (e, h, i // 32, 16)),
            f"{at}.down_proj_scales": ("U8", (e, h, i // 32)),
            f"{at}.down_proj_bias": ("BF16", (e, h)),
            f"model.layers.{layer}.mlp.router.bias": ("BF16", (e,)),
            f"model.layers.{layer}.self_attn.sinks": ("BF16", (c["num_attention_heads"],)),
            f"model.layers.{layer}.self_attn.q_proj.bias": ("BF16", (4096,)),
        }
    return found
