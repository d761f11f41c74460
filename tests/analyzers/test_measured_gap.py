"""A measured gap is split into parts that add up to it, whatever the sides are."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from spark_prof.analyzers.measured_gap import BEYOND, BYTES, KERNELS, OUTSIDE, WAITS, gap_of
from spark_prof.analyzers.why_sides import ComponentCost, Rate, WhySide


def side(name: str, bound: float, us: float | None, waits: float, measured_us: float) -> WhySide:
    weights = ComponentCost(
        "mlp", "bf16", bound * 1e3, bound, us - waits if us else None, "k", "bf16"
    )
    gap = ComponentCost("host", "", 0.0, 0.0, waits, "", "")
    parts = (weights, gap) if us else (weights,)
    rate = Rate(1e6 / measured_us, measured_us, "by hand")
    return WhySide(name, us is not None, parts, us, rate=rate)


def test_parts_of_recordings() -> None:
    slow = side("slow", 1000.0, 4000.0, 500.0, 5000.0)
    fast = side("fast", 1500.0, 3000.0, 100.0, 3200.0)
    for pair in ((slow, fast), (fast, slow)):
        gap = gap_of(*pair)
        assert gap is not None
        assert (gap.slow, gap.fast, gap.us) == ("slow", "fast", 1800.0)
        of_kind = {part.kind: part.us for part in gap.parts}
        assert of_kind == {BYTES: -500.0, KERNELS: 1100.0, WAITS: 400.0, OUTSIDE: 800.0}
        # The fast one loses 1,700 us beyond its bytes; those of the slow one take 1,000 us.
        assert gap.bytes_us == 2700.0


def test_parts_add_up_whatever_is_known() -> None:
    draw = random.Random(7)
    for _ in range(200):
        bounds = [draw.uniform(1, 1000) for _ in range(2)]
        recorded = draw.random() < 0.5
        known = draw.random() < 0.7
        steps = [bound * draw.uniform(1, 4) for bound in bounds]
        taken = [max(steps[n], bounds[n]) * draw.uniform(1, 2) for n in range(2)]
        sides = [
            side(str(n), bounds[n], steps[n] if recorded else None, 0.1 * steps[n], taken[n])
            for n in range(2)
        ]
        gap = gap_of(*sides, bytes_known=known)
        assert gap is not None
        kinds = {KERNELS, WAITS, OUTSIDE} if recorded else {BEYOND}
        assert {part.kind for part in gap.parts} == kinds | ({BYTES} if known else set())
        assert sum(part.slow_us for part in gap.parts) == pytest.approx(max(taken))
        assert sum(part.fast_us for part in gap.parts) == pytest.approx(min(taken))
        assert sum(part.us for part in gap.parts) == pytest.approx(gap.us)
        assert sum(part.share or 0.0 for part in gap.parts) == pytest.approx(1.0)


def test_nothing_is_split_of_a_rate_beyond_its_bound() -> None:
    slow, fast = side("slow", 1000.0, None, 0.0, 2000.0), side("fast", 900.0, None, 0.0, 899.0)
    gap = gap_of(slow, fast)
    assert gap is not None
    assert (gap.parts, gap.too_fast) == ((), ("fast",))
    assert gap_of(slow, replace(fast, rate=None)) is None
