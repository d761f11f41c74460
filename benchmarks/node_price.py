"""The price of a node of a CUDA graph, and whether a bound with it stays below real chains.

    python benchmarks/node_price.py [-o FILE]

On a GPU that does nothing else, in the Python that runs vLLM (torch, cuda-bindings, NVRTC); about
two minutes. It prints as it goes:

1. what `spark-prof doctor --measure` takes as the price: chains of empty kernels, 128 and 1,024
   to a graph, with and without programmatic dependent launch, by one block and by one on each
   multiprocessor, and chains whose kernels read each other's result;
2. chains of small real kernels (RMS norm of 4 KB, torch's add and rms_norm of 4 KB), 300 to a
   graph: predicted by bytes and price against measured;
3. chains of kernels that read 16 KB to 16 MB that no cache holds, whether they wait first or read
   first. A bound is right where measured over bound is at least 1: bytes + price is the sum,
   max is the larger of both.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median, quantiles

import torch

from spark_prof.kernels.bench.ceilings import Device, bandwidths, launches, room_of
from spark_prof.kernels.bench.graph_nodes import graph_nodes, kept_graph
from spark_prof.kernels.bench.node_price import EMPTY, longer_by, node_prices
from spark_prof.kernels.normed_linear import norm_code
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import launch, prepare

_STREAM = KernelCode(str(Path(__file__).resolve().with_suffix(".cu")), "stream")
_COLUMNS = 2048  # of BF16: 4 KB
_SMALL = (60, 360)  # lengths of chains that are 300 kernels apart
_SIZES = tuple(1024 * kib for kib in (16, 64, 256, 1024, 4096, 16384))
_BYTES = 1 << 30  # of a chain of readers, at most
_REPEATS = 15


@dataclass(frozen=True)
class Figure:
    """One measured chain; times in us a node."""

    what: str
    us: float  # median
    lower: float  # quartiles
    upper: float
    bytes: int = 0  # of a node
    bound_sum: float | None = None  # bytes at the read bandwidth + price
    bound_max: float | None = None  # the larger of both


def figure(name: str, seconds: list[float], nodes: int, size: int = 0) -> Figure:
    """The chain's time a node."""
    us = [1e6 * one / nodes for one in seconds]
    lower, _, upper = quantiles(us, n=4, method="inclusive")
    return Figure(name, median(us), lower, upper, size)


def show(one: Figure) -> None:
    """Prints it at once."""
    text = f"{one.what:62} {one.us:8.3f} us [{one.lower:.3f}, {one.upper:.3f}]"
    if one.bound_sum and one.bound_max:
        text += f"  sum {one.bound_sum:7.3f} x {one.us / one.bound_sum:5.2f}"
        text += f"  max {one.bound_max:7.3f} x {one.us / one.bound_max:5.2f}"
        text += "" if one.us >= one.bound_sum else "  BELOW THE SUM"
        text += "" if one.us >= one.bound_max else "  BELOW THE MAX"
    print(text, flush=True)


