"""What the device alone needs for a step, where the host makes the time of the steps.

A host that is behind hides what kernels save, and another one scatters the times of two engines.
The device is held back before each step until the host is ahead of it; then steps take what their
kernels take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_prof.ab.engine_process import Engine
from spark_prof.ab.measuring import MeasuredShape, device_us
from spark_prof.ab.messages import Facts
from spark_prof.ab.result import AHEAD
from spark_prof.ab.setting import AbRun
from spark_prof.ab.statistics import Interval, compare_starts
from spark_prof.errors import CommandError


@dataclass(frozen=True)
class DeviceAlone:
    """Both sides' times on the device alone.

    Attributes:
        a_us: of a step of side a; None where it is not known.
        b_us: the same of side b.
        gain: a over b with its interval; None where a side was measured once.
    """

    a_us: float | None
    b_us: float | None
    gain: Interval | None


def behind(shape: MeasuredShape, ahead: float | None) -> bool:
    """Whether the host makes the time of these steps: those that decode, and are told."""
    return shape.phase == "decode" and ahead is not None and ahead < AHEAD


def measure(
    setting: AbRun,
    engine: Engine,
    facts: Facts,
    shape: MeasuredShape,
    name: str,
    step_us: float | None,
) -> tuple[float, ...]:
    """The time of a step on the device alone in us, a figure a block; none where it is not known.

    Args:
        name: of the side in the engine.
        step_us: what a step takes with the host.
    """
    if not step_us:
        return ()
    setting.say(f"{shape.words}: what the device alone needs, as the host is behind it")
    why = "the host cannot be brought ahead of it"
    times: tuple[float, ...] = ()
    try:
        times = device_us(engine, shape, facts, name, step_us)
    except CommandError as error:
        engine.check_alive()
        why = str(error)
    if not times:
        setting.keeper.miss(f"what the device alone needs for {shape.words} is not known: {why}")
    return times


def compare_devices(a_us: Sequence[float], b_us: Sequence[float]) -> DeviceAlone:
    """Both sides of what was measured, a figure a block of an engine or a start.

    Example:
        >>> compare_devices([900.0, 902.0], [500.0, 501.0]).gain.value
        1.8
    """
    estimate = compare_starts(a_us, b_us, len(a_us) + len(b_us))
    return DeviceAlone(estimate.a_us, estimate.b_us, estimate.gain)
