"""Layers of the vLLM that is installed, built on the CPU as its models build them.

Which kernel would run does not matter here, and most have none for a CPU: vLLM's choice of one is
replaced by one that always works. Parameters, their layout and what fills them are vLLM's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import torch

HIDDEN, INNER, EXPERTS, TOP_K = 64, 96, 4, 2

_LAYERS = "vllm.model_executor.layers."
_MOE = _LAYERS + "quantization.compressed_tensors.compressed_tensors_moe."
_NVFP4_MOE = (_LAYERS + "quantization.modelopt", _MOE + "compressed_tensors_moe_w4a4_nvfp4")
_FP8_MOE = (
    _LAYERS + "quantization.fp8",
    _LAYERS + "quantization.modelopt",
    _MOE + "compressed_tensors_moe_w8a8_fp8",
)
_SCHEMES = _LAYERS + "quantization.compressed_tensors.schemes.compressed_tensors_"


@contextmanager
def vllm_here(store: Path) -> Iterator[None]:
    """Makes this process the only rank of a vLLM on the CPU; others would find it by a new file."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import (
        destroy_distributed_environment,
        destroy_model_parallel,
        ensure_model_parallel_initialized,
        init_distributed_environment,
    )

    config = VllmConfig()
    before = torch.get_default_dtype()
    with ExitStack() as stack:
        for patched in _kernel_choices():
            stack.enter_context(patched)
        stack.enter_context(set_current_vllm_config(config))
        stack.callback(torch.set_default_dtype, before)
        torch.set_default_dtype(torch.bfloat16)
        init_distributed_environment(1, 0, f"file://{store}", 0, backend="gloo")
        stack.callback(destroy_distributed_environment)
        ensure_model_parallel_initialized(1, 1)
        stack.callback(destroy_model_parallel)
        config.model_config = SimpleNamespace(dtype=torch.bfloat16, quantization_config=None)
        yield


def _kernel_choices() -> Iterator[Any]:
    """Patches for every choice of a kernel that no CPU could make."""
    kernel = MagicMock(input_quant_key=lambda: None)
    mxfp4 = import_module(_LAYERS + "fused_moe.oracle.mxfp4").Mxfp4MoeBackend.MARLIN
    nvfp4 = import_module(_LAYERS + "fused_moe.oracle.nvfp4").NvFp4MoeBackend.MARLIN
    fp8 = import_module(_LAYERS + "fused_moe.oracle.fp8").Fp8MoeBackend.MARLIN
    for module in _FP8_MOE:
        yield patch(f"{module}.select_fp8_moe_backend", lambda **_: (fp8, None))
    plain = import_module(_LAYERS + "fused_moe.oracle.unquantized").UnquantizedMoeBackend.TRITON
    name = f"{_LAYERS}fused_moe.unquantized_fused_moe_method.select_unquantized_moe_backend"
    yield patch(name, lambda **_: (plain, None))
    for module in _NVFP4_MOE:
        yield patch(f"{module}.select_nvfp4_moe_backend", lambda **_: (nvfp4, None))
    for function in ("select_mxfp4_moe_backend", "select_deepseek_v4_mxfp4_moe_backend"):
        name = f"{_LAYERS}quantization.mxfp4.{function}"
        yield patch(name, lambda *_, **__: (mxfp4, None))
    # As a GPU's, which takes activations in E4M3; a CPU has another kernel with AMX than without.
    quantized = MagicMock(input_quant_key=lambda: "float8_e4m3fn, one scale of the checkpoint")
    modelopt = _LAYERS + "quantization.modelopt"
    yield patch(f"{modelopt}.init_fp8_linear_kernel", lambda *_, **__: quantized)
    for module, function in (
        (modelopt, "init_nvfp4_linear_kernel"),
        (_LAYERS + "quantization.fp8", "init_fp8_linear_kernel"),
        (_SCHEMES + "w4a4_nvfp4", "init_nvfp4_linear_kernel"),
        (_SCHEMES + "w4a4_mxfp4", "init_mxfp4_linear_kernel"),
        (_SCHEMES + "w8a8_fp8", "init_fp8_linear_kernel"),
        (_SCHEMES + "w8a16_fp8", "init_wfp8_a16_linear_kernel"),
    ):
        yield patch(f"{module}.{function}", lambda *_, **__: kernel)


def _modelopt(algorithm: str) -> Any:
    modelopt = import_module(_LAYERS + "quantization.modelopt")
    kind = modelopt.ModelOptFp8Config if algorithm.startswith("FP8") else None
    kind = kind or modelopt.ModelOptNvFp4Config
    quantization = {"quant_algo": algorithm, "group_size": 16, "exclude_modules": []}
    return kind.from_config({"quantization": quantization | {"kv_cache_quant_algo": None}})


