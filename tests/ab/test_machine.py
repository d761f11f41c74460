"""Quads and the state of the machine."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from spark_prof.ab.machine import Sample, Sampler, keep_steady
from spark_prof.ab.steps import Quad, block_order, make_quads
from spark_prof.traces.measured import DeviceState
from tests.ab.timed import STEP_US, timed
from tests.rows import each_row

CALM = DeviceState(sm_mhz=1980, memory_mhz=2619, temperature_c=50, power_w=300.0)
PERIOD_NS = 20_000_000


def quads() -> tuple[Quad, ...]:
    """Eight quads of 120 ms."""
    return make_quads(timed(block_order(8, 10), lambda side, place, index: STEP_US))[0]


def sampled(made: tuple[Quad, ...], period_ns: int = PERIOD_NS, gpu: int = 0) -> list[Sample]:
    begin, end = made[0].spans[0][1], made[-1].spans[-1][2]
    return [Sample(at, gpu, CALM) for at in range(begin, end, period_ns)]


def within(sample: Sample, quad: Quad, side: str = "ab") -> bool:
    return any(who in side and start <= sample.at_ns < end for who, start, end in quad.spans)


def test_a_steady_machine_drops_nothing() -> None:
    made = quads()
    steady = keep_steady(made, sampled(made))
    assert steady.quads == made
    assert not steady.dropped
    assert not steady.lines


def test_without_samples_nothing_is_dropped_and_it_says_so() -> None:
    steady = keep_steady(quads(), [])
    assert len(steady.quads) == 8
    assert steady.lines == ("clocks: not known; no quad was dropped for them",)


def test_a_driver_that_tells_nothing_is_no_sample() -> None:
    made = quads()
    steady = keep_steady(made, [replace(each, state=DeviceState()) for each in sampled(made)])
    assert steady.quads == made
    assert "not known" in steady.lines[0]


@pytest.mark.parametrize("gpu", [0, 3])
def test_unequal_clocks_drop_their_quad(gpu: int) -> None:
    made = quads()
    samples = sampled(made) + [
        replace(each, state=replace(CALM, sm_mhz=1900)) if within(each, made[2], "b") else each
        for each in sampled(made, gpu=gpu)
    ]
    steady = keep_steady(made, samples if gpu else samples[len(samples) // 2 :])
    assert [drop.quad for drop in steady.dropped] == [2]
    assert steady.dropped[0].why == "SM clocks of 1980 MHz on a and 1900 MHz on b"
    assert steady.lines == ("1 of 8 quads dropped: the machine was not steady",)


@each_row(("mhz", "kept"), [(1965, 8), (1961, 8), (1959, 7), (2005, 7)])
def test_one_percent_is_the_bound(mhz: int, kept: int) -> None:
    made = quads()
    samples = [
        replace(each, state=replace(CALM, sm_mhz=mhz)) if within(each, made[5], "a") else each
        for each in sampled(made)
    ]
    assert len(keep_steady(made, samples).quads) == kept


def test_clocks_that_change_for_both_sides_drop_nothing() -> None:
    made = quads()
    samples = [
        replace(each, state=replace(CALM, sm_mhz=1500)) if within(each, made[2]) else each
        for each in sampled(made)
    ]
    assert keep_steady(made, samples).quads == made


@pytest.mark.parametrize("reason", ["power cap", "hardware slowdown", "temperature (hardware)"])
def test_clocks_that_are_held_down_drop_their_quads(reason: str) -> None:
    made = quads()
    samples = [
        replace(each, state=replace(CALM, throttled=(reason,)))
        if within(each, made[1]) or within(each, made[6])
        else each
        for each in sampled(made)
    ]
    steady = keep_steady(made, samples)
    assert [drop.quad for drop in steady.dropped] == [1, 6]
    assert {drop.why for drop in steady.dropped} == {f"clocks were held down ({reason})"}


def test_clocks_that_somebody_set_drop_nothing() -> None:
    made = quads()
    held = replace(CALM, throttled=("application clocks",))
    samples = [
        replace(each, state=held) if within(each, made[1]) else each for each in sampled(made)
    ]
    assert keep_steady(made, samples).quads == made


def test_what_lasts_is_told_and_drops_nothing() -> None:
    made = quads()
    held = replace(CALM, throttled=("power cap",))
    steady = keep_steady(made, [replace(each, state=held) for each in sampled(made)])
    assert steady.quads == made
    assert steady.lines == ("clocks were held down during 8 of 8 quads (power cap)",)


def test_few_samples_speak_for_the_blocks_around_them() -> None:
    """One in 100 ms, while a block takes 30."""
    made = quads()
    slow = [
        replace(each, state=replace(CALM, sm_mhz=990)) if within(each, made[4]) else each
        for each in sampled(made, 100_000_000)
    ]
    steady = keep_steady(made, slow)
    assert not any("not known" in line for line in steady.lines)
    assert 4 in {drop.quad for drop in steady.dropped}


def test_samples_of_another_time_say_nothing() -> None:
    made = quads()
    late = [replace(each, at_ns=each.at_ns + 10**12) for each in sampled(made)]
    assert "not known" in keep_steady(made, late).lines[0]


def test_quads_without_samples_are_told() -> None:
    made = quads()
    later = [
        replace(quad, spans=tuple((side, a + 10**10, b + 10**10) for side, a, b in quad.spans))
        for quad in made[6:]
    ]
    steady = keep_steady((*made[:6], *later), sampled(made))
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
    assert len(asked) == len(sampler.samples())


def test_a_sampler_without_gpu_has_no_samples() -> None:
    with Sampler([]) as sampler:
        pass
    assert sampler.samples() == ()


def test_a_sampler_without_driver_knows_nothing() -> None:
    with Sampler(["GPU-none"], 0.001) as sampler:
        while not sampler.samples():
            time.sleep(0.001)
    assert sampler.samples()[0].state == DeviceState()
