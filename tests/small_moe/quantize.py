"""Quantizes the small model as vLLM loads it, by the library compressed-tensors, on the CPU.

Attention's projections and the experts are quantized; embeddings, norms, routers and the head stay
in BF16. The same checkpoint and library give the same bits.

usage: python -m tests.small_moe.quantize nvfp4|mxfp4|fp8 FOLDER
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import (
    QuantizationConfig,
    QuantizationScheme,
    preset_name_to_scheme,
)
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import load_file, save_file

from spark_prof.kernels.formats import Fp8Rows, GlobalScale, MxFp4, NvFp4
from tests.small_moe.model import EXPERTS, FOLDER, LAYERS

FORMATS = {
    "nvfp4": ("NVFP4A16", "nvfp4-pack-quantized"),
    "mxfp4": ("MXFP4A16", "mxfp4-pack-quantized"),
    "fp8": ("FP8_DYNAMIC", "float-quantized"),
}
"""By name the library's scheme and the form in which it stores one."""

_IGNORED = ["lm_head", "re:.*mlp.gate$"]


def write(name: str, folder: Path, model: Path = FOLDER) -> Path:
    """Writes the checkpoint of a format to a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    scheme, stored = FORMATS[name]
    config = json.loads((model / "config.json").read_text())
    quantization = QuantizationConfig(
        config_groups={"group_0": preset_name_to_scheme(scheme, ["Linear"])},
        format=stored,
        ignore=_IGNORED,
        quantization_status="compressed",
    )
    config["quantization_config"] = json.loads(quantization.model_dump_json(exclude_none=True))
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    tensors = quantized(load_file(model / "model.safetensors"), name)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    for path in model.glob("tokenizer*"):
        shutil.copy(path, folder)
    return folder


def quantized(named: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """The tensors of a BF16 checkpoint in a format."""
    scheme_name, stored = FORMATS[name]
    scheme = preset_name_to_scheme(scheme_name, ["Linear"])
    found = dict(named)
    # The library packs by torch.compile, and here compiling takes longer than packing.
    with torch.compiler.set_stance("force_eager"):
        for modules in _fused():
            weights = {module: found.pop(f"{module}.weight").float() for module in modules}
            # vLLM has one global scale for what it fuses.
            top = torch.stack([weight.abs().max() for weight in weights.values()]).max()
            above = generate_gparam(-top, top).reshape(1) if name == "nvfp4" else None
            for module, weight in weights.items():
                for key, value in _compressed(weight, above, scheme, stored).items():
                    found[f"{module}.{key}"] = value.clone()
    return found


def _compressed(
    weight: torch.Tensor, above: torch.Tensor | None, scheme: QuantizationScheme, stored: str
) -> dict[str, torch.Tensor]:
    """One matrix as the library stores it; `above` is the scale of its scales."""
    blocks = weight.unflatten(1, (-1, scheme.weights.group_size or weight.shape[1]))
    scales, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), scheme.weights, above)
    state = {"weight": weight, "weight_scale": scales}
    if above is not None:
        state["weight_global_scale"] = above
    done: dict[str, torch.Tensor] = BaseCompressor.get_value_from_registry(stored).compress(
        state, scheme
    )
    return done


def _fused() -> Iterator[list[str]]:
    """The quantized modules, those together that vLLM makes into one matrix."""
    for number in range(LAYERS):
        prefix = f"model.layers.{number}"
        yield [f"{prefix}.self_attn.{name}_proj" for name in "qkv"]
        yield [f"{prefix}.self_attn.o_proj"]
        for expert in range(EXPERTS):
            yield [f"{prefix}.mlp.experts.{expert}.{name}_proj" for name in ("gate", "up")]
            yield [f"{prefix}.mlp.experts.{expert}.down_proj"]


def decoded(named: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of any of the checkpoints as spark-prof's formats read them, float32."""
    found = {}
    for key, value in named.items():
        module, _, kind = key.rpartition(".")
        scales = named.get(f"{module}.weight_scale")
        weight: NvFp4 | MxFp4 | Fp8Rows | torch.Tensor | None = None
        if kind == "weight_packed" and scales is not None:
            if (above := named.get(f"{module}.weight_global_scale")) is None:
                weight = MxFp4(value, scales)
            else:
                weight = NvFp4(value, scales, GlobalScale(above.reshape(()), "divides"))
        elif kind == "weight":
            weight = value if scales is None else Fp8Rows(value, scales.flatten())
        if weight is not None:
            plain = weight if isinstance(weight, torch.Tensor) else weight.decode(torch.float32)
            found[f"{module}.weight"] = plain.float()
    return found


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
