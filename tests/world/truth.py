"""What a report has to say of a world, by brute force: every tick of it is looked at.

Nothing here is taken from spark_prof. Times are in us, as in a report's JSON.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tests.world.world import COLLECTIVE, Ran, Step, World, owner_of

GAPS = ("launch_gaps", "host")


def percentile(values: Iterable[float], share: float) -> float:
    """Between the two values that it lies between, in proportion."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


@dataclass(frozen=True)
class Part:
    """What one component, or a gap, has of a step, in ticks."""

    summed: float = 0.0
    owned: float = 0.0
    alone: float = 0.0


@dataclass(frozen=True)
class Truth:
    """What is true of one rank of a world."""

    world: World
    rank: int = 0

    @cached_property
    def ran(self) -> list[Ran]:
        """What ran, each from when its stream was its own, in order of start.

        What starts while another runs on its stream, and outlasts it, waits for it.
        """
        found, reached = [], dict[int, int]()
        for each in sorted(self.world.played[0][self.rank], key=lambda one: (one.start, one.end)):
            stream = each.launch.stream
            before = reached.get(stream, each.start)
            start = max(each.start, before) if each.end > before else each.start
            reached[stream] = max(before, each.end)
            found.append(each._replace(start=start))
        return sorted(found, key=lambda one: one.start)

    @cached_property
    def windows(self) -> list[tuple[int, int]]:
        """From when to when each step has the device."""
        hosts = self.world.played[1][self.rank]
        size = -(-len(hosts) // self.world.pieces)
        begins, done, ends = [], 0, []
        for number, host in enumerate(hosts):
            first = number % size == 0
            begins.append(host.start if first else max(host.schedule, done))
            ran = [e.end for e in self.world.played[0][self.rank] if e.step == number]
            done = max([done, *ran])
            ends.append(max(host.update, done, begins[-1]))
        for number in range(1, len(begins)):
            after = begins[number]
            ends[number - 1] = min(ends[number - 1], after) if number % size == 0 else after
        return list(zip(begins, ends, strict=True))

    @cached_property
    def owners(self) -> list[dict[str, Part]]:
        """For each step what every component, `launch_gaps` and `host` have of it."""
        last = max(max((e.end for e in self.ran), default=0), self.windows[-1][1]) + 1
        names = sorted({owner_of(each.launch)[0] for each in self.ran})
        running = np.zeros((len(names), last))
        for each in self.ran:
            running[names.index(owner_of(each.launch)[0]), each.start : each.end] += 1
        at_once = running.sum(axis=0)
        found = []
        for begin, end in self.windows:
            inside, count = running[:, begin:end], at_once[begin:end]
            parts = {
                name: Part(row.sum(), (row[count > 0] / count[count > 0]).sum(),
                           row[count == 1].sum())
                for name, row in zip(names, inside, strict=True)
            }  # fmt: skip
            kernels = [e for e in self.ran if begin <= e.start < end and e.launch.kind == "kernel"]
            first = min((e.start for e in kernels), default=end) - begin
            final = max((e.start for e in kernels), default=begin) - begin
            idle = float((count == 0).sum())
            between = float((count[first : final + 1] == 0).sum()) if kernels else 0.0
            parts["launch_gaps"] = Part(between, between, between)
            parts["host"] = Part(idle - between, idle - between, idle - between)
            found.append(parts)
        return found

    # Sums over steps; times in us.

    def us(self, ticks: float) -> float:
        """So many ticks."""
        return ticks * self.world.tick / 1e3

    def steps(self, *phases: str) -> list[int]:
        """The numbers of the steps of these phases, of all if none is named."""
        return [n for n, one in enumerate(self.world.steps) if not phases or one.phase in phases]

    def lengths(self, *phases: str) -> list[float]:
        """How long they take."""
        return [self.us(end - begin) for begin, end in (self.windows[n] for n in
                                                        self.steps(*phases))]  # fmt: skip

    def kernel_us(self, *phases: str) -> float:
        """How long their kernels ran, overlaps counted in full."""
        return self.us(sum(e.end - e.start for e in self._of(phases) if e.launch.kind == "kernel"))

    def copies_us(self, *phases: str) -> float:
        """How long their copies ran."""
        return self.us(sum(e.end - e.start for e in self._of(phases) if e.launch.kind != "kernel"))

    def gap_us(self, *phases: str) -> float:
        """In which nothing ran in their windows."""
        parts = [self.owners[n][gap].owned for n in self.steps(*phases) for gap in GAPS]
        return self.us(sum(parts))

    def union_us(self, *, copies: bool) -> float:
        """In which anything ran, over the whole run."""
        ticks = {
            t
            for e in self.ran
            if copies or e.launch.kind == "kernel"
            for t in range(e.start, e.end)
        }
        return self.us(len(ticks))

    def by_component(self, *phases: str) -> dict[str, float]:
        """Kernel time of each component."""
        return self._summed(phases, lambda e: owner_of(e.launch)[0])

    def layers_of(self, component: str, phase: str) -> int:
        """In how many decoder layers it has kernels."""
        owners = {owner_of(e.launch) for e in self._of([phase]) if e.launch.kind == "kernel"}
        return len({layer for name, layer in owners if name == component and layer >= 0})

    def by_layer(self) -> dict[tuple[int | None, str], float]:
        """Kernel time by layer and component."""
        found = self._summed((), owner_and_layer)
        return {(layer if layer >= 0 else None, name): us for (name, layer), us in found.items()}

    def by_name(self) -> dict[tuple[str, str], tuple[int, float]]:
        """Calls and time of each kernel of a component."""
        times = self._summed((), lambda e: (e.launch.name, owner_of(e.launch)[0]))
        calls: dict[tuple[str, str], int] = defaultdict(int)
        for e in self.ran:
            calls[e.launch.name, owner_of(e.launch)[0]] += 1
        return {key: (calls[key], us) for key, us in times.items()}

    def tokens(self, number: int) -> tuple[int, int]:
        """How many requests decode in a step, and how many tokens these get."""
        one: Step = self.world.steps[number]
        return one.requests, one.requests * one.tokens

    def token_us(self, batch: int | None = None, *phases: str) -> float | None:
        """What a token of a sequence takes: time over tokens; None where no step decodes."""
        chosen = [n for n in self.steps(*(phases or ("decode", "mixed")))
                  if batch is None or self.world.steps[n].requests == batch]  # fmt: skip
        lengths = self.lengths()
        us = sum(lengths[n] * self.tokens(n)[0] for n in chosen)
        tokens = sum(self.tokens(n)[1] for n in chosen)
        return us / tokens if tokens else None

    def copies(self) -> dict[str, tuple[str, int, float, int]]:
        """Kind, calls, time and bytes of each copy or memset."""
        found: dict[str, tuple[str, int, float, int]] = {}
        for e in self.ran:
            if (kind := e.launch.kind) != "kernel":
                _, calls, us, size = found.get(e.launch.name, ("", 0, 0.0, 0))
                us += self.us(e.end - e.start)
                found[e.launch.name] = (kind, calls + 1, us, size + e.launch.bytes)
        return found

    def engine_us(self) -> float:
        """What the scheduler's own clock makes of all iterations."""
        hosts = self.world.played[1][0]
        size = -(-len(hosts) // self.world.pieces)
        begins = [self.windows[n][0] if n % size == 0 else hosts[n - 1].update
                  for n in range(len(hosts))]  # fmt: skip
        return self.us(sum(h.update - begin for h, begin in zip(hosts, begins, strict=True)))

    def wait_us(self) -> float:
        """How long this rank waits in collectives until the last rank is there."""
        every = [[e for e in self.world.played[0][rank] if e.launch.name == COLLECTIVE]
                 for rank in range(self.world.ranks)]  # fmt: skip
        waits = [
            max(e.start for e in one) - one[self.rank].start for one in zip(*every, strict=True)
        ]
        return self.us(sum(waits))

    def _of(self, phases: Sequence[str]) -> list[Ran]:
        chosen = set(self.steps(*phases))
        return [each for each in self.ran if each.step in chosen]

    def _summed(self, phases: Sequence[str], key: object) -> dict:  # type: ignore[type-arg]
        found: dict[object, float] = defaultdict(float)
        for each in self._of(phases):
            if each.launch.kind == "kernel":
                found[key(each)] += self.us(each.end - each.start)  # type: ignore[operator]
        return dict(found)


def owner_and_layer(each: Ran) -> tuple[str, int]:
    """The component and the layer of what ran."""
    return owner_of(each.launch)
