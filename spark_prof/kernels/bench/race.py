"""Times competitors at the same work: in turns, with cold caches, and only where they are right.

Before each call a kernel writes its activations, as in a model, and a call's time is what it adds
to that kernel. Calls back to back would flatter a kernel that starts before the one in front of it
has ended: it would overlap with itself, which it never does in a model.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import torch

from spark_prof.kernels.bench.graph_nodes import KernelNodes, graph_nodes, kept_graph, of_a_call
from spark_prof.kernels.bench.results import ImplementationResult, spread
from spark_prof.kernels.candidate import Abstained
from spark_prof.kernels.kernel_error import reason

Call = Callable[[int], torch.Tensor]

_WARM_UPS = 2
_QUEUE_CYCLES = 600_000
"""About a third of a millisecond: as long as the host needs to launch a graph of many nodes."""


def gpu_seconds(work: Callable[[], object], cycles: int) -> float:
    """How long work on the current stream takes, to about half a microsecond.

    The host launches it while the GPU still waits for so many cycles: no launch is timed with it.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(cycles)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


class Repeated:
    """Calls 0 to N - 1 in order, as often as wanted; raises whatever a call raises.

    On a GPU they are one CUDA graph, so that no launch from the host lies between them; elsewhere
    the host calls. `outputs` has what each of the calls gave.
    """

    def __init__(self, call: Call, calls: int, device: torch.device) -> None:
        self._graph: torch.cuda.CUDAGraph | None = None
        self._call, self._calls = call, calls
        if device.type != "cuda":
            self.outputs = self._run()
            return
        # What is compiled or allocated at first use must be before a graph is captured.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for number in range(min(_WARM_UPS, calls)):
                call(number)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self._graph = kept_graph()
        failure: Exception | None = None
        try:
            with torch.cuda.graph(self._graph):
                try:
                    self.outputs = self._run()
                except Exception as error:
                    failure = error
                    raise
        except Exception as ended:
            # Ending a capture that was broken off fails too, and says less.
            raise failure or ended from None

    def _run(self) -> list[torch.Tensor]:
        return [self._call(number) for number in range(self._calls)]

    def seconds(self) -> float:
        """Runs all calls once and tells how long they took, by events or the host's clock."""
        if self._graph is None:
            begun = time.perf_counter()
            self.outputs = self._run()
            return time.perf_counter() - begun
        return gpu_seconds(self._graph.replay, _QUEUE_CYCLES)

    @property
    def nodes(self) -> KernelNodes | None:
        """The kernels of its graph; None where nothing tells."""
        return None if self._graph is None else graph_nodes(self._graph)

    def poison(self) -> None:
        """Writes NaN over all results: what is not written again shows."""
        for output in self.outputs:
            output.fill_(torch.nan)


T = TypeVar("T")

Error = Callable[[Sequence[torch.Tensor]], float]
"""How far the outputs of calls 0, 1 ... are from what is right; no NaN."""

_CACHES_BETWEEN = 3
"""Caches' worth of other bytes read between two uses of the same bytes."""

_FEWEST_COPIES = 4
_MOST_REPEATS = 60
_LONG_ENOUGH_US = 300.0
"""How long one repeat should last at least: events tell time to half a microsecond."""

_QUICKEST_BYTES_PER_US = 2e6
_QUICKEST_US = 4.0
_MOST_CALLS = 512


@dataclass(frozen=True)
class RaceSetting:
    """What all competitors of a race do, and where."""

    calls: int
    before: Call  # writes the activations of the call of a number
    error: Error
    tolerance: float
    device: torch.device


@dataclass(frozen=True)
class Plan:
    """How often a piece of work is done in one repeat, and on how many copies of its weights."""

    calls: int
    copies: int


