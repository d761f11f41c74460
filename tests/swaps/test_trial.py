"""Faulty kernels are found before the engine takes requests."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
import torch

from spark_prof.swaps.build import Kind, Swapped, SwapPoint
from spark_prof.swaps.guard import HUNG, Guarded, LayerError
from spark_prof.swaps.layers import Replacement
from spark_prof.swaps.spec import LAYER_BOUNDS
from spark_prof.swaps.trial import try_all
from tests.swaps.layers import Linear, Runner, TinyRMSNorm, replacing

pytestmark = pytest.mark.usefixtures("sides")


def _vllm_config() -> Any:
    config = pytest.importorskip("vllm.config")
    return config.VllmConfig()


def _try(slot: str, module: Any, replacement: Replacement) -> tuple[Guarded, LayerError | None]:
    guarded = Guarded(f"name ({slot}=mine)", f"{slot}=mine", replacement)
    kind: Kind = "norm" if slot == "norm" else "experts" if slot == "moe" else "matrix"
    place = Swapped(SwapPoint(slot, "name", module, kind), {}, {"b": guarded})
    try_all([place], _vllm_config(), 60.0)
    return guarded, guarded.error


def test_a_right_kernel_stays_and_its_error_is_known() -> None:
    layer = Linear(24, 16)
    right = replacing(lambda x, bias: torch.nn.functional.linear(x, layer.weight, bias))
    guarded, error = _try("qkv", layer, right)
    assert guarded.live
    assert error.relative_l2 < 1e-6
    assert error.scale > 0


def test_a_doubled_scale_shows_as_an_error_of_one() -> None:
    layer = Linear(24, 16)
    double = replacing(lambda x, bias: 2 * torch.nn.functional.linear(x, layer.weight, bias))
    guarded, error = _try("qkv", layer, double)
    assert guarded.live
    assert error.relative_l2 == pytest.approx(1.0)


@pytest.mark.parametrize("monolithic", [False, True])
def test_experts_are_compared_with_their_router(monolithic: bool) -> None:
    runner = Runner(monolithic=monolithic, padding=4)

    def experts(x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        weights, chosen = logits.softmax(-1).topk(2)
        weight = runner.routed_experts.weight[:, :16, :16]
        return (torch.einsum("mh,mkih->mki", x, weight[chosen]) * weights[..., None]).sum(1)

    guarded, error = _try("moe", runner, replacing(experts))
    assert guarded.live
    assert error.relative_l2 < 1e-5


@pytest.mark.parametrize("expert", range(8))
def test_one_wrong_expert_is_found_whichever_it_is(expert: int) -> None:
    runner = Runner()
    weight = runner.routed_experts.weight.clone()
    weight[expert] = weight[(expert + 1) % 8]

    def experts(x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        weights, chosen = logits.softmax(-1).topk(2)
        return (torch.einsum("mh,mkih->mki", x, weight[chosen]) * weights[..., None]).sum(1)

    _, error = _try("moe", runner, replacing(experts))
    assert error.relative_l2 > 4 * LAYER_BOUNDS["kept"]


def test_a_norm_is_compared() -> None:
    norm = TinyRMSNorm(16)
    guarded, error = _try("norm", norm, replacing(lambda x, r: norm.forward_native(x, r)))
    assert guarded.live
    assert error.relative_l2 < 1e-6


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda x, _: x / "two", "TypeError"),
        (lambda x, _: x[:, :3], "where vLLM's kernel returns"),
        (lambda x, _: x.new_zeros(x.shape[0], 24, dtype=torch.float64), "torch.float64"),
        (lambda x, _: torch.randn(int(torch.randint(1, 99, ())), 24), "it returns"),
        (lambda *_: None, "TypeError"),
        (lambda x, _: x.new_full((x.shape[0], 24), float("nan")), "NaN or infinity"),
    ],
)
def test_a_wrong_kernel_is_off(run: Any, says: str) -> None:
    guarded, _ = _try("qkv", Linear(24, 16), replacing(run))
    assert not guarded.live
    assert says in guarded.why


def test_a_slow_kernel_is_off() -> None:
    def slow(x: torch.Tensor, _: Any) -> torch.Tensor:
        time.sleep(2.1)
        return x.new_zeros(x.shape[0], 24)

    guarded, _ = _try("qkv", Linear(24, 16), replacing(slow))
    assert not guarded.live
    assert "a call took" in guarded.why


def test_a_kernel_that_never_comes_back_ends_the_process_with_a_line() -> None:
    program = (
        "import time\nfrom spark_prof.swaps.guard import deadline\n"
        "with deadline(0.2, 'o_proj (o=mine) has not ended'):\n    time.sleep(60)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == HUNG
    assert done.stderr == "spark-prof: o_proj (o=mine) has not ended for 0 s: the process ends\n"
