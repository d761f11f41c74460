"""The sides of the process, as each test finds them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_prof.swaps.sides import SIDES


@pytest.fixture
def sides() -> Iterator[None]:
    """Sides a, b and a's twin, a being active; taken back afterwards."""
    names, active = SIDES.names, SIDES.active
    SIDES.names, SIDES.active = ("a", "b", "a2"), "a"
    yield
    SIDES.names, SIDES.active = names, active