def plan(bytes_used: int, cache: int, bytes_stored: int | None = None) -> Plan:
    """So many calls and copies that every call finds its weights cold.

    Without a cache times say nothing, and the fewest calls will do. Where a call reads a part of
    the weights that changes, a copy of them stores more bytes than a call uses.
    """
    between = _CACHES_BETWEEN * cache
    copies = max(_FEWEST_COPIES, math.ceil(between / max(bytes_stored or bytes_used, 1)))
    copies = min(copies, _MOST_CALLS)
    if not cache:
        return Plan(copies, copies)
    quickest = bytes_used / _QUICKEST_BYTES_PER_US + _QUICKEST_US
    calls = max(math.ceil(between / max(bytes_used, 1)), math.ceil(_LONG_ENOUGH_US / quickest))
    calls = min(math.ceil(calls / copies) * copies, _MOST_CALLS // copies * copies)
    return Plan(max(calls, copies), copies)


def race(
    # By name what does the call of a number, from 0 to the plan's calls - 1, or why somebody
    # cannot take part.
    competitors: Mapping[str, Call | ImplementationResult],
    setting: RaceSetting,
    seconds: float = 0.5,  # after the fewest repeats no more are begun once this has passed
    fewest: int = 20,
) -> tuple[ImplementationResult, ...]:
    """Times every competitor that computes what is right; they take turns, repeat by repeat."""
    calls, tolerance = setting.calls, setting.tolerance
    alone = Repeated(setting.before, calls, setting.device)
    results: dict[str, ImplementationResult] = {}
    ready: dict[str, Repeated] = {}
    for name, call in competitors.items():
        if isinstance(call, ImplementationResult):
            results[name] = call
            continue
        try:
            runs = Repeated(_behind(setting.before, call), calls, setting.device)
            off = _error_after_poison(runs, setting.error)
        except Exception as failure:
            results[name] = _failed(name, failure)
            continue
        results[name] = ImplementationResult(name, None, off)
        if off <= tolerance:
            ready[name] = runs
        else:
            fault = f"wrong result: error {off:.3g}, allowed {tolerance:.3g}"
            results[name] = ImplementationResult(name, None, off, fault)
    times = _in_turns([alone, *ready.values()], seconds, fewest)
    writing = median(times[0])
    for (name, runs), repeats in zip(ready.items(), times[1:], strict=True):
        us = spread([1e6 * (repeat - writing) / calls for repeat in repeats])
        # Once more: a kernel that only sometimes is right is not timed as if it were.
        off = max(results[name].error or 0.0, _error_after_poison(runs, setting.error))
        if off <= tolerance:
            counted = of_a_call(runs.nodes, alone.nodes, calls)
            nodes, early = (sum(counted), counted.early) if counted else (None, 0.0)
            results[name] = ImplementationResult(name, us, off, nodes=nodes, early_nodes=early)
        else:
            fault = f"wrong result after {us.repeats} repeats: error {off:.3g}"
            results[name] = ImplementationResult(name, None, off, fault)
    return tuple(results.values())


def largest_relative_l2(outputs: Sequence[torch.Tensor], expected: torch.Tensor) -> float:
    """The L2 norm of the difference over that of what was expected, of the worst call.

    It is infinity if anything is NaN.
    """
    actual = torch.stack([*outputs]).to(torch.float64).flatten(1)
    right = expected.to(torch.float64).flatten(1)
    errors = (actual - right).norm(dim=1) / right.norm(dim=1)
    return float(errors.nan_to_num(nan=torch.inf, posinf=torch.inf).max())


def clones(value: T, count: int) -> list[T]:
    """That many copies with memory of their own, the value itself among them."""
    return [value, *(copy.deepcopy(value) for _ in range(count - 1))]


def _failed(name: str, failure: Exception) -> ImplementationResult:
    return ImplementationResult(name, None, None, reason(failure), isinstance(failure, Abstained))


def prepared(name: str, make: Callable[[], T]) -> T | ImplementationResult:
    """What a competitor does its calls with, or the result that says why it cannot take part."""
    try:
        return make()
    except Exception as failure:
        return _failed(name, failure)


def _behind(before: Call, call: Call) -> Call:
    def both(number: int) -> torch.Tensor:
        before(number)
        return call(number)

    return both


def _error_after_poison(runs: Repeated, error: Error) -> float:
    runs.poison()
    runs.seconds()
    return error(runs.outputs)


def _in_turns(all_runs: Sequence[Repeated], seconds: float, fewest: int) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in all_runs]
    begun = time.perf_counter()
    for repeat in range(_MOST_REPEATS):
        if repeat >= fewest and time.perf_counter() - begun > seconds:
            break
        for runs, run_times in zip(all_runs, times, strict=True):
            run_times.append(runs.seconds())
    return times
