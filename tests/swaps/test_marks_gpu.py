"""Marks on a GPU: events on the current stream."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from spark_prof.swaps.clock import EventMarks, marks_for

if not torch.cuda.is_available():
    pytest.skip("there is no NVIDIA GPU here", allow_module_level=True)


def test_times_between_marks_are_those_of_the_work_between() -> None:
    """The parts add up to the whole."""
    device = torch.device("cuda", torch.cuda.current_device())
    marks = marks_for(SimpleNamespace(device=device))
    assert isinstance(marks, EventMarks)
    matrix = torch.randn(2048, 2048, device=device)
    matrix @ matrix
    torch.cuda.synchronize()
    marks.reset(3)
    first = marks.mark()
    for _ in range(4):
        matrix @ matrix
    second = marks.mark()
    for _ in range(12):
        matrix @ matrix
    third = marks.mark()
    parts = [marks.between(first, second), marks.between(second, third)]
    assert min(parts) > 0
    assert abs(marks.between(first, third) - sum(parts)) < 4_000


def test_a_mark_too_many_is_an_error_and_events_are_used_again() -> None:
    marks = EventMarks(torch.device("cuda", torch.cuda.current_device()))
    for _ in range(2):
        marks.reset(2)
        assert [marks.mark(), marks.mark()] == [0, 1]
        with pytest.raises(IndexError):
            marks.mark()
        assert marks.between(0, 1) >= 0


def test_a_mark_is_reached_when_the_device_has_come_to_it() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    marks = EventMarks(device)
    matrix = torch.randn(8192, 8192, device=device)
    marks.reset(1)
    for _ in range(20):
        matrix @ matrix
    mark = marks.mark()
    assert not marks.reached(mark)
    torch.cuda.synchronize()
    assert marks.reached(mark)
