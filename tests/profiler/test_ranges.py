"""Marks on the calls of objects: what they log, and that they leave no trace."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from spark_prof.profiler.fence import Fence
from spark_prof.profiler.ranges import CallMarker, Target


class Adder:
    """Something with a forward, and perhaps a part."""

    def __init__(self, part: Adder | None = None) -> None:
        self.part = part

    def forward(self, value: int, *, plus: int = 1) -> int:
        if value < 0:
            raise ValueError("negative")
        return (self.part.forward(value) if self.part else value) + plus


def marker(*owners: Any, fence: Fence | None = None, first: int = 0) -> CallMarker:
    found = CallMarker(fence or Fence())
    found.mark([Target(owner, "forward", f"path{i}") for i, owner in enumerate(owners)], first)
    return found


def codes(found: CallMarker) -> list[int]:
    return list(found.take_rows()["code"])


def test_calls_nest_and_targets_are_numbered_from_the_first() -> None:
    inner = Adder()
    outer = Adder(inner)
    found = marker(outer, inner, first=3)
    found.start()
    assert outer.forward(0) == 2
    assert codes(found) == [4, 5, -5, -4]


def test_other_threads_are_not_logged_and_get_their_answers() -> None:
    owner = Adder()
    found = marker(owner)
    found.start()
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(owner.forward(1)))
    thread.start()
    thread.join()
    assert answers == [2]
    assert codes(found) == []


def test_removal_restores_exactly() -> None:
    plain, own = Adder(), Adder()
    own.forward = lambda value: value * 10  # type: ignore[assignment,misc]
    before = own.forward
    found = marker(plain, own)
    assert vars(plain)["forward"] is not None
    found.remove()
    assert "forward" not in vars(plain)
    assert own.forward is before
    found.remove()


def test_removal_leaves_what_somebody_else_put_over_the_mark() -> None:
    owner = Adder()
    found = marker(owner)
    marked = owner.forward
    owner.forward = lambda value: marked(value) + 100  # type: ignore[assignment,misc]
    found.remove()
    assert owner.forward(1) == 102


def test_a_fault_ends_the_log_and_the_answer_stays() -> None:
    said: list[str] = []
    owner = Adder()
    fence = Fence(said.append, faults=("ranges",))
    found = marker(owner, fence=fence)
    found.start()
    assert [owner.forward(1) for _ in range(3)] == [2, 2, 2]
    assert codes(found) == []
    assert fence.failed == {"ranges"}
    assert len(said) == 1


def test_a_call_that_torch_traces_is_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = pytest.importorskip("torch.compiler")
    tracing = [False]
    monkeypatch.setattr(compiler, "is_compiling", lambda: tracing[0])
    owner = Adder()
    found = CallMarker(Fence())
    found.mark([Target(owner, "forward", "path", may_be_traced=True)])
    found.start()
    owner.forward(1)
    tracing[0] = True
    assert owner.forward(1) == 2
    assert codes(found) == [1, -1]
