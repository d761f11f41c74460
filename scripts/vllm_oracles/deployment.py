"""What is taken as given while the sources are followed: CUDA, one GPU, an ordinary layer."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.vllm_oracles.interpreter import Interpreter
from scripts.vllm_oracles.source_tree import SourceTree
from scripts.vllm_oracles.values import (
    Atom,
    Builtin,
    Class,
    Instance,
    Member,
    Module,
    Preset,
    Unknown,
    text_of,
)

MOE = "vllm.model_executor.layers.fused_moe"
QUANTIZATION = "vllm.model_executor.layers.quantization"
KEYS = f"{QUANTIZATION}.utils.quant_utils"

COMPILED: dict[str, tuple[tuple[int, int], ...]] = {
    "cutlass_scaled_mm_supports_fp8": ((89, 129),),
    "cutlass_scaled_mm_supports_fp4": ((100, 129),),
    "cutlass_scaled_mm_supports_block_fp8": ((90, 129),),
    "cutlass_group_gemm_supported": ((90, 129),),
}
"""Tests that vLLM's compiled part answers, as its C++ sources have them for the CUDA that the wheel
is built with: csrc/.../scaled_mm_entry.cu and nvfp4_scaled_mm_entry.cu. All others are unknown."""

_GEMM_TYPE = re.compile(r"[\w.]*\bhumming\b[\w.]*\.GemmType\.\w+")
_PACKAGE = re.compile(
    r"importlib\.import_module\('[\w.]+'\)(?:\.is_supported\(\))?|"
    r"(?:[\w.]*\.)?(?:has_(?!nvidia_artifactory)\w+|find_spec)\(.*\)|(?:[\w.]*\.)?_?import_\w+\(\)"
)


def interpreter(
    tree: SourceTree,
    capability: int,
    decide: Callable[[str], bool],
    environment: dict[str, str] | None = None,
    recording: Callable[[Interpreter, Any, str], Any] | None = None,
    linear_backend: str = "auto",
) -> Interpreter:
    """Follows sources on a GPU of a capability (121 is 12.1), with variables that a person set."""

    def hook(run: Interpreter, value: Any, name: str) -> Any:
        if recording is not None:
            answer = recording(run, value, name)
            if answer is not NotImplemented:
                return answer
        match value:
            case Module("vllm.platforms") if name == "current_platform":
                return _platform(run)
            case Module("vllm.envs"):
                return _variable(run, name)
            case Module() if name in ("get_current_vllm_config", "get_current_vllm_config_or_none"):
                return Builtin(lambda *_args, **_named: config(linear_backend))
            case Module() if name.startswith("has_") and "utils" in value.name:
                return Unknown(name)
            case Module() if name == "should_auto_disable_deep_gemm":
                return Unknown(name)
            case Class() | Instance() if name in ("get_device_capability", "get_device_name"):
                of = value if isinstance(value, Class) else value.of
                if "Platform" in of.name:
                    return Builtin(lambda *_args, **_named: _device(run, name, capability))
            case Unknown(text) if _GEMM_TYPE.fullmatch(text) and name == "value":
                return text.rsplit(".", 1)[-1]  # Humming names its kinds of GEMM so
            case Unknown("os") if name == "environ":
                return run.environment
            case Unknown("os") if name == "getenv":
                return Builtin(run.environment.get)
            case Unknown() if name in COMPILED:
                spans = COMPILED[name]
                return Builtin(lambda number: any(a <= number <= b for a, b in spans))
        return NotImplemented

    return Interpreter(tree, environment or {}, decide, hook)


def is_package_test(condition: str) -> bool:
    """Whether a condition asks for a package, which a vLLM has or has not.

    is_package_test("has_flashinfer()") is True
    """
    text = re.sub(r"^(?:not )?(.*) is None$", r"\1", condition)
    return _PACKAGE.fullmatch(text) is not None


def package_of(condition: str) -> str:
    """The package that a condition asks for, empty where it asks for something else.

    package_of("has_flashinfer_cutlass_fused_moe()") == "flashinfer"
    """
    if not is_package_test(condition):
        return ""
    match = re.search(
        r"has_(\w+)\(|(?:find_spec|import_module)\('(\w+)[\w.]*'\)|import_(\w+)\(", condition
    )
    name = next(group for group in match.groups() if group) if match else ""
    if name == "cutlass_dsl":
        return "nvidia-cutlass-dsl"
    return next((package for package in _PACKAGES if name.startswith(package)), name)


_PACKAGES = ("flashinfer", "deep_gemm", "b12x", "humming", "triton_kernels", "fbgemm_gpu", "conch")


def _platform(run: Interpreter) -> Instance:
    of = run.name("vllm.platforms.cuda", "CudaPlatformBase")
    return Instance(of, {})


def _device(run: Interpreter, name: str, capability: int) -> Any:
    run.asked_device = True
    if name == "get_device_name":
        return Unknown("device name")
    of = run.name("vllm.platforms.interface", "DeviceCapability")
    return Instance(of, {"major": capability // 10, "minor": capability % 10})


def _variable(run: Interpreter, name: str) -> Any:
    """The value of a variable of vllm/envs.py: as the person set it, or its default there."""
    if name == "is_set":

        def is_set(variable: str) -> bool:
            run.variables.add(variable)
            return variable in run.environment

        return Builtin(is_set)
    if not name.startswith("VLLM_"):
        return NotImplemented
    run.variables.add(name)
    variables = run.tree.entries("vllm.envs", "environment_variables")
    if name not in variables:
        return Unknown(f"envs.{name}")
    return run.call(run.value(variables[name], "vllm.envs", []), [], {})


def config(linear_backend: str) -> Preset:
    """The configuration of an ordinary `vllm serve MODEL`."""
    kernels = Preset("kernel_config", {"linear_backend": linear_backend, "moe_backend": "auto",
                                      "linear_backend_per_quant": None})  # fmt: skip
    model = Preset("model_config", {"quantization_config": None})
    attention = Preset("attention_config", {"flash_attn_version": None,
                                           "use_trtllm_attention": None})  # fmt: skip
    return Preset("vllm_config", {"kernel_config": kernels, "model_config": model,
                                 "attention_config": attention})  # fmt: skip


def moe_config(run: Interpreter, activation: str, backend: str = "auto") -> Preset:
    """The experts of an ordinary model on one GPU: gated, no LoRA, no expert parallelism."""
    one = dict.fromkeys(
        ("tp_size", "dp_size", "ep_size", "pcp_size", "sp_size", "world_size", "cp_size"), 1
    )
    parallel = Preset("moe_parallel_config", {**one, "all2all_backend": None, "enable_eplb": False,
                                             "is_sequence_parallel": False}, ("use_",))  # fmt: skip
    facts: dict[str, Any] = {
        **one,
        "moe_backend": backend,
        "moe_parallel_config": parallel,
        "is_act_and_mul": True,
        "is_lora_enabled": False,
        "swiglu_limit": None,
        "has_bias": False,
        "hidden_dim": 4096,
        "intermediate_size": 4096,
        "intermediate_size_per_partition": 4096,
        "intermediate_size_per_partition_unpadded": 4096,
        "hidden_dim_unpadded": 4096,
        "num_experts": 128,
        "num_local_experts": 128,
        "experts_per_token": 8,
        "in_dtype": Atom("torch.bfloat16"),
        "router_logits_dtype": Atom("torch.bfloat16"),
        "has_hash_routing": False,
        "require_decomposed_backend": False,
        "activation": _member(run, ("activation", "config"), "MoEActivation", activation),
        "routing_method": _member(run, ("config", "routing"), "RoutingMethodType", "Renormalize"),
    }
    return Preset("moe_config", facts, ("use_",))


def _member(run: Interpreter, files: tuple[str, ...], of: str, name: str) -> Any:
    for file in files:
        enumeration = run.name(f"{MOE}.{file}", of)
        if isinstance(enumeration, Class):
            return next(
                (member for member in run.members(enumeration) if member.name == name),
                Unknown(name),
            )
    return Unknown(name)


def trees(folder: Path) -> dict[str, SourceTree]:
    """The unzipped wheels of a folder by version: FOLDER/VERSION/vllm."""
    folders = [path for path in folder.iterdir() if (path / "vllm" / "envs.py").is_file()]
    order = sorted(folders, key=lambda path: tuple(int(part) for part in path.name.split(".")[:3]))
    return {path.name: SourceTree(path) for path in order}


def log_name(value: Any) -> str:
    """A member or class by the name that the log writes."""
    return value.name if isinstance(value, (Member, Class)) else text_of(value)
