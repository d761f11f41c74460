"""The machine of a run: memory for both sides, and how busy and how fast it was meanwhile.

A second copy of the swapped weights fits beside the model or not: that is checked before anything
starts. Clocks that differ between the sides spoil a quad.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from spark_prof.ab.command import EngineCommand
from spark_prof.ab.sides import Side
from spark_prof.ab.timed_steps import Dropped, Quad
from spark_prof.analyzers.comparing.swap_proof import COMPONENTS_OF_SLOT
from spark_prof.errors import CommandError
from spark_prof.profiler.commands import option_value
from spark_prof.profiler.facts import device_state, nvml_gpu
from spark_prof.rules.components import component_of
from spark_prof.swaps.swap_settings import Swap
from spark_prof.traces.checkpoint import BITS, Tensor, model_folder, read_checkpoint
from spark_prof.traces.measured import DeviceState

_PERIOD_S = 0.1
_MOST_SAMPLES = 1 << 18
_CLOCKS_APART = 0.01
_NEAR_NS = 500_000_000  # a sample farther from a block says nothing of it
_SETTINGS = frozenset({"application clocks", "display clocks"})
"""Reasons that somebody chose, and that come and go with nothing."""


@dataclass(frozen=True)
class Sample:
    """The state of one GPU at one moment."""

    at_ns: int  # since 1970
    gpu: int  # its place among those of the engine
    state: DeviceState  # clocks, temperature, power; None where the driver does not tell


@dataclass(frozen=True)
class Steady:
    """Quads during which the machine was the same for both sides."""

    quads: tuple[Quad, ...]  # that count
    dropped: tuple[Dropped, ...]  # the others
    lines: tuple[str, ...]  # what there is to say about the machine, one line each


class Sampler:
    """Asks for the state of GPUs from a thread of its own; used in a with statement.

    NVML answers from the driver and runs nothing on the GPU. What other programs compute is told
    by the operating system's counters, read at the beginning and when somebody asks.
    """

    def __init__(
        self,
        # As NVML writes them, with "GPU-" before; none for an engine on the processor.
        uuids: Sequence[str],
        period_s: float = _PERIOD_S,
        read: Callable[[str], DeviceState] = device_state,  # tells the state of one
        engine: psutil.Process | None = None,  # which with its children is no other program
    ) -> None:
        self._uuids = tuple(uuids)
        self._period_s = period_s
        self._read = read
        self._engine = engine
        self._begun: tuple[float, float] | None = None
        self._samples: deque[Sample] = deque(maxlen=_MOST_SAMPLES)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark-prof-gpu-state", daemon=True)

    def __enter__(self) -> Sampler:
        self._begun = self._computed()
        if self._uuids:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=10)  # a driver that hangs must not hang the run

    def samples(self) -> tuple[Sample, ...]:
        """What was seen until now, oldest first; the oldest are forgotten after some hours."""
        return tuple(self._samples.copy())

    def other_load(self) -> float | None:
        """Processors that other programs kept busy until now; None where nothing tells it."""
        now = self._computed()
        if self._begun is None or now is None or now[0] <= self._begun[0]:
            return None
        return max(0.0, (now[1] - self._begun[1]) / (now[0] - self._begun[0]))

    def _computed(self) -> tuple[float, float] | None:
        """The moment, and the seconds that processors spent on others until then."""
        if self._engine is None:
            return None
        with suppress(psutil.Error, OSError):
            processes = [psutil.Process(), self._engine, *self._engine.children(recursive=True)]
            # What ended children spent, too.
            spent = sum(sum(process.cpu_times()[:4]) for process in processes)
            every = psutil.cpu_times()._asdict()
            # Time of guests is part of the user's.
            free = sum(every.get(n, 0.0) for n in ("idle", "iowait", "guest", "guest_nice"))
            return time.monotonic(), sum(every.values()) - free - spent
        return None

    def _run(self) -> None:
        while not self._end.is_set():
            for gpu, uuid in enumerate(self._uuids):
                self._samples.append(Sample(time.time_ns(), gpu, self._read(uuid)))
            self._end.wait(self._period_s)


def keep_steady(quads: Sequence[Quad], samples: Sequence[Sample]) -> Steady:
    """Drops quads with SM clocks more than 1 % apart between sides, or held down.

    What holds the clocks down in more than half of the quads is how this machine is, not an event:
    it drops none, and a line says so.
    """
    by_gpu: defaultdict[int, list[Sample]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: sample.at_ns):
        by_gpu[sample.gpu].append(sample)
    clocks_of = {quad.number: _observed(quad, by_gpu) for quad in quads}
    if not any(quad.clocks for quad in clocks_of.values()):
        return Steady(tuple(quads), (), ("clocks: not known; no quad was dropped for them",))
    reason_counts = Counter(reason for quad in clocks_of.values() for reason in quad.reasons)
    lasting = {reason for reason, count in reason_counts.items() if count > len(quads) / 2}
    why = {quad.number: _unsteady(clocks_of[quad.number], lasting) for quad in quads}
    unknown = sum(not quad.clocks for quad in clocks_of.values())
    lines = [
        f"clocks were held down during {reason_counts[reason]} of {len(quads)} quads ({reason})"
        for reason in sorted(lasting)
    ]
    if unknown:
        lines.append(f"clocks of {unknown} of {len(quads)} quads: not known")
    dropped = tuple(Dropped(number, line) for number, line in why.items() if line)
    if dropped:
        lines.append(f"{len(dropped)} of {len(quads)} quads dropped: the machine was not steady")
    return Steady(tuple(quad for quad in quads if not why[quad.number]), dropped, tuple(lines))


@dataclass(frozen=True)
class _QuadClocks:
    """What was seen of the GPUs during one quad: mean SM clocks in MHz of each by side."""

    clocks: tuple[Mapping[str, float], ...]
    reasons: frozenset[str]


def _observed(quad: Quad, by_gpu: Mapping[int, Sequence[Sample]]) -> _QuadClocks:
    clocks = []
    reasons: set[str] = set()
    for samples in by_gpu.values():
        sides: defaultdict[str, list[int]] = defaultdict(list)
        for side, start, end in quad.spans:
            for sample in _of_span(samples, start, end):
                reasons.update(set(sample.state.throttled) - _SETTINGS)
                if sample.state.sm_mhz:
                    sides[side].append(sample.state.sm_mhz)
        if len(sides) == 2:
            clocks.append({side: sum(mhz) / len(mhz) for side, mhz in sides.items()})
    return _QuadClocks(tuple(clocks), frozenset(reasons))


def _of_span(samples: Sequence[Sample], start: int, end: int) -> Sequence[Sample]:
    """The samples within a span of time; if there are none, those just before and after it."""
    first = bisect_left(samples, start, key=lambda sample: sample.at_ns)
    last = bisect_left(samples, end, key=lambda sample: sample.at_ns)
    if first < last:
        return samples[first:last]
    around = samples[max(0, first - 1) : first + 1]
    return [s for s in around if start - _NEAR_NS <= s.at_ns <= end + _NEAR_NS]


def _unsteady(observed: _QuadClocks, lasting: set[str]) -> str:
    """Why a quad is dropped; empty where it is not."""
    for sides in observed.clocks:
        slow, fast = sorted(sides.values())
        if fast - slow > _CLOCKS_APART * fast:
            clocks = " and ".join(f"{mhz:.0f} MHz on {side}" for side, mhz in sorted(sides.items()))
            return f"SM clocks of {clocks}"
    reasons = sorted(observed.reasons - lasting)
    return f"clocks were held down ({', '.join(reasons)})" if reasons else ""


_USED = 0.9
"""vLLM's --gpu-memory-utilization before 0.31, the lower of its defaults."""
_BESIDE = 1 << 30
"""Bytes that activations, CUDA graphs and the smallest KV cache take at least."""
_BITS_OF_FORMAT = {"mxfp4": 4.25, "fp8": 8.0}  # of a weight, scales included


