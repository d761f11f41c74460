"""What one scheduled batch holds, read from vLLM's SchedulerOutput."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

PREFILL, DECODE, MIXED = range(3)


@dataclass(frozen=True)
class Batch:
    """Token counts of one batch, and a fingerprint that the scheduler and each worker share."""

    key: int
    prefill_requests: int
    prefill_tokens: int
    decode_requests: int
    decode_tokens: int
    context_tokens: int

    @property
    def phase(self) -> int:
        """Index into vocabulary.PHASES."""
        if not self.decode_requests:
            return PREFILL
        return MIXED if self.prefill_requests else DECODE


def read_batch(output: Any) -> Batch:
    """Reads a vllm.v1.core.sched.output.SchedulerOutput.

    A request is in prefill while it has produced no token, as in vLLM's own
    compute_iteration_details. The fingerprint covers every request's id, computed and scheduled
    tokens; a request never runs twice at the same position except after a preemption.
    """
    scheduled = output.num_scheduled_tokens
    cached = output.scheduled_cached_reqs
    computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    new = {request.req_id: request.num_computed_tokens for request in output.scheduled_new_reqs}
    computed.update(new)
    prefill_requests = prefill_tokens = decode_requests = decode_tokens = 0
    for request, tokens in scheduled.items():
        if request in new or cached.is_context_phase(request):
            prefill_requests += 1
            prefill_tokens += tokens
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
    )
