"""What a recording keeps of a worker's swaps: those of the side that is computed, where live."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_prof.swaps.install import Installed, running_swaps
from spark_prof.swaps.swap_settings import SIDES, TWIN, Swap, SwapSettings


def place(slot: str, name: str, kernel: str, bits: str, *, live: bool = True) -> Any:
    built = SimpleNamespace(bits=bits, bytes=9)
    return SimpleNamespace(
        point=SimpleNamespace(slot=slot, name=name),
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