def small_chains(device: torch.device) -> Iterator[tuple[str, Callable[[], object], bool, int]]:
    """What, what launches a node, whether it depends programmatically, and bytes of a node."""
    x, residual, normed = (
        torch.randn(1, _COLUMNS, device=device, dtype=torch.bfloat16) for _ in range(3)
    )
    scale = torch.ones(_COLUMNS, device=device)
    stream, code = torch.empty_like(x), norm_code(_COLUMNS)
    prepare([code], device)
    arguments = (x, residual, scale, stream, normed, 0, 1e-6)
    size = 4 * x.nbytes + scale.nbytes
    for dependent in (False, True):
        norm = partial(launch, code, (1, 1, 1), _COLUMNS // 256 * 32, arguments, dependent)
        yield f"RMS norm of x + residual, 4 KB, {_start(dependent)}", norm, dependent, size
    half = scale.bfloat16()
    yield "torch.add of 4 KB", lambda: torch.add(x, residual, out=x), False, 3 * x.nbytes
    yield (
        "torch rms_norm of 4 KB (may be several kernels)",
        lambda: torch.nn.functional.rms_norm(x, (_COLUMNS,), half),
        False,
        3 * x.nbytes,
    )


def driver_count(dependent: bool) -> object:
    """What `kernels bench` counts in a graph of ten: nine of them are behind an edge."""
    result = torch.zeros(1, dtype=torch.int32, device="cuda")
    graph = kept_graph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            launch(EMPTY, (1, 1, 1), 32, (result,), dependent)
    return graph_nodes(graph)


def _start(dependent: bool) -> str:
    return "dependent" if dependent else "serial"


def streams(device: torch.device, read: float, prices: dict[bool, float]) -> Iterator[Figure]:
    """Chains of readers of each size; each node has bytes of its own."""
    prepare([_STREAM], device)
    properties = torch.cuda.get_device_properties(device)
    sms = int(properties.multi_processor_count)
    buffer = torch.ones(_BYTES // 4, device=device)
    result = torch.zeros(1, dtype=torch.int32, device=device)
    spoil = torch.empty(int(properties.L2_cache_size), device=device, dtype=torch.int16)
    for size in _SIZES:
        long = min(_BYTES // size, 600)
        lengths, words = (long // 4, long), size // 16
        blocks = min(-(-words // 256), 8 * sms)
        for dependent, ahead in ((False, 0), (True, 0), (True, 1)):
            numbers = count()

            def node(numbers: Iterator[int] = numbers, size: int = size, words: int = words,
                     blocks: int = blocks, dependent: bool = dependent,
                     ahead: int = ahead) -> None:  # fmt: skip
                at = next(numbers) * size % (_BYTES - size + 1) // 16 * 4
                launch(_STREAM, (blocks, 1, 1), 256, (buffer[at:], result, words, ahead), dependent)

            seconds, _ = longer_by(node, lengths, _REPEATS, lambda: spoil.fill_(0))
            how = f"{_start(dependent)}{', reads before it waits' if ahead else ''}"
            one = figure(f"read {size / 1024:,.0f} KB, {how}", seconds, lengths[1] - lengths[0],
                         size)  # fmt: skip
            yield bounded(one, read, prices[dependent])


def bounded(one: Figure, read: float, price: float) -> Figure:
    """The figure beside its bounds; the kernels of a chain without a price of theirs have none."""
    by_bytes = one.bytes / read * 1e6
    return replace(one, bound_sum=by_bytes + price, bound_max=max(by_bytes, price))


def main() -> int:
    """Measures everything on the current GPU; the exit code, 2 without one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, help="write the figures there, as JSON")
    out = parser.parse_args().out
    if not torch.cuda.is_available():
        print("no GPU")
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    name, versions = torch.cuda.get_device_name(device), f"torch {torch.__version__}"
    time_utc = datetime.now(UTC).isoformat(timespec="seconds")
    print(f"{name}, {versions}, CUDA {torch.version.cuda}, {time_utc}", flush=True)
    figures: list[Figure] = []

    def add(one: Figure) -> None:
        figures.append(one)
        show(one)

    with torch.inference_mode():
        on = Device("cuda")
        timed = next(iter(bandwidths(on, room_of(on))))
        read = median(timed.rates)
        print(f"read bandwidth {read / 1e12:.3f} TB/s by {timed.how}", flush=True)
        torch.cuda.empty_cache()
        for entry in launches(on):
            add(figure(f"{entry.quantity}: {entry.how}", entry.seconds, int(entry.amount)))
        prices: dict[bool, float] = {}
        for entry in node_prices(device):
            add(figure(f"{entry.quantity}", entry.seconds, int(entry.amount)))
            dependent = "dependent" in entry.quantity
            if not entry.quantity.endswith("_reads"):
                prices[dependent] = min(prices.get(dependent, 1e9), figures[-1].us)
        lowest = min(prices.values())
        for dependent, us in prices.items():
            print(f"price of a node, {_start(dependent)}: {us:.3f} us, {300 * us:.1f} for 300")
        for dependent in (False, True):
            print(
                f"what the driver tells of 10 nodes, {_start(dependent)}: {driver_count(dependent)}"
            )
        for chain, node, dependent, size in small_chains(device):
            seconds, _ = longer_by(node, _SMALL, _REPEATS)
            one = figure(chain, seconds, _SMALL[1] - _SMALL[0], size)
            add(bounded(one, read, prices[dependent]))
        for one in streams(device, read, {**prices}):
            add(one)
    below_sum = [one.what for one in figures if one.bound_sum and one.us < one.bound_sum]
    below_max = [one.what for one in figures if one.bound_max and one.us < one.bound_max]
    print(f"below bytes + price: {len(below_sum)} {below_sum}")
    print(f"below max(bytes, price): {len(below_max)} {below_max}")
    print(f"the lowest price: {lowest:.3f} us")
    if out:
        facts = {"gpu": name, "versions": versions, "taken": time_utc, "read": read,
                 "serial_us": prices[False], "dependent_us": prices[True]}  # fmt: skip
        out.write_text(json.dumps(facts | {"figures": [asdict(one) for one in figures]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
