"""What a run of the benchmark holds kernels against, measured in the same run."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import torch

from spark_prof.kernels.bench.ceilings import Device, TimedAmount, bandwidths, launches, room_of
from spark_prof.kernels.bench.node_price import CHAINS, EMPTY, node_prices
from spark_prof.kernels.bench.results import MachineCeilings, TimeSpread, spread
from spark_prof.kernels.kernel_error import KernelError

_LARGEST = 1 << 30


def measure_ceilings(device: torch.device, largest: int = _LARGEST) -> MachineCeilings:
    """What kernels are held against, by a buffer of so many bytes at most; some seconds.

    On a processor there is no launch, which counts as a microsecond, and no node.
    """
    on = Device(device.type)
    room = room_of(on)
    if not room.buffer_bytes:
        raise KernelError("too little memory is free to measure its bandwidth")
    room = replace(room, buffer_bytes=min(room.buffer_bytes, largest))
    times = {timed.quantity: timed for timed in (*bandwidths(on, room), *launches(on))}
    read, copy = times["read"], times["copy"]
    launch = times.get("launch_graph", TimedAmount("", 1, [1e-6, 1e-6], "no launch"))
    prices = _prices(device)
    return MachineCeilings(
        read=spread(read.rates),
        copy=spread(copy.rates),
        launch_us=_us(launch),
        read_by=read.how,
        copied_by=copy.how,
        launched=launch.how,
        node_us=prices.get(False),
        early_node_us=prices.get(True),
    )


def _us(timed: TimedAmount) -> TimeSpread:
    return spread([1e6 / rate for rate in timed.rates])


def _prices(device: torch.device) -> dict[bool, TimeSpread]:
    """The least of the chains that are launched programmatically, and of the others."""
    prices: dict[bool, TimeSpread] = {}
    chains = [chain for chain in CHAINS if chain.code == EMPTY]
    # Without NVRTC the package's kernels are missing as well; others still race.
    with suppress(KernelError, RuntimeError):
        for chain, timed in zip(chains, node_prices(device, chains), strict=False):
            price, least = _us(timed), prices.get(chain.dependent)
            if least is None or price.median < least.median:
                prices[chain.dependent] = price
    return prices
