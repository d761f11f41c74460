"""Which rows of a step's logits a token of which request is sampled from.

The engine names requests anew in every run, so requests are matched by the order in which they
arrive, and by a checksum of their prompts.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_prof.errors import CommandError


@dataclass(slots=True)
class TappedRequest:
    """A request that has come since the tap was turned on.

    Attributes:
        number: in the order of arrival, from 0.
        prompt: CRC-32 of the prompt's tokens.
    """

    number: int
    prompt_tokens: int
    prompt: int
    sampled: int = 0


class TappedRequests:
    """Follows the requests of one worker from step to step.

    Args:
        limit: so many requests are tapped; those that come later are left alone.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[str, TappedRequest] = {}
        self._positions: dict[str, int] = {}

    def begin_step(self, output: Any) -> None:
        """Reads a vllm.v1.core.sched.output.SchedulerOutput."""
        for new in output.scheduled_new_reqs:
            # The second model runner is given a preempted request as a new one.
            if new.req_id not in self._known:
                prompt = array("q", new.prompt_token_ids or [])
                number, checksum = len(self._known), zlib.crc32(prompt.tobytes())
                self._known[new.req_id] = TappedRequest(number, len(prompt), checksum)
        cached = output.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        computed |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        scheduled = output.num_scheduled_tokens
        self._positions = {name: computed[name] + count for name, count in scheduled.items()}

    @property
    def waiting(self) -> bool:
        """Whether a step has begun and its logits have not come."""
        return bool(self._positions)

    def take_rows(self, order: Sequence[str], count: int) -> list[tuple[int, TappedRequest]]:
        """The rows of the step from which a token of a tapped request is sampled; once a step.

        Args:
            order: the requests as the model runner has ordered them.

        Raises:
            CommandError: there is not one row for each request.
        """
        positions, self._positions = self._positions, {}
        if len(order) != count:
            raise CommandError(f"{count} rows of logits came for {len(order)} requests")
        rows = []
        for row, name in enumerate(order):
            request = self._known.get(name)
            if request is None or request.number >= self._limit:
                continue
            # Part of a prompt has a row too, but no token is sampled from it.
            if positions.get(name) == request.prompt_tokens + request.sampled:
                rows.append((row, request))
        return rows
