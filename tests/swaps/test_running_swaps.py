"""What a recording keeps of a worker's swaps: those of the side that is computed, where live."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_prof.swaps.install import Installed, running_swaps
from spark_prof.swaps.swap_settings import SIDES, TWIN, Swap, SwapSettings
from tests.swaps.test_decoder_layer import HIDDEN
from tests.swaps.test_shared_in_layer import DeepseekV2DecoderLayer


def place(slot: str, name: str, kernel: str, bits: str, *, live: bool = True) -> Any:
    built = SimpleNamespace(bits=bits, bytes=9)
    return SimpleNamespace(
        point=SimpleNamespace(slot=slot, name=name, kind="matrix"),
        swaps={"b": Swap(slot, kernel)},
        choices={"b": SimpleNamespace(live=live, replacement=built)},
    )


def test_only_the_side_that_runs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [
        place("o", "layers.0.o_proj", "mxfp4", "changed"),
        place("o", "layers.1.o_proj", "mxfp4", "changed"),
        place("moe", "layers.0.experts", "spark_prof", "kept"),
        place("moe", "layers.1.experts", "spark_prof", "kept", live=False),
    ]
    state = Installed(SwapSettings({"a": (), "b": ()}), places)
    monkeypatch.setattr(SIDES, "active", "b")
    assert running_swaps(state) == [
        {"slot": "o", "kernel": "mxfp4", "bits": "changed",
         "places": {"layers.0.o_proj": 9, "layers.1.o_proj": 9}},
        {"slot": "moe", "kernel": "spark_prof", "bits": "kept", "places": {"layers.0.experts": 9}},
    ]  # fmt: skip
    for side in ("a", TWIN):  # a's twin has a's swaps
        monkeypatch.setattr(SIDES, "active", side)
        assert running_swaps(state) == []


def test_each_of_several_matrices_that_became_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a report takes the others for what vLLM loaded."""
    part = place("layer", "layers.0.self_attn.kv_a_proj_with_mqa", "mxfp4", "changed")
    part.point.kind, part.point.module = "normed matrix", DeepseekV2DecoderLayer()
    part.choices["b"].replacement.bytes = 48 + HIDDEN
    state = Installed(SwapSettings({"a": (), "b": ()}), [part])
    monkeypatch.setattr(SIDES, "active", "b")
    (row,) = running_swaps(state)
    assert row["places"] == {
        "layers.0.self_attn.kv_a_proj_with_mqa": 48,
        "layers.0.self_attn.q_proj": HIDDEN,
    }
