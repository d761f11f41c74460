"""Choosing for packed weights: what was measured of them, the default where that does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels import dense, moe
from spark_prof.kernels.dense import LinearConfig, linear
from spark_prof.kernels.dispatch import choose_linear, choose_moe
from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.formats import quantize_mxfp4, quantize_nvfp4
from spark_prof.kernels.moe import Activation, pack_experts
from spark_prof.kernels.pack import pack_linear
from spark_prof.kernels.tuning import Run, Tuned, Work, known_runs, save

WEIGHT = pack_linear(quantize_nvfp4(torch.randn(32, 256)))
WORK = Work("dense", "nvfp4", 32, 256, 1)
CONFIG = LinearConfig(4, 2, 3, 1, 2)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    known_runs.cache_clear()
    yield
    known_runs.cache_clear()


def measured(work: Work, config: dict[str, int], us: float = 5.0) -> None:
    save(Run("cpu", "this", "2026-01-01", "", {}, (Tuned(work, config, us, "other", 6.0),)))


def test_what_was_measured_is_chosen_and_runs() -> None:
    measured(WORK, asdict(CONFIG))
    chosen = choose_linear(WEIGHT, 1)
    assert chosen.config == CONFIG
    assert "5.00 us against 6.00 of other" in chosen.why
    x = torch.randn(1, 256).bfloat16()
    assert linear(x, WEIGHT, config=chosen.config).shape == (1, 32)


def test_where_nobody_measured_nothing_is_chosen_unless_insisted_on() -> None:
    assert choose_linear(WEIGHT, 1).config is None
    chosen = choose_linear(WEIGHT, 1, insist=True)
    assert chosen.config == dense.default_config(32, 256, 1)
    assert "nothing was measured on cpu" in chosen.why


def test_what_is_slower_is_not_chosen() -> None:
    measured(WORK, asdict(CONFIG), us=7.0)
    assert choose_linear(WEIGHT, 1, insist=True).config is None


@pytest.mark.parametrize(
    "config",
    [
        {},
        asdict(replace(CONFIG, split=4)),  # 256 columns are two units
        asdict(replace(CONFIG, warps=3)),
        asdict(replace(CONFIG, warps=0)),
        asdict(replace(CONFIG, warps=64)),
        asdict(replace(CONFIG, split=0)),
    ],
)
def test_a_configuration_that_does_not_fit_gives_way_to_the_default(config: dict[str, int]) -> None:
    measured(WORK, config)
    assert choose_linear(WEIGHT, 1).config == dense.default_config(32, 256, 1)


@pytest.mark.parametrize("config", [{"warps": 4}, {**asdict(CONFIG), "extra": 1}])
def test_a_configuration_of_another_version_is_told(config: dict[str, int]) -> None:
    measured(WORK, config)
    with pytest.raises(KernelError, match=r"another version .*(split|extra)"):
        choose_linear(WEIGHT, 1)


def test_experts() -> None:
    gate_up, down = (quantize_mxfp4(torch.randn(4, *shape)) for shape in ((128, 128), (128, 64)))
    experts = pack_experts(gate_up, down, None, None, Activation("silu"))
    assert choose_moe(experts, 2, 1).config is None
    config = moe.default_config(128, 1)
    measured(Work("moe", "mxfp4", 128, 128, 1, 4, 2), asdict(config))
    assert choose_moe(experts, 2, 1).config == config
    assert choose_moe(experts, 3, 1).config is None
