"""Readings stay; what was only there meanwhile does not."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from spark_prof.explorer.shelf import Shelf
from tests.browser.sources import OWN


class _Ring:
    """Garbage once nobody holds it, which counting references does not find."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_a_reading_is_not_looked_through_and_what_is_garbage_goes_with_the_next() -> None:
    ring = _Ring()
    seen = weakref.ref(ring)
    Shelf().ask(str(OWN["graphs"])).prepared.result(60)
    _wait_until(lambda: gc.get_freeze_count() > 0)
    del ring
    gc.collect()
    assert seen() is not None
    Shelf().ask(str(OWN["graphs"])).prepared.result(60)
    _wait_until(lambda: seen() is None)


def _wait_until(there: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end
        time.sleep(0.01)
