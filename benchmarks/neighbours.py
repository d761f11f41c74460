"""How long small kernels take behind weights that are read in one way or another.

Three layers of gpt-oss-20b's sizes, six times over, each followed by a product of two vectors and a
selection from one, in one CUDA graph. No cache holds the weights; what the small kernels read would
fit in any. The layers are cuBLAS's, and this package's. Printed are medians of the kernels' own
times, as CUPTI has them, and the time of the graph without it.

usage: python benchmarks/neighbours.py [--repeats 20]
exit code: 2 without a GPU
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from spark_prof.kernels.bench.race import Call, Repeated
from spark_prof.kernels.dense import linear
from spark_prof.kernels.pack import pack_linear

SHAPES = ((5120, 2880), (2880, 4096), (9216, 2880))
TIMES_OVER = 6
HIDDEN = 2880

Layer = Callable[[torch.Tensor], torch.Tensor]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=20, help="replays of the graph")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("neighbours.py times kernels on an NVIDIA GPU: torch finds none", file=sys.stderr)
        return 2
    times = {name: timed(layers(), options.repeats) for name, layers in COMPETITORS.items()}
    names = sorted(set.intersection(*({*kernels} for _, kernels in times.values())))
    for name in names:
        us = [kernels[name] for _, kernels in times.values()]
        print(f"{name[:60]}: {times_text(us)}")
    print(f"the whole graph: {times_text([graph for graph, _ in times.values()])}")
    return 0


def times_text(us: list[float]) -> str:
    """The times of both, and what the second saves of the first."""
    behind = ", ".join(f"{t:.2f} us with {n}" for n, t in zip(COMPETITORS, us, strict=True))
    return f"{behind}, {us[0] / us[-1]:.2f} x"


def weights() -> list[torch.Tensor]:
    """A weight for each layer, 106 MB for three of them."""
    return [
        torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) / 50
        for _ in range(TIMES_OVER)
        for rows, columns in SHAPES
    ]


def by_cublas() -> list[Layer]:
    """The layers as PyTorch runs them."""
    return [partial(functional.linear, weight=weight) for weight in weights()]


def by_this_package() -> list[Layer]:
    """The layers with this package's kernel."""
    return [partial(linear, weight=pack_linear(weight)) for weight in weights()]


COMPETITORS = {"cuBLAS": by_cublas, "spark-prof": by_this_package}


def timed(layers: list[Layer], repeats: int) -> tuple[float, dict[str, float]]:
    """The time of the graph, and the median of each small kernel, in us.

    Args:
        layers: in turn of the sizes of `SHAPES`.
        repeats: of the graph.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    graph = Repeated(followed(layers, device), len(layers), device)
    whole = statistics.median(graph.seconds() for _ in range(repeats))
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeats):
            graph.seconds()
        torch.cuda.synchronize()
    took = defaultdict(list)
    for event in profiler.events():
        if event.device_time > 0:
            took[event.name].append(event.device_time)
    # The small ones run once behind each layer, whatever the layers' kernels are called.
    small = {k: v for k, v in took.items() if len(v) == repeats * len(layers) and k != "dense"}
    return 1e6 * whole, {name: statistics.median(times) for name, times in small.items()}


def followed(layers: list[Layer], device: torch.device) -> Call:
    """Runs a layer and the small kernels behind it."""
    inputs = [torch.randn(1, k, device=device, dtype=torch.bfloat16) for _, k in SHAPES]
    left, right = (torch.randn(HIDDEN, device=device) for _ in range(2))
    backwards = torch.arange(HIDDEN, device=device).flip(0)

    def call(number: int) -> torch.Tensor:
        result = layers[number](inputs[number % len(SHAPES)])
        torch.mul(left, right)
        torch.index_select(left, 0, backwards)
        return result

    return call


if __name__ == "__main__":
    sys.exit(main())
