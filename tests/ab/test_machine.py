"""Quads and the state of the machine."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import psutil

from spark_prof.ab.machine import Sample, Sampler, Steady, keep_steady
from spark_prof.ab.timed_steps import Quad, block_order, make_quads
from spark_prof.traces.measured import DeviceState
from tests.ab.timed import STEP_US, timed
from tests.rows import each_row

CALM = DeviceState(sm_mhz=1980, memory_mhz=2619, temperature_c=50, power_w=300.0)
PERIOD_NS = 20_000_000
QUADS = make_quads(timed(block_order(8, 10), lambda side, place, index: STEP_US))[0]
"""Eight quads of 120 ms."""


def sampled(
    where: Callable[[Sample], bool] = lambda _: False,
    state: DeviceState = CALM,
    period_ns: int = PERIOD_NS,
    gpu: int = 0,
) -> list[Sample]:
    """Samples of a calm machine, and of another state where something is true."""
    begin, end = QUADS[0].spans[0][1], QUADS[-1].spans[-1][2]
    calm = [Sample(at, gpu, CALM) for at in range(begin, end, period_ns)]
    return [replace(each, state=state) if where(each) else each for each in calm]


def within(*quads: int, side: str = "ab") -> Callable[[Sample], bool]:
    spans = [(s, e) for quad in quads for who, s, e in QUADS[quad].spans if who in side]
    return lambda sample: any(start <= sample.at_ns < end for start, end in spans)


def kept(samples: list[Sample], quads: tuple[Quad, ...] = QUADS) -> Steady:
    return keep_steady(quads, samples)


@each_row(
    "samples",
    [
        [],
        sampled(lambda _: True, DeviceState()),
        [replace(each, at_ns=each.at_ns + 10**12) for each in sampled()],
    ],
)
def test_without_samples_nothing_is_dropped_and_it_says_so(samples: list[Sample]) -> None:
    steady = kept(samples)
    assert steady.quads == QUADS
    assert steady.lines == ("clocks: not known; no quad was dropped for them",)


@each_row("others", [[], sampled(gpu=1)])
def test_unequal_clocks_drop_their_quad(others: list[Sample]) -> None:
    steady = kept(others + sampled(within(2, side="b"), replace(CALM, sm_mhz=1900)))
    assert [drop.quad for drop in steady.dropped] == [2]
    assert steady.dropped[0].why == "SM clocks of 1980 MHz on a and 1900 MHz on b"
    assert steady.lines == ("1 of 8 quads dropped: the machine was not steady",)


@each_row(("mhz", "count"), [(1965, 8), (1961, 8), (1959, 7), (2005, 7)])
def test_one_percent_is_the_bound(mhz: int, count: int) -> None:
    samples = sampled(within(5, side="a"), replace(CALM, sm_mhz=mhz))
    assert len(kept(samples).quads) == count
    for alike in (replace(CALM, sm_mhz=mhz), replace(CALM, throttled=("application clocks",))):
        assert kept(sampled(within(5), alike)) == Steady(QUADS, (), ())


@each_row("reason", ["power cap", "hardware slowdown", "temperature (hardware)"])
@each_row("held", range(9))
def test_what_holds_the_clocks_in_more_than_half_of_the_quads_is_how_the_machine_is(
    reason: str, held: int
) -> None:
    """Less is an event, which drops the quads that it met."""
    quads = [0, 3, 1, 7, 5, 2, 6, 4][:held]
    steady = kept(sampled(within(*quads), replace(CALM, throttled=(reason,))))
    if 2 * held > len(QUADS):
        assert steady.quads == QUADS
        assert steady.lines == (f"clocks were held down during {held} of 8 quads ({reason})",)
    else:
        assert sorted(drop.quad for drop in steady.dropped) == sorted(quads)
        assert {drop.why for drop in steady.dropped} <= {f"clocks were held down ({reason})"}
        assert len(steady.quads) == 8 - held
        assert bool(steady.lines) == bool(held)


def test_few_samples_speak_for_the_blocks_around_them() -> None:
    """One in 100 ms, while a block takes 30."""
    steady = kept(sampled(within(4), replace(CALM, sm_mhz=990), 100_000_000))
    assert not any("not known" in line for line in steady.lines)
    assert 4 in {drop.quad for drop in steady.dropped}


def test_quads_without_samples_are_told() -> None:
    later = [
        replace(quad, spans=tuple((side, a + 10**10, b + 10**10) for side, a, b in quad.spans))
        for quad in QUADS[6:]
    ]
    steady = kept(sampled(), (*QUADS[:6], *later))
    assert steady.lines == ("clocks of 2 of 8 quads: not known",)
    assert len(steady.quads) == 8


def test_a_sampler_asks_every_gpu_until_it_is_closed() -> None:
    asked: list[str] = []
    enough = threading.Event()

    def read(uuid: str) -> DeviceState:
        asked.append(uuid)
        if len(asked) >= 6:
            enough.set()
        return CALM

    begin = time.time_ns()
    with Sampler(["GPU-x", "GPU-y"], 0.001, read) as sampler:
        assert enough.wait(60)
    samples = sampler.samples()
    assert asked[:4] == ["GPU-x", "GPU-y"] * 2
    assert [sample.gpu for sample in samples[:4]] == [0, 1, 0, 1]
    assert all(begin <= sample.at_ns <= time.time_ns() for sample in samples)
    assert len(asked) == len(samples)


def test_what_other_programs_compute_is_told_and_not_what_the_engine_does() -> None:
    with _child("while True: pass") as busy, _child("time.sleep(600)") as idle:
        of_busy = Sampler([], engine=psutil.Process(busy.pid))
        of_idle = Sampler([], engine=psutil.Process(idle.pid))
        with of_busy, of_idle:
            while psutil.Process(busy.pid).cpu_times().user < 1:
                time.sleep(0.05)
            least, most = of_busy.other_load(), of_idle.other_load()
    assert least is not None
    assert most is not None
    assert least < most


@contextmanager
def _child(code: str) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", f"import time\n{code}"]
    with subprocess.Popen(argv, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def test_a_sampler_without_gpu_or_driver_knows_nothing() -> None:
    with Sampler([]) as sampler:
        pass
    assert sampler.samples() == ()
    assert sampler.other_load() is None
    with Sampler(["GPU-none"], 0.001) as sampler:
        while not sampler.samples():
            time.sleep(0.001)
    assert sampler.samples()[0].state == DeviceState()
