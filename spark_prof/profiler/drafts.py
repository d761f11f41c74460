"""Records how many tokens were drafted for each request of a step, and how many were accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spark_prof.profiler.process import Process
from spark_prof.traces.chunks import DRAFT_DTYPE, array_name

_ROWS_PER_PIECE = 16384
_MOST_NAMES = 8192  # of requests; then those that have ended are forgotten
_UNKNOWN = -1

Row = tuple[int, int, int, int, int]
"""Key of the batch, number of the request, its computed tokens, proposed and accepted drafts."""


class DraftRecording:
    """The rows of one scheduler; where a step verifies no drafts nothing is done.

    Drafts are counted as vLLM's own metrics count them: as many as were scheduled, without those
    that a grammar ruled out. With asynchronous scheduling they are placeholders then, and only how
    many there are is known.
    """

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._numbers: dict[str, int] = {}
        self._counted = 0
        self._pieces = 0

    @property
    def full(self) -> bool:
        """Whether there are so many rows that they should be written."""
        return len(self._rows) >= _ROWS_PER_PIECE

    def add(
        self,
        key: int,
        scheduler: Any,
        output: Any,
        result: Any,
        number_of: Callable[[str], int] | None = None,
    ) -> None:
        """Adds the drafts of one batch.

        Args:
            key: its fingerprint, as `profiler.batch.read_batch` has it.
            scheduler: before it takes in the result, after which a finished request is gone.
            output: the SchedulerOutput that was executed.
            result: the ModelRunnerOutput that came of it.
            number_of: numbers the requests; without it they are counted here.
        """
        if not getattr(scheduler, "num_sampled_tokens_per_step", 1):
            return  # a diffusion model, whose drafts are its canvas
        if len(self._numbers) >= _MOST_NAMES:
            self._numbers = {
                name: n for name, n in self._numbers.items() if name in scheduler.requests
            }
        drafts = output.scheduled_spec_decode_tokens
        invalid = getattr(output, "num_invalid_spec_tokens", None) or {}
        cached = output.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        computed.update((new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs)
        requests, sampled, place = (
            scheduler.requests, result.sampled_token_ids, result.req_id_to_index
        )  # fmt: skip
        for name, tokens in drafts.items():
            if not tokens:
                continue
            number = self._count(name) if number_of is None else number_of(name)
            accepted = _UNKNOWN
            # What is sampled for a request that has ended meanwhile is thrown away.
            request, at = requests.get(name), place.get(name)
            if request is not None and at is not None and not _dropped(request):
                token_count = len(sampled[at]) if sampled else 0
                accepted = token_count - 1 if token_count else _UNKNOWN
            proposed = len(tokens) - invalid.get(name, 0)
            self._rows.append((key, number, computed.get(name, _UNKNOWN), proposed, accepted))

    def _count(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self._counted
            self._counted += 1
        return number

    def flush(self, process: Process) -> None:
        """Writes the rows as one piece."""
        rows, self._rows = self._rows, []
        if rows:
            name = array_name(process.name, "drafts", self._pieces)
            process.write(name, np.array(rows, dtype=DRAFT_DTYPE))
            self._pieces += 1

    def clear(self) -> None:
        """Forgets the rows that were not written."""
        self._rows.clear()


def _dropped(request: Any) -> bool:
    """Whether the scheduler will ignore what was sampled for a request."""
    if request.is_finished():
        return True
    stale = getattr(request, "num_stale_output_tokens", 0) > 0
    return stale and bool(getattr(request, "drop_stale_output", False))