def check_memory(
    command: EngineCommand, a: Side, b: Side, free: int | None
) -> tuple[bool | None, str]:
    """Adds up the model and the copies of its weights, by the headers of its files.

    Returns whether both sides fit in the free bytes, None where that is not known, and the figures
    or why not.
    """
    if free is None:
        return (None, "memory for both sides was not checked: NVML tells of no GPU here")
    tensors: tuple[Tensor, ...] = ()
    if command.model:
        with suppress(CommandError):
            tensors = read_checkpoint(model_folder(command.model)).tensors
    if not tensors:
        return (
            None,
            "memory for both sides was not checked: the model's files, which tell how large its "
            "weights are, are not on this machine",
        )
    arguments = command.arguments
    ranks = _number(option_value(arguments, "--tensor-parallel-size", "-tp"), 1.0)
    share = _number(option_value(arguments, "--gpu-memory-utilization"), _USED)
    weights = sum(tensor.bytes for tensor in tensors) / ranks
    copies = sum(_copy(swap, tensors) for swap in {*a.swaps, *b.swaps}) / ranks
    needed = weights + copies + _BESIDE
    line = (
        f"both sides need {needed / 1e9:.1f} GB ({weights / 1e9:.1f} GB of weights, "
        f"{copies / 1e9:.1f} GB for swapped ones), of {share * free / 1e9:.1f} GB that the engine "
        "may use"
    )
    return needed <= share * free, line


def _copy(swap: Swap, tensors: Iterable[Tensor]) -> float:
    """Bytes of what a swap holds beside vLLM's own weights."""
    component = COMPONENTS_OF_SLOT[swap.slot][0]
    tensors_of_slot = [
        t for t in tensors if component_of(t.name.rpartition(".")[0], "") == component
    ]
    if bits := _BITS_OF_FORMAT.get(swap.kernel):
        return sum(tensor.bytes * bits / BITS[tensor.dtype] for tensor in tensors_of_slot)
    return sum(tensor.bytes for tensor in tensors_of_slot)


_DEVICE_FILES = ("nvidia*", "dxg", "nvmap", "nvgpu")
"""Of NVIDIA's driver on Linux, in WSL and on Jetson."""


def may_have_gpu() -> bool:
    """Whether this machine may have an NVIDIA GPU; False where neither NVML nor a driver has one.

    may_have_gpu()
    """
    if any(next(Path("/dev").glob(name), None) for name in _DEVICE_FILES):
        return True
    with suppress(Exception):  # absent package, or no driver
        nvml_gpu("0")
        return True
    return False


def free_bytes() -> int | None:
    """Free memory of the first GPU that an engine would use; None where NVML tells of none."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    with suppress(Exception):  # absent package, or no driver
        nvml, handle = nvml_gpu(first or "0")
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).free)
    return None


def _number(text: str | None, otherwise: float) -> float:
    with suppress(ValueError):
        value = float(text or otherwise)
        return value if value > 0 else otherwise
    return otherwise
