"""One matrix by itself."""

from __future__ import annotations

import sys
from copy import deepcopy

import torch

from spark_prof.kernels.bench.race import plan
from spark_prof.kernels.bench.random_weights import decoded, random_weight, stored_bytes
from spark_prof.kernels.bench.replay import Replay, main
from spark_prof.kernels.bench.results import cache_bytes
from spark_prof.kernels.bench.run import DENSE_TOLERANCE, exact_products
from spark_prof.kernels.bench.shapes import WeightFormat
from spark_prof.kernels.dense import LinearConfig, linear
from spark_prof.kernels.pack import pack_linear

FORMAT: WeightFormat = "nvfp4"
ROWS, COLUMNS = 4096, 4096
TOKENS = 1
CONFIG = LinearConfig(warps=8, split=8, depth=2, x_ahead=0, min_blocks=3)


def work(device: torch.device) -> Replay:
    """Calls that each read a copy of the weight which no cache holds."""
    weight = random_weight(FORMAT, (ROWS, COLUMNS), device)
    planned = plan(stored_bytes(weight), cache_bytes(device))
    packed = [pack_linear(deepcopy(weight)) for _ in range(planned.copies)]
    source = torch.randn((planned.calls, TOKENS, COLUMNS), device=device).to(torch.bfloat16)
    x = source.clone()
    return Replay(
        calls=planned.calls,
        before=lambda number: x[number].copy_(source[number]),
        call=lambda number: linear(x[number], packed[number % planned.copies], config=CONFIG),
        expected=lambda: exact_products(source, decoded(weight)),
        tolerance=DENSE_TOLERANCE,
    )


if __name__ == "__main__":
    sys.exit(main(work, __doc__))
