"""What one scheduled batch holds, and what its launches were given."""

from __future__ import annotations

import zlib
from collections import Counter
from typing import Any, NamedTuple, Protocol

PREFILL, DECODE, MIXED = range(3)


class Batch(NamedTuple):
    """Token counts of one batch, and a fingerprint that the scheduler and each worker share."""

    key: int
    prefill_requests: int
    prefill_tokens: int
    decode_requests: int
    decode_tokens: int
    context_tokens: int
    recomputed_tokens: int = 0  # of prefill_tokens, those of requests that had generated before
    preempted: int = 0  # requests that lost their place in the KV cache to this batch

    @property
    def phase(self) -> int:
        """Index into vocabulary.PHASES."""
        if not self.decode_requests:
            return PREFILL
        return MIXED if self.prefill_requests else DECODE


_latest: tuple[object, Batch] = (None, Batch(0, 0, 0, 0, 0, 0))


def shared_batch(output: Any) -> Batch:
    """`read_batch`, once where a scheduler and its worker run in one thread and share the batch."""
    global _latest
    latest = _latest  # another thread may put its own there
    if latest[0] is not output:
        latest = _latest = (output, read_batch(output))
    return latest[1]


def read_batch(output: Any) -> Batch:
    """Reads a vllm.v1.core.sched.output.SchedulerOutput.

    A request is in prefill while it has produced no token, as in vLLM's own
    compute_iteration_details, and again while it computes more than its last token and its drafts:
    after a preemption, or after a failed load of its KV cache. The fingerprint covers every
    request's id, computed and scheduled tokens; a request never runs twice at the same position
    except after a preemption.
    """
    scheduled = output.num_scheduled_tokens
    cached = output.scheduled_cached_reqs
    drafts = getattr(output, "scheduled_spec_decode_tokens", None) or {}
    computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    new = {request.req_id: request for request in output.scheduled_new_reqs}
    computed.update((name, request.num_computed_tokens) for name, request in new.items())
    prefill_requests = prefill_tokens = decode_requests = decode_tokens = recomputed = 0
    for request, tokens in scheduled.items():
        fresh = not _resumed(new[request]) if request in new else cached.is_context_phase(request)
        if fresh or tokens > 1 + len(drafts.get(request, ())):
            prefill_requests += 1
            prefill_tokens += tokens
            recomputed += 0 if fresh else tokens
        else:
            decode_requests += 1
            decode_tokens += tokens
    text = ";".join(f"{name},{computed.get(name)},{count}" for name, count in scheduled.items())
    return Batch(
        key=zlib.crc32(text.encode()),
        prefill_requests=prefill_requests,
        prefill_tokens=prefill_tokens,
        decode_requests=decode_requests,
        decode_tokens=decode_tokens,
        context_tokens=sum(computed.get(name, 0) for name in scheduled),
        recomputed_tokens=recomputed,
        preempted=preempted_requests(output),
    )


def preempted_requests(output: Any) -> int:
    """How many requests were preempted since the batch before was chosen."""
    return len(getattr(output, "preempted_req_ids", None) or ())


def _resumed(request: Any) -> bool:
    """Whether a request that is handed out as new has generated before.

    For model runner V2 the scheduler does so with a preempted request, and adds all its tokens.
    """
    prefill, prompt = getattr(request, "prefill_token_ids", None), request.prompt_token_ids
    return prefill is not None and prompt is not None and len(prefill) > len(prompt)


_STEPS = 2
"""Of each kind of step so many have the arguments of their kernels read; the others are alike."""

_MOST_KINDS = 32


class ReadLaunches(Protocol):
    """Switches a backend's reading of arguments."""

    def __call__(self, *, on: bool) -> None:
        """Switches the reading on or off."""


class LaunchArguments:
    """Has a backend read arguments in the first steps of each kind."""

    def __init__(self) -> None:
        self._kinds: Counter[tuple[int, int]] = Counter()
        self._on = False  # what the backend was last told

    def begin_step(self, read: ReadLaunches, batch: Batch) -> None:
        """Switches the reading for a step that begins."""
        kind = (batch.phase, batch.decode_requests)
        reads = self._kinds[kind] < _STEPS and len(self._kinds) <= _MOST_KINDS
        self._kinds[kind] += 1
        if reads != self._on:
            read(on=reads)
            self._on = reads

    def stopped(self) -> None:
        """The backend has paused or stopped, and reads nothing when it goes on."""
        self._on = False
