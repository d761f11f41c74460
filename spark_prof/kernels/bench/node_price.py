"""What a node of a CUDA graph costs: chains of kernels that do nothing, of two lengths.

What the longer chain takes more, over the nodes that it has more, is the price of a node: what lies
before and behind a chain is in both. Each kernel depends on the one before it, in two ways: it
starts when that one has ended, or earlier and waits for it (programmatic dependent launch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from spark_prof.kernels.bench.ceilings import TimedAmount
from spark_prof.kernels.bench.race import gpu_seconds
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import launch, prepare

EMPTY, ADD_ONE = KernelCode("node.cu", "empty"), KernelCode("node.cu", "add_one")
LENGTHS = (128, 1024)
_THREADS = 32
_WARM_UPS, _REPEATS = 3, 25
_QUEUE_CYCLES = 3_000_000
"""Over a millisecond: the host needs up to that long to launch a graph of a thousand nodes."""


@dataclass(frozen=True)
class Chain:
    """Kernels that follow each other in a graph."""

    quantity: str  # what a file of measured ceilings calls the price of a node of it
    code: KernelCode
    dependent: bool  # whether each starts before the one before it has ended, and waits for it
    wide: bool  # whether there is a block for each multiprocessor, else a single one

    @property
    def words(self) -> str:
        """The chain in words, as a measurement names it."""
        kernels = (
            "empty kernels" if self.code == EMPTY else "kernels that read the last one's result"
        )
        blocks = "a block on each multiprocessor" if self.wide else "one block"
        start = "programmatic dependent launch" if self.dependent else "one after another"
        return f"{LENGTHS[1] - LENGTHS[0]} more {kernels} in a graph, {blocks}, {start}"


CHAINS = (
    Chain("node_serial", EMPTY, dependent=False, wide=False),
    Chain("node_serial_wide", EMPTY, dependent=False, wide=True),
    Chain("node_serial_reads", ADD_ONE, dependent=False, wide=True),
    Chain("node_dependent", EMPTY, dependent=True, wide=False),
    Chain("node_dependent_wide", EMPTY, dependent=True, wide=True),
    Chain("node_dependent_reads", ADD_ONE, dependent=True, wide=True),
)
"""The ones that read show that no price of an empty one stands on kernels that were left out."""


def node_prices(device: torch.device, chains: Sequence[Chain] = CHAINS) -> Iterator[TimedAmount]:
    """Times every chain on a GPU; nothing on a processor.

    Raises:
        KernelError: a kernel did not run, or cannot be compiled or launched.
    """
    if device.type != "cuda":
        return
    prepare([chain.code for chain in chains], device)
    blocks = int(torch.cuda.get_device_properties(device).multi_processor_count)
    for chain in chains:
        count = torch.zeros(1, dtype=torch.int32, device=device)
        grid = (blocks if chain.wide else 1, 1, 1)

        def node(chain: Chain = chain, count: torch.Tensor = count,
                 grid: tuple[int, int, int] = grid) -> None:  # fmt: skip
            launch(chain.code, grid, _THREADS, (count,), chain.dependent)

        seconds, replays = longer_by(node, LENGTHS, _REPEATS)
        if chain.code == ADD_ONE and int(count) != replays * sum(LENGTHS):
            raise KernelError(f"{int(count)} of {replays * sum(LENGTHS)} kernels of a chain ran")
        yield TimedAmount(chain.quantity, LENGTHS[1] - LENGTHS[0], seconds, chain.words)


def longer_by(
    node: Callable[[], object],
    lengths: Sequence[int],
    repeats: int,
    before: Callable[[], object] = lambda: None,
) -> tuple[list[float], int]:
    """By how many seconds the longer of two chains takes longer, and how often each was replayed.

    Both take turns, so that the same clocks hold for both.

    Args:
        node: launches one kernel on the current stream.
        before: what runs before each replay and is not timed, such as what makes the cache cold.
    """
    graphs = [_graph(node, length) for length in lengths]
    times: list[list[float]] = [[], []]
    for _ in range(_WARM_UPS + repeats):
        for graph, chain_times in zip(graphs, times, strict=True):
            before()
            chain_times.append(gpu_seconds(graph.replay, _QUEUE_CYCLES))
    pairs = list(zip(*times, strict=True))[_WARM_UPS:]
    return [max(long - short, 1e-9) for short, long in pairs], _WARM_UPS + repeats


def _graph(node: Callable[[], object], length: int) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(length):
            node()
    return graph