def _compressed(style: str, weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> Any:
    compressed = import_module(_LAYERS + "quantization.compressed_tensors.compressed_tensors")
    weights = {"type": "float", "symmetric": True, "dynamic": False} | weights
    if inputs is not None:
        inputs = {"type": "float", "symmetric": True, "dynamic": True} | inputs
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return compressed.CompressedTensorsConfig.from_config(
        {"config_groups": {"0": group}, "format": style, "ignore": [], "quant_method": "c"}
    )


def _plain(name: str, **config: Any) -> Any:
    module, kind = name.rsplit(".", 1)
    found = getattr(import_module(_LAYERS + "quantization." + module), kind)
    return found.from_config(config)


_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
_NVFP4 = {"num_bits": 4, "strategy": "tensor_group", "group_size": 16}
_MXFP4 = {"num_bits": 4, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
_FP8 = {"num_bits": 8, "strategy": "channel"}

QUANTIZATIONS: dict[str, Any] = {
    "bf16": lambda: None,
    "modelopt nvfp4": lambda: _modelopt("NVFP4"),
    "modelopt nvfp4 w4a16": lambda: _modelopt("W4A16_NVFP4"),
    "modelopt fp8": lambda: _modelopt("FP8"),
    "modelopt fp8 rows": lambda: _modelopt("FP8_PER_CHANNEL_PER_TOKEN"),
    "compressed nvfp4": lambda: _compressed("nvfp4-pack-quantized", _NVFP4),
    "compressed nvfp4 w4a4": lambda: _compressed(
        "nvfp4-pack-quantized", _NVFP4, _NVFP4 | {"dynamic": "local"}
    ),
    "compressed mxfp4": lambda: _compressed("mxfp4-pack-quantized", _MXFP4),
    "compressed fp8": lambda: _compressed(
        "float-quantized", _FP8, {"num_bits": 8, "strategy": "token"}
    ),
    "compressed fp8 w8a16": lambda: _compressed("float-quantized", _FP8),
    "compressed fp8 tensor": lambda: _compressed(
        "float-quantized", _FP8 | {"strategy": "tensor"}, {"num_bits": 8, "strategy": "tensor"}
    ),
    "fp8": lambda: _plain("fp8.Fp8Config", quant_method="fp8", activation_scheme="dynamic"),
    "fp8 blocks": lambda: _plain(
        "fp8.Fp8Config",
        quant_method="fp8",
        activation_scheme="dynamic",
        weight_block_size=[128, 128],
    ),
    "compressed fp8 blocks": lambda: _compressed(
        "float-quantized",
        _FP8 | {"strategy": "block", "block_structure": [128, 128]},
        {"num_bits": 8, "strategy": "group", "group_size": 128},
    ),
    "awq": lambda: _plain(
        "auto_awq.AutoAWQConfig", quant_method="awq", bits=4, group_size=128, zero_point=True
    ),
    "gptq": lambda: _plain(
        "auto_gptq.AutoGPTQConfig",
        quant_method="gptq",
        bits=4,
        group_size=128,
        sym=True,
        desc_act=False,
        lm_head=False,
        dynamic={},
    ),
    "compressed int4": lambda: _compressed("pack-quantized", _INT4),
    "compressed int4 zeros": lambda: _compressed("pack-quantized", _INT4 | {"symmetric": False}),
    "gpt-oss": lambda: _plain("mxfp4.GptOssMxfp4Config"),
    "mxfp4": lambda: _plain("mxfp4.Mxfp4Config"),
}
"""vLLM's quantization configs by a name of these tests."""


@contextmanager
def whole_model(config: Mapping[str, Any], folder: Path) -> Iterator[Any]:
    """A model of vLLM's own class with that config.json, its weights not laid out; in `vllm_here`.

    Formats are those of the config, whether a CPU has kernels for them or not.
    """
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    platform = type(import_module("vllm.platforms").current_platform)
    experts_config = import_module(_LAYERS + "fused_moe.config")
    anywhere = MagicMock(wraps=experts_config.current_platform, is_cuda_alike=lambda: True)
    with ExitStack() as stack:
        stack.enter_context(patch.object(platform, "supported_quantization", []))
        engine = EngineArgs(
            model=str(folder), load_format="dummy", skip_tokenizer_init=True,
            max_model_len=256, enforce_eager=True,
        ).create_engine_config()  # fmt: skip
        stack.enter_context(set_current_vllm_config(engine))
        stack.enter_context(patch.object(experts_config, "current_platform", anywhere))
        yield initialize_model(vllm_config=engine)


_counter = iter(range(1 << 30))


def qkv(quantization: str, hidden: int = HIDDEN, size: int = 16) -> Any:
    """A fused q, k and v: of four heads and two times two, of that size."""
    linear = import_module(_LAYERS + "linear")
    config = QUANTIZATIONS[quantization]()
    name = f"model.layers.{next(_counter)}.self_attn.qkv_proj"
    return linear.QKVParallelLinear(hidden, size, 4, 2, bias=True, prefix=name, quant_config=config)


def lm_head(quantization: str, vocabulary: int = 100) -> Any:
    """A matrix of logits: 100 words are padded to 128 rows."""
    embedding = import_module(_LAYERS + "vocab_parallel_embedding")
    config = QUANTIZATIONS[quantization]()
    return embedding.ParallelLMHead(vocabulary, HIDDEN, quant_config=config, prefix="lm_head")


def experts(quantization: str, **more: Any) -> Any:
    """A `MoERunner` with four experts."""
    package = import_module(_LAYERS + "fused_moe")
    make = getattr(package, "FusedMoEFactory", None) or package.FusedMoE
    sizes = {"num_experts": EXPERTS, "top_k": TOP_K}
    sizes |= {"hidden_size": HIDDEN, "intermediate_size": INNER}
    name = f"model.layers.{next(_counter)}.mlp.experts"
    config = import_module(_LAYERS + "fused_moe.config")
    # On the CPU vLLM has experts with a gate only.
    anywhere = MagicMock(wraps=config.current_platform, is_cuda_alike=lambda: True)
    with patch.object(config, "current_platform", anywhere):
        return make(prefix=name, quant_config=QUANTIZATIONS[quantization](), **(sizes | more))
