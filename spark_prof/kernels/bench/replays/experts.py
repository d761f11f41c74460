"""One mixture of experts by itself."""

from __future__ import annotations

import sys
from copy import deepcopy

import torch

from spark_prof.kernels.bench.random_weights import bytes_of_expert, random_experts
from spark_prof.kernels.bench.replay import Replay, main
from spark_prof.kernels.bench.run import EXPERTS_TOLERANCE, exact_experts, expert_inputs
from spark_prof.kernels.bench.shapes import ExpertsShape
from spark_prof.kernels.candidate import ExpertsLayer
from spark_prof.kernels.moe import MoeConfig, PackedExperts, moe, pack_experts

SHAPE = ExpertsShape("small", "mxfp4", 8, 2, 128, 64, "swiglu", True)
TOKENS = 1
CONFIG = MoeConfig(4, 1, 2, 5, 16, 2, 1)


def packed(layer: ExpertsLayer) -> PackedExperts:
    """The experts as the kernel reads them."""
    weights = deepcopy((layer.gate_up, layer.down, layer.gate_up_bias, layer.down_bias))
    return pack_experts(*weights, layer.activation)


def work(device: torch.device) -> Replay:
    """Calls that each read experts of a copy which no cache holds."""
    layer = random_experts(SHAPE, device)
    inputs = expert_inputs(SHAPE, bytes_of_expert(layer), TOKENS, device)
    copies = [packed(layer) for _ in range(inputs.copies)]
    x, logits = inputs.buffers

    def call(number: int) -> torch.Tensor:
        experts = copies[number % inputs.copies]
        return moe(x[number], logits[number], experts, layer.router, config=CONFIG)

    return Replay(
        calls=len(x),
        before=lambda number: x[number].copy_(inputs.source[number]),
        call=call,
        expected=lambda: exact_experts(layer, [inputs])[0],
        tolerance=EXPERTS_TOLERANCE,
    )


if __name__ == "__main__":
    sys.exit(main(work, __doc__))
