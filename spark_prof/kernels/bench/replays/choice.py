"""One choice of experts by itself."""

from __future__ import annotations

import sys

import torch

from spark_prof.kernels.bench.replay import Replay, main
from spark_prof.kernels.candidate import RouterLayer
from spark_prof.kernels.check.oracles import routing_oracle
from spark_prof.kernels.routing import Routing, routed

EXPERTS, TOP_K = 32, 4
TOKENS = 1
CALLS = 64


def work(device: torch.device) -> Replay:
    """Calls on logits that a kernel has just written."""
    router = RouterLayer("router", EXPERTS, TOP_K, True, "softmax", None, 1.0)
    source = torch.randn((CALLS, TOKENS, EXPERTS), device=device)
    logits = source.clone()
    got: dict[int, Routing] = {}
    chosen, weights = routing_oracle(source.flatten(0, 1), router)

    def call(number: int) -> torch.Tensor:
        got[number] = routed(logits[number], router)
        return got[number].weights

    def problem() -> str:
        experts = torch.cat([got[number].experts for number in range(CALLS)])
        return "" if torch.equal(experts, chosen.to(experts.dtype)) else "wrong experts"

    return Replay(
        calls=CALLS,
        before=lambda number: logits[number].copy_(source[number]),
        call=call,
        expected=lambda: weights.value.unflatten(0, (CALLS, TOKENS)),
        tolerance=1e-5,
        problem=problem,
    )


if __name__ == "__main__":
    sys.exit(main(work, __doc__))
