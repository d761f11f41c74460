"""What is found in a model, and what is built for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spark_prof.errors import CommandError
from spark_prof.kernels.errors import KernelError
from spark_prof.swaps.build import build_all, find_points
from spark_prof.swaps.layers import Layer, LinearLayer, Replacement
from spark_prof.swaps.settings import SwapSettings
from spark_prof.swaps.spec import SLOTS, Swap, format_swaps, parse_swaps
from tests.rows import each_row
from tests.swaps.layers import Model, replacing


def _read(name: str, module: Any, slot: str) -> Layer:
    if slot == "lm_head":
        raise KernelError("quantization gptq is not one that is read")
    return LinearLayer(name, slot, module.weight)


def test_every_slot_of_a_model_is_found() -> None:
    found = [(point.slot, point.name, point.kind) for point in find_points(Model())]
    assert found == [
        ("norm", "layers.0.input_layernorm", "norm"),
        ("qkv", "layers.0.self_attn.qkv_proj", "matrix"),
        ("o", "layers.0.self_attn.o_proj", "matrix"),
        ("router", "layers.0.mlp.gate", "matrix"),
        ("router", "layers.0.mlp.experts", "choice"),
        ("moe", "layers.0.mlp.experts", "experts"),
        ("lm_head", "lm_head", "matrix"),
    ]


@each_row("path", ["visual", "vision_tower", "model.audio_tower", "mm_projector"])
def test_encoders_of_pictures_and_sounds_are_left_alone(path: str) -> None:
    model = torch.nn.Module()
    inner = model
    for part in path.split("."):
        inner.add_module(part, torch.nn.Module())
        inner = inner.get_submodule(part)
    inner.blocks = Model()
    assert list(find_points(model)) == []
    assert list(find_points(inner.blocks))


def test_sides_that_ask_for_the_same_kernel_share_it() -> None:
    built: list[str] = []

    def builder(layer: Layer) -> Replacement:
        built.append(layer.name)
        return replacing(torch.relu)

    qkv, o = Swap("qkv", "mine"), Swap("o", "mine")
    places = build_all(Model(), {"a": (qkv,), "b": (qkv, o)}, lambda _: builder, _read)
    assert [sorted(place.choices) for place in places] == [["a", "b"], ["b"]]
    assert places[0].choices["a"] is places[0].choices["b"]
    assert built == ["layers.0.self_attn.qkv_proj", "layers.0.self_attn.o_proj"]


@each_row(
    ("slot", "error", "why"),
    [
        ("qkv", KernelError("no row fits"), "no row fits"),
        ("qkv", CommandError("there is no kernel mine"), "there is no kernel mine"),
        ("qkv", ZeroDivisionError("division\nby zero"), "ZeroDivisionError: division by zero"),
        ("qkv", torch.OutOfMemoryError("tried to allocate"), "OutOfMemoryError: tried to allocate"),
        ("qkv", None, "it has none for this layer"),
        ("lm_head", None, "quantization gptq is not one that is read"),
    ],
)
def test_what_cannot_be_built_has_a_reason(slot: str, error: Exception | None, why: str) -> None:
    def builder(_: Layer) -> None:
        if error is not None:
            raise error

    (place,) = build_all(Model(), {"b": (Swap(slot, "mine"),)}, lambda _: builder, _read)
    guarded = place.choices["b"]
    assert not guarded.live
    assert guarded.why.endswith(why)


@pytest.mark.parametrize("text", ["", "moe=spark_prof", "moe=a/b.py:f,lm_head=mxfp4"])
def test_swaps_are_read_back(text: str) -> None:
    assert format_swaps(parse_swaps(text)) == text


def test_every_slot_can_be_swapped() -> None:
    text = ",".join(f"{slot}=spark_prof" for slot in SLOTS)
    assert [swap.slot for swap in parse_swaps(text)] == list(SLOTS)


@each_row(
    ("text", "says"),
    [
        ("moe", "moe is no swap"),
        ("moe=", "moe= is no swap"),
        ("experts=spark_prof", "there is no slot experts"),
        ("moe=a,moe=b", "moe is given twice"),
    ],
)
def test_bad_swaps_are_one_line(text: str, says: str) -> None:
    with pytest.raises(CommandError, match=says):
        parse_swaps(text)


def test_the_environment_says_one_side_or_both() -> None:
    one = SwapSettings.from_environment({"SPARK_PROF_SWAPS": "moe=spark_prof"})
    assert one is not None
    assert one.names == ("a",)
    assert one.serve
    both = SwapSettings({"a": (), "b": (Swap("o", "mine"),)}, twin=True, fill=True)
    assert SwapSettings.from_text(both.to_json()) == both
    assert not both.serve
    assert both.names == ("a", "b", "a2")
    assert SwapSettings.from_environment({}) is None


@each_row("text", ["{", "{}", '{"b": "o=mine"}', '{"a": "o"}', '{"a": [1]}', "o"])
def test_a_damaged_environment_is_one_line(text: str) -> None:
    with pytest.raises(CommandError):
        SwapSettings.from_text(text)
