"""The range and the call that the Timeline page shows, as the address says them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_prof.analyzers.views.timeline_calls import find_kernel
from spark_prof.analyzers.views.timeline_moves import Range, recorded, step_range
from spark_prof.datasets.prepared import Prepared
from spark_prof.explorer import state

_FARTHEST_NS = 1 << 62
_LARGEST_STEP = 1 << 31
_CLOSER = 20
"""A click leads at most so many times closer: further in one step is hard to follow."""

_AROUND_A_CALL_NS = 200_000


@dataclass
class View:
    """What the page shows; changed by what a user does before it is drawn.

    Attributes:
        prepared: the shown rank.
        origin_ns: begin of its first kernel, from which the address counts.
        recording: from its first to its last instant.
        shown: the range.
        step: whose window the range is, None for a range of its own.
        call: the call that is pointed out, as a place in the kernels.
    """

    prepared: Prepared
    origin_ns: int
    recording: Range
    shown: Range
    step: int | None = None
    call: int | None = None

    @classmethod
    def of_address(cls, prepared: Prepared) -> View:
        """Reads the address; the whole recording where it says nothing that there is."""
        kernels, steps = prepared.kernels, prepared.steps
        all_of_it = recorded(kernels, steps)
        view = cls(prepared, int(kernels.start_ns[0]), all_of_it, all_of_it)
        call = state.chosen_number("call", -1, 0, len(kernels) - 1)
        view.call = call if call >= 0 else None
        step = state.chosen_number("step", -1, 0, _LARGEST_STEP)
        window = step_range(steps, step) if step >= 0 else None
        begin = state.chosen_number("from", _FARTHEST_NS, -_FARTHEST_NS, _FARTHEST_NS)
        end = state.chosen_number("to", _FARTHEST_NS, -_FARTHEST_NS, _FARTHEST_NS)
        if window is not None:
            # This page writes a step or a range, never both: the step was chosen after the range.
            view.step, view.shown = step, window
        elif begin < end < _FARTHEST_NS:
            view.shown = view._inside(Range(begin + view.origin_ns, end + view.origin_ns))
        elif view.call is not None:
            view.shown = view._around(view.call)
        elif (kernel := state.chosen_number("kernel", -1, 0, len(kernels.names) - 1)) >= 0:
            view.call = find_kernel(kernels, kernel)
            view.shown = view._around(view.call) if view.call is not None else view.shown
        return view

    def relative(self, shown: Range) -> tuple[int, int]:
        """A range as the address writes it."""
        return shown.from_ns - self.origin_ns, shown.to_ns - self.origin_ns

    def go(self, shown: Range) -> None:
        """Shows a range, as far as there is anything."""
        self.step, self.shown = None, self._inside(shown)
        self._keep()

    def go_to_step(self, number: int) -> None:
        """Shows the window of a step."""
        window = step_range(self.prepared.steps, number)
        if window is not None:
            self.step, self.shown = number, window
            self._keep()

    def open(self, mark: Range, *, exact: bool) -> None:
        """Goes to a mark that was clicked.

        Args:
            mark: its range.
            exact: whether to show just that, else never more than `_CLOSER` times closer.
        """
        steps = self.prepared.steps
        same = (steps["begin_ns"] == mark.from_ns) & (steps["finish_ns"] == mark.to_ns)
        if exact and same.any():
            self.go_to_step(int(steps["step"][same].iloc[0]))
            return
        least = 0 if exact else self.shown.length_ns // _CLOSER
        middle = mark.from_ns + mark.length_ns // 2
        self.go(mark.around(middle, max(mark.length_ns, least)))

    def choose(self, call: int) -> None:
        """Points a call of the range out."""
        self.call = call
        self._keep()

    def close(self) -> None:
        """Points no call out any more."""
        self.call = None
        self._keep()

    def jump(self, call: int) -> None:
        """Points a call out and shows what is around it."""
        self.call, self.step = call, None
        own = self._around(call)
        self.shown = own if own.length_ns < self.shown.length_ns else self._inside(
            own.around(own.from_ns + own.length_ns // 2, self.shown.length_ns)
        )  # fmt: skip
        self._keep()

    def _around(self, call: int) -> Range:
        kernels = self.prepared.kernels
        own = Range(int(kernels.start_ns[call]), int(kernels.end_ns[call]))
        middle = own.from_ns + own.length_ns // 2
        return self._inside(own.around(middle, max(4 * own.length_ns, _AROUND_A_CALL_NS)))

    def _shows(self, call: int) -> bool:
        kernels = self.prepared.kernels
        begins, ends = int(kernels.start_ns[call]), int(kernels.end_ns[call])
        return begins < self.shown.to_ns and ends >= self.shown.from_ns

    def _inside(self, shown: Range) -> Range:
        return shown.within(self.recording)

    def _keep(self) -> None:
        if self.call is not None and not self._shows(self.call):
            self.call = None
        begin, end = self.relative(self.shown)
        values: dict[str, Any] = {"step": self.step, "call": self.call}
        if self.step is None:
            values |= {"from": begin, "to": end}
        else:
            values |= {"from": None, "to": None}
        state.keep(**values)
