"""How many of something are enough to say anything of it: neither one fewer, nor one more."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analyzers.views.test_odd import NAMES, compared


@pytest.mark.parametrize("layers", [3, 4, 5])
@pytest.mark.parametrize("steps", [3, 4, 5])
def test_layers_are_compared_from_four_of_a_kind_in_four_steps_on(layers: int, steps: int) -> None:
    times = 1000.0 + np.arange(len(NAMES) * layers * steps).reshape(len(NAMES), layers, steps) % 7
    found = compared(times)
    enough = layers >= 4 and steps >= 4
    assert (found.tested, found.untested) == (
        (len(NAMES) * layers, 0) if enough else (0, len(NAMES) * layers)
    )
    assert (found.steps, found.enough_steps) == (steps, steps >= 4)
    assert np.isinf(found.threshold) != enough
    assert found.outliers == ()
    assert len(found.groups) == len(NAMES)
