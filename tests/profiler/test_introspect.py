"""What is read from the live layers: formats, sizes, and the kernels that vLLM chose."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from spark_prof.profiler.introspect import describe_layers  # noqa: E402
from tests.rows import each_row  # noqa: E402

from .test_tensors import Linear, TritonTensor, weight  # noqa: E402

nn = torch.nn


def row(module: nn.Module) -> dict[str, Any]:
    """The one row of a model that has that module as its second layer's qkv_proj."""
    layer = nn.Module()
    layer.self_attn = nn.Module()
    layer.self_attn.qkv_proj = module
    model = nn.Module()
    model.layers = nn.ModuleList([nn.Module(), layer])
    (found,) = describe_layers(model)
    return found


def test_a_plain_layer() -> None:
    assert row(Linear(weight=weight(8, 4), bias=weight(8, dtype=torch.float32))) == {
        "path": "layers.1.self_attn.qkv_proj",
        "type": "Linear",
        "layer": 1,
        "component": "qkv",
        "quant_method": "",
        "kernel": "",
        "weight_dtype": "bfloat16",
        "shape": "8x4",
        "bytes": 8 * 4 * 2 + 8 * 4,
        "parameters": "weight:bfloat16:8x4 bias:float32:8",
    }


def test_modules_without_tensors_and_without_a_kernel_have_no_row() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    assert [found["path"] for found in describe_layers(model)] == ["1", "2.0"]


def test_buffers_count_and_the_rotary_table_does_not() -> None:
    layer = Linear()
    layer.register_buffer("scale", torch.zeros(8))
    layer.register_buffer("cos_sin_cache", torch.zeros(4096))
    assert (row(layer)["bytes"], row(layer)["parameters"]) == (32, "scale:float32:8")


def test_method_and_scheme_are_named_both() -> None:
    method, scheme = type("Method", (), {})(), type("W4A4Nvfp4", (), {})()
    assert row(Linear(quant_method=method, scheme=scheme))["quant_method"] == "Method W4A4Nvfp4"


class TestWrappedTensors:
    """Tensors that a kernel library keeps in objects of its own."""

    def test_they_count_under_the_name_of_their_attribute(self) -> None:
        data = torch.zeros(64, 32, dtype=torch.uint8)
        layer = Linear(w13=TritonTensor(storage=TritonTensor(data=data)))
        found = row(layer)
        assert found["parameters"] == "w13.storage.data:uint8:64x32"
        assert (found["bytes"], found["weight_dtype"]) == (64 * 32, "uint8")

    @each_row(
        "attributes",
        [
            {"small": TritonTensor(data=torch.zeros(1023))},
            {"_private": TritonTensor(data=torch.zeros(2048))},
        ],
    )
    def test_what_is_no_weight(self, attributes: dict[str, Any]) -> None:
        assert row(Linear(weight=weight(2), **attributes))["parameters"] == "weight:bfloat16:2"

    @pytest.mark.parametrize(("depth", "size"), [(5, 1024), (6, 0)])
    def test_how_deep_it_looks(self, depth: int, size: int) -> None:
        item: Any = torch.zeros(1024, dtype=torch.uint8)
        for _ in range(depth):
            item = TritonTensor(inner=item)
        assert row(Linear(bias=weight(0), w=item))["bytes"] == size


class Backend(Enum):
    MARLIN = "marlin"


class CutlassKernel:
    def forward_cuda(self) -> None: ...


class FlashAttentionImpl: ...


def named(**attributes: Any) -> Any:
    return SimpleNamespace(**attributes)


@pytest.mark.parametrize(
    ("attributes", "kernel"),
    [
        ({"quant_method": named(kernel=CutlassKernel())}, "CutlassKernel"),
        ({"scheme": named(kernel=CutlassKernel())}, "CutlassKernel"),
        ({"quant_method": named(fp8_linear=CutlassKernel())}, "CutlassKernel"),
        ({"quant_method": named(moe_kernel=named(fused_experts=CutlassKernel()))},
         "CutlassKernel"),
        ({"quant_method": named(moe_kernel=named(impl=named(fused_experts=CutlassKernel())))},
         "CutlassKernel"),
        ({"quant_method": named(mxfp4_backend=Backend.MARLIN)}, "Backend.MARLIN"),
        ({"impl": FlashAttentionImpl()}, "FlashAttentionImpl"),
        ({"_forward_method": CutlassKernel().forward_cuda}, "forward_cuda"),
        ({"_forward_method": lambda: None}, ""),
        ({"quant_method": named(kernel=None)}, ""),
        ({"quant_method": named(nvfp4_backend=Backend.MARLIN, kernel=CutlassKernel()),
          "impl": FlashAttentionImpl()},
         "CutlassKernel Backend.MARLIN FlashAttentionImpl"),
        ({"scheme": named(kernel=CutlassKernel()),
          "quant_method": named(kernel=CutlassKernel())},
         "CutlassKernel"),
    ],
)  # fmt: skip
def test_the_kernel(attributes: dict[str, Any], kernel: str) -> None:
    assert row(Linear(weight=weight(2), **attributes))["kernel"] == kernel
