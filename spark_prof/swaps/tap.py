"""Taps the logits of one vLLM worker: records one side's, or compares with the recorded ones.

While a tap is on, the next token of every tapped request is forced to side a's largest logit. So
both sides compute the same tokens, and each step is compared on its own. vLLM calls the model's
`compute_logits` outside of its CUDA graphs, in both model runners. With tensor parallelism every
rank gets all logits and samples for itself: every rank forces the token, and the first compares.

The engine names requests anew in every run, so requests are matched by the order in which they
arrive, and by a checksum of their prompts.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from spark_prof.errors import CommandError
from spark_prof.profiler.fence import Fence
from spark_prof.profiler.ranges import replace_attribute
from spark_prof.swaps.tap_file import Comparison, Recording, TappedRequest, Use, force_tokens

_OF_WORKER = "_spark_prof_tap"


class _Tapping:
    """A tap that is on: which requests it follows, what it does with their rows, what went wrong.

    Args:
        limit: so many requests are tapped; those that come later are left alone.
    """

    def __init__(self, runner: Any, use: Use, limit: int) -> None:
        self.use = use
        self._runner = runner
        self._limit = limit
        self._known: dict[str, TappedRequest] = {}
        self._positions: dict[str, int] = {}  # of a step that has begun and has no logits yet
        self._order: list[str] | None = None
        self._faults: list[str] = []
        self._fence = Fence(self._faults.append)

    def check(self) -> None:
        """Raises CommandError with what went wrong."""
        if self._faults:
            raise CommandError(f"the tap of the logits is off: {self._faults[0]}")

    def begin_step(self, output: Any) -> None:
        """Notes which requests the step has."""
        self._order = None
        self._fence.call("tap", self._begin_step, output)

    def begin_sample(self, _: Any) -> None:
        """Notes the order of the rows, which the second model runner keeps only until now."""
        self._fence.call("tap", self._note_order)

    def tap(self, logits: torch.Tensor) -> torch.Tensor:
        """Uses the logits of a step; what is to be sampled from in their place."""
        if not self._positions:
            return logits  # of a prompt, after those of the step
        forced = self._fence.call("tap", self._tap, logits)
        return logits if forced is None else forced

    def _begin_step(self, output: Any) -> None:
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

    def _note_order(self) -> None:
        state = self._runner.execute_model_state
        if hasattr(state, "input_batch"):
            self._order = list(state.input_batch.req_ids)

    def _tap(self, logits: torch.Tensor) -> torch.Tensor | None:
        order = self._runner.input_batch.req_ids if self._order is None else self._order
        positions, self._positions = self._positions, {}
        if len(order) != len(logits):
            raise CommandError(f"{len(logits)} rows of logits came for {len(order)} requests")
        rows, requests = [], []
        for row, name in enumerate(order):
            request = self._known.get(name)
            if request is None or request.number >= self._limit:
                continue
            # Part of a prompt has a row too, but no token is sampled from it.
            if positions.get(name) == request.prompt_tokens + request.sampled:
                rows.append(row)
                requests.append(request)
        if not rows:
            return None
        tokens = self.use.take(requests, logits[rows])
        for request in requests:
            request.sampled += 1
        return force_tokens(logits, rows, tokens)


class Tap:
    """The tap of one worker: wraps the two methods that make up a step, and the model's logits.

    The wraps stay, and only look whether it is on.

    Args:
        first: whether this is the rank that keeps and compares logits.

    Raises:
        CommandError: the model has no logits.
    """

    def __init__(self, worker: Any, *, first: bool = True) -> None:
        self._worker = worker
        self._first = first
        self._tapping: _Tapping | None = None
        model = worker.model_runner.get_model()
        if not hasattr(model, "compute_logits"):
            raise CommandError(f"{type(model).__name__} computes no logits that could be tapped")
        self._wrap("execute_model", _Tapping.begin_step)
        self._wrap("sample_tokens", _Tapping.begin_sample)
        compute = model.compute_logits

        def compute_logits(*arguments: Any, **named: Any) -> Any:
            logits = compute(*arguments, **named)
            tapping = self._tapping
            return logits if tapping is None or logits is None else tapping.tap(logits)

        replace_attribute(model, "compute_logits", compute_logits)

    def switch(self, mode: str, path: str, requests: int) -> None:
        """Turns the tap on or off; a recording is written when its tap is turned off.

        Args:
            path: the file to write or to read; nothing for "off".
            requests: so many of the requests to come are tapped, in the order of their arrival.

        Raises:
            CommandError: there is no such mode, the engine cannot be tapped, a file cannot be read
                or written, or something went wrong while the tap was on.
        """
        before, self._tapping = self._tapping, None
        if before is not None:
            before.check()
            before.use.finish()
        if mode != "off":
            self._tapping = _Tapping(self._worker.model_runner, self._use(mode, path), requests)

    def compared(self) -> list[dict[str, Any]]:
        """What was compared since the last call: one item for each sampled token.

        Raises:
            CommandError: something went wrong while the tap was on.
        """
        if self._tapping is None:
            return []
        self._tapping.check()
        use = self._tapping.use
        compared, use.compared = use.compared, []
        return compared

    def _use(self, mode: str, path: str) -> Use:
        _refuse_other_engines(self._worker)
        if mode == "record":
            return Recording(Path(path), keeps=self._first)
        if mode == "compare":
            return Comparison(Path(path), compares=self._first)
        raise CommandError(f"there is no tap {mode}; give record, compare or off")

    def _wrap(self, name: str, before: Callable[[_Tapping, Any], None]) -> None:
        original = getattr(self._worker, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            if self._tapping is not None:
                output = arguments[0] if arguments else named.get("scheduler_output")
                before(self._tapping, output)
            return original(*arguments, **named)

        replace_attribute(self._worker, name, wrapped)


def _refuse_other_engines(worker: Any) -> None:
    config = getattr(worker, "vllm_config", None)
    if getattr(config, "speculative_config", None) is not None:
        raise CommandError("logits of speculative decoding cannot be tapped; start without")
    parallel = getattr(config, "parallel_config", None)
    if getattr(parallel, "data_parallel_size", 1) > 1:
        raise CommandError("the ranks of data parallelism have other requests each; start without")
    if getattr(parallel, "pipeline_parallel_size", 1) > 1:
        raise CommandError("only the last pipeline stage has logits; start without stages")
    if getattr(worker.model_runner, "batch_sharder", None) is not None:
        raise CommandError("start without --enable-batch-sharded-sampling: its logits are split")


def tap_of(worker: Any) -> Tap:
    """The tap of a worker, installed when it is first asked for."""
    if _OF_WORKER not in vars(worker):
        from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

        setattr(worker, _OF_WORKER, Tap(worker, first=get_tensor_model_parallel_rank() == 0))
    tap: Tap = getattr(worker, _OF_WORKER)
    return tap
