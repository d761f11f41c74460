"""Nothing that fails inside a fence is seen outside of it."""

from __future__ import annotations

import logging

import pytest

from spark_prof.profiler.fence import Fence


def _fail(*_: object) -> None:
    raise KeyError("gone")


def test_a_hook_that_fails_is_off_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    said: list[str] = []
    fence = Fence(said.append)
    for _ in range(3):
        assert fence.call("hook", _fail) is None
    assert fence.call("hook", lambda: 1) is None
    assert fence.call("other", lambda: 1) == 1
    assert fence.failed == {"hook"}
    assert said == ["hook hook failed and is off: KeyError: 'gone'"]
    assert len(caplog.records) == 1
    assert "the engine goes on" in caplog.text


def test_a_report_that_fails_stays_inside(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "spark_prof")
    assert Fence(_fail).call("hook", _fail) is None


@pytest.mark.parametrize("ended", [KeyboardInterrupt, SystemExit])
def test_the_end_of_the_process_is_no_fault(ended: type[BaseException]) -> None:
    def hook() -> None:
        raise ended

    fence = Fence()
    with pytest.raises(ended):
        fence.call("hook", hook)
    assert fence.failed == frozenset()
