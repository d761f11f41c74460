"""Kernels are built of the model that a worker loads, a recorder or a drafter beside it or not."""

from __future__ import annotations

import sys
from functools import wraps
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from spark_prof.swaps import install
from spark_prof.swaps.install import Installed
from spark_prof.swaps.swap_settings import SwapSettings, parse_swaps

UTILS = "vllm.model_executor.model_loader.utils"
BASE = "vllm.model_executor.model_loader.base_loader"
OTHER = "vllm.model_executor.model_loader.other"


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], list[str]]:
    """vLLM's modules with the function that lays weights out anew, and what it has been given."""
    laid_out: list[str] = []

    def process(model: str, *_: Any) -> str:
        laid_out.append(model)
        return model

    modules: dict[str, Any] = {name: ModuleType(name) for name in (UTILS, BASE, OTHER)}
    for name, module in modules.items():
        module.process_weights_after_loading = None if name == OTHER else process
    parents = ("vllm", "vllm.model_executor", "vllm.model_executor.model_loader")
    every: dict[str, Any] = {name: ModuleType(name) for name in parents} | modules
    for name, module in every.items():
        monkeypatch.setitem(sys.modules, name, module)
        around, _, last = name.rpartition(".")
        if around:
            setattr(every[around], last, module)
    return modules, laid_out


@pytest.mark.parametrize("recorded", [False, True])
def test_building_comes_before_weights_are_laid_out_anew(
    loaders: tuple[dict[str, Any], list[str]], recorded: bool
) -> None:
    """A recorder has put a function of its own in the place of the loader's."""
    modules, laid_out = loaders
    original = modules[BASE].process_weights_after_loading
    seen: list[str] = []

    @wraps(original)
    def marked(model: str, *rest: Any) -> Any:
        seen.append("recorded")
        return original(model, *rest)

    if recorded:
        modules[BASE].process_weights_after_loading = marked
    before = {name: module.process_weights_after_loading for name, module in modules.items()}
    with install._before_layout(lambda model: seen.append(f"build {model}")):
        assert modules[BASE].process_weights_after_loading("m", 1) == "m"
    assert seen == ["build m", *(["recorded"] if recorded else [])]
    assert laid_out == ["m"]
    after = {name: module.process_weights_after_loading for name, module in modules.items()}
    assert after == before


def test_a_drafter_loaded_after_the_model_is_left_to_vllm(
    loaders: tuple[dict[str, Any], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its layers have the names of the model's, which would be swapped no more."""
    modules, laid_out = loaders
    built: list[str] = []

    def build_all(model: str, _: Any) -> list[Any]:
        built.append(model)
        return [model]

    def load() -> None:
        for model in ("model", "drafter"):
            modules[BASE].process_weights_after_loading(model)

    monkeypatch.setattr(install, "build_all", build_all)
    for name in ("_try", "_put_in", "_tell"):
        monkeypatch.setattr(install, name, lambda *_: None)
    monkeypatch.setattr(install, "agree", lambda *_: None)
    monkeypatch.setattr(install, "_guarded", lambda _: {})
    config = SimpleNamespace(load_config=SimpleNamespace(load_format="auto"))
    state: Any = Installed(SwapSettings({"a": parse_swaps("qkv=spark_prof")}))
    with caplog.at_level("INFO", logger="vllm.spark_prof"):
        install._load(SimpleNamespace(vllm_config=config), state, load)
    assert (state.fault, state.places, built) == ("", ["model"], ["model"])
    assert laid_out == ["model", "drafter"]
    assert "the model of the drafts keeps vLLM's own kernels" in caplog.text
