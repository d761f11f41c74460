"""Taps the logits of one vLLM worker: records one side's, or compares with the recorded ones.

While a tap is on, the next token of every tapped request is forced to side a's largest logit, or to
what comes next in a text. So both sides compute the same tokens, and each step is compared on its
own. vLLM calls the model's
`compute_logits` outside of its CUDA graphs, in both model runners. With tensor parallelism every
rank gets all logits and samples for itself: every rank forces the token, and the first compares.

The engine names requests anew in every run, so requests are matched by the order in which they
arrive, and by a checksum of their prompts. Where an engine drafts, a step has a row for the next
token of a request and one behind each draft, and forced tokens accept the drafts that they are: a
row counts where all drafts before it are the forced tokens, so that each token has one.

The file of recorded logits is torch's: of each sampled token the request in the order of arrival,
which token of its answer it is, the token itself and CRC-32 of the prompt's tokens; and the logits
of each step.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from spark_prof.errors import CommandError, one_line
from spark_prof.files import replacing
from spark_prof.profiler.fence import Fence
from spark_prof.profiler.ranges import wrap_method
from spark_prof.swaps.clock import refuse_stages

_FORCED = 1e4
"""The logit of a forced token, beside 0 for all others: any sampling takes it."""

_LARGEST_BYTES = 2 << 30
"""Logits of one file at most, which are in the host's memory until they are written."""


@dataclass(frozen=True)
class Difference:
    """One row of logits on both sides. A number that is not finite says that a side's are not."""

    token_a: int  # the largest logit's token on side a
    token_b: int
    margin_a: float  # how far side a's largest logit lies above its second
    kl_nats: float  # Kullback-Leibler divergence of b's distribution from a's, in nats
    worst: float
    scale: float  # the standard deviation of side a's logits, to see `worst` against
    loss_a: float  # what the token that comes next costs on side a, in nats
    loss_b: float


def compare_logits(
    a: torch.Tensor, b: torch.Tensor, tokens: Sequence[int] | None = None
) -> list[Difference]:
    """Compares the rows of two [R, V] on their device, in float64; waits for it.

    Tokens that both sides exclude with a logit of minus infinity count as equal. `tokens` are those
    that come next, one a row; by default side a's most likely ones.
    """
    a, b = a.double(), b.double()
    log_a, log_b = a.log_softmax(dim=1), b.log_softmax(dim=1)
    share = log_a.exp()
    # 0 * (-inf - -inf) is no number, but a token without a share contributes nothing.
    summands = torch.where(share == 0, 0.0, share * (log_a - log_b))
    difference = torch.where(a == b, 0.0, (a - b).abs())
    top = a.topk(2, dim=1).values
    included = ~a.isneginf()
    count = included.sum(dim=1, keepdim=True)
    mean = a.where(included, 0.0).sum(dim=1, keepdim=True) / count
    spread = ((a - mean).square().where(included, 0.0).sum(dim=1) / count[:, 0]).sqrt()
    next_ = a.argmax(dim=1) if tokens is None else torch.tensor(tokens, device=a.device)
    numbers = torch.stack(
        [
            top[:, 0] - top[:, 1],
            summands.sum(dim=1).clamp(min=0.0),
            difference.amax(dim=1),
            spread,
            *(-side.gather(1, next_[:, None])[:, 0] for side in (log_a, log_b)),
        ],
        dim=1,
    ).tolist()
    likely = zip(a.argmax(dim=1).tolist(), b.argmax(dim=1).tolist(), strict=True)
    return [
        Difference(token_a, token_b, *row)
        for (token_a, token_b), row in zip(likely, numbers, strict=True)
    ]


def force_tokens(logits: torch.Tensor, rows: list[int], tokens: torch.Tensor) -> torch.Tensor:
    """A copy of [R, V] in which each of the rows can only give its token, int64."""
    forced = logits.clone()
    only = torch.zeros(len(rows), logits.shape[1], dtype=logits.dtype, device=logits.device)
    only.scatter_(1, tokens.to(logits.device)[:, None], _FORCED)
    forced[rows] = only
    return forced


def checksum_of(prompt: Sequence[int]) -> int:
    """CRC-32 of a prompt's tokens."""
    return zlib.crc32(array("q", prompt).tobytes())


@dataclass(slots=True)
class TappedRequest:
    """A request that has come since the tap was turned on."""

    number: int  # in the order of arrival, from 0
    prompt_tokens: int
    prompt: int  # its checksum
    sampled: int = 0
    behind: int = 0  # drafts of the same step before the row that is taken


class LogitRecording:
    """Keeps logits in the host's memory until they are written, if this rank keeps any."""

    def __init__(
        self, path: Path, *, keeps: bool, text: Mapping[int, Sequence[int]] | None = None
    ) -> None:
        self.compared: list[dict[str, Any]] = []
        self._path = path
        self._text = text or {}
        self._keeps = keeps
        self._rows: list[tuple[int, int, int, int]] = []
        self._logits: list[torch.Tensor] = []
        self._bytes = 0

    def take(self, requests: list[TappedRequest], logits: torch.Tensor) -> torch.Tensor:
        """Keeps the rows; the tokens are the text's, or else those of the largest logits."""
        tokens = logits.argmax(dim=1)
        if self._text:
            tokens = torch.tensor([self._next(request) for request in requests])
        if self._keeps:
            self._bytes += logits.nbytes
            if self._bytes > _LARGEST_BYTES:
                raise CommandError(
                    f"more than {_LARGEST_BYTES >> 30} GiB of logits; tap fewer tokens"
                )
            self._logits.append(logits.cpu())
            self._rows += [
                (request.number, request.sampled, token, request.prompt)
                for request, token in zip(requests, tokens.tolist(), strict=True)
            ]
        return tokens

    def has_next(self, request: TappedRequest) -> bool:
        """Whether there is a next token to take for the request."""
        return not self._text or request.sampled < len(self._text.get(request.prompt, ()))

    def _next(self, request: TappedRequest) -> int:
        following = self._text.get(request.prompt, ())
        if request.sampled >= len(following):
            raise CommandError(f"the text has no token {request.sampled} of this prompt")
        return following[request.sampled]

    def finish(self) -> None:
        """Writes the file; it is whole or not there."""
        if not self._keeps:
            return
        if not self._rows:
            raise CommandError(
                f"{self._path}: no logits came while the tap was on; nothing is written"
            )
        try:
            with replacing(self._path) as temporary:
                torch.save((self._rows, self._logits), temporary)
        except (OSError, RuntimeError) as error:
            raise CommandError(one_line(f"{self._path} cannot be written: {error}")) from error


class LogitComparison:
    """Compares logits with those of a file, which stay on disk until they are needed.

    A rank that does not compare only forces tokens.
    """

    def __init__(self, path: Path, *, compares: bool) -> None:
        self.compared: list[dict[str, Any]] = []
        self._path = path
        self._compares = compares
        try:
            rows, steps = torch.load(path, mmap=True, weights_only=True)
        except Exception as error:
            raise CommandError(
                one_line(f"{path} cannot be read as recorded logits: {error}")
            ) from error
        logits = (row for step in steps for row in step)
        self._recorded = {
            (request, sampled): (token, prompt, row)
            for (request, sampled, token, prompt), row in zip(rows, logits, strict=True)
        }

    def take(self, requests: list[TappedRequest], logits: torch.Tensor) -> torch.Tensor:
        """Compares the rows; the tokens are the recorded ones."""
        tokens, of_a = zip(*map(self._find, requests), strict=True)
        if len(of_a[0]) != logits.shape[1]:
            raise CommandError(
                f"there are {logits.shape[1]} logits a token, recorded {len(of_a[0])}"
            )
        if self._compares:
            differences = compare_logits(torch.stack(of_a).to(logits.device), logits, tokens)
            self.compared += [
                {"step": request.sampled, "row": request.number, "behind": request.behind}
                | asdict(difference)
                for request, difference in zip(requests, differences, strict=True)
            ]
        return torch.tensor(tokens)

    def has_next(self, request: TappedRequest) -> bool:
        """Whether there is a next token to take for the request."""
        return (request.number, request.sampled) in self._recorded

    def _find(self, request: TappedRequest) -> tuple[int, torch.Tensor]:
        number, step = request.number, request.sampled
        if (number, step) not in self._recorded:
            raise CommandError(f"{self._path} has no token {step} of request {number}")
        token, prompt, row = self._recorded[number, step]
        if prompt != request.prompt:
            raise CommandError(f"{self._path}: request {number} had another prompt")
        return token, row

    def finish(self) -> None:
        """Does nothing: a comparison writes no file."""


Use = LogitRecording | LogitComparison
"""Takes the logits of sampled tokens and says which tokens they shall be."""


_OF_WORKER = "_spark_prof_tap"


class _Tapping:
    """A tap that is on: which requests it follows, what it does with their rows, what went wrong.

    It leaves alone those that come after the first so many.
    """

    def __init__(self, runner: Any, use: Use, limit: int) -> None:
        self.use = use
        self._runner = runner
        self._limit = limit
        self._requests: dict[str, TappedRequest] = {}
        self._positions: dict[str, int] = {}  # of a step that has begun and has no logits yet
        self._counts: dict[str, int] = {}  # tokens that it computes, by request
        self._widths: dict[str, int] = {}  # rows of logits by request, where it has more than one
        self._batch: Any = None
        config = getattr(runner, "vllm_config", None)
        self._drafts = getattr(config, "speculative_config", None) is not None
        self._faults: list[str] = []
        self._fence = Fence(self._faults.append)

    def check(self) -> None:
        """Raises CommandError with what went wrong."""
        if self._faults:
            raise CommandError(f"the tap of the logits is off: {self._faults[0]}")

    def begin_step(self, output: Any) -> None:
        """Notes which requests the step has."""
        self._batch = None
        self._fence.call("tap", self._begin_step, output)

    def begin_sample(self) -> None:
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
            if new.req_id not in self._requests:
                prompt = new.prompt_token_ids or []
                number, checksum = len(self._requests), checksum_of(prompt)
                self._requests[new.req_id] = TappedRequest(number, len(prompt), checksum)
        cached = output.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        computed |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        scheduled = self._counts = output.num_scheduled_tokens
        self._positions = {name: computed[name] + count for name, count in scheduled.items()}
        drafts = getattr(output, "scheduled_spec_decode_tokens", None) or {}
        self._widths = {name: 1 + len(tokens) for name, tokens in drafts.items()}

    def _note_order(self) -> None:
        state = self._runner.execute_model_state
        if hasattr(state, "input_batch"):
            self._batch = state.input_batch

    def _tap(self, logits: torch.Tensor) -> torch.Tensor | None:
        batch = self._runner.input_batch if self._batch is None else self._batch
        order = list(batch.req_ids)
        positions, self._positions = self._positions, {}
        ends = getattr(batch, "cu_num_logits", None)  # fewer than scheduled may be verified
        widths = [self._widths.get(name, 1) for name in order]
        if ends is not None:
            widths = ends.diff().tolist()[: len(order)]
        if sum(widths) != len(logits):
            raise CommandError(f"{len(logits)} rows of logits came for {len(order)} requests")
        waiting, row = [], 0
        for name, width in zip(order, widths, strict=True):
            request = self._requests.get(name)
            position = positions.get(name, 0)
            if request and request.number < self._limit and self._samples(request, position):
                waiting.append((row, width, request))
            row += width
        if not waiting:
            return None
        inputs = self._inputs(order, widths) if len(logits) > len(order) else []
        rows, tokens, behind = [], [], 0
        while waiting:
            requests = [request for _, _, request in waiting]
            for request in requests:
                request.behind = behind
            sampled = self.use.take(requests, logits[[row for row, _, _ in waiting]]).tolist()
            rows += [row for row, _, _ in waiting]
            tokens += sampled
            behind += 1
            for request in requests:
                request.sampled += 1
            waiting = [
                (row + 1, width - 1, request)
                for (row, width, request), token in zip(waiting, sampled, strict=True)
                if width > 1 and inputs[row + 1] == token and self.use.has_next(request)
            ]
        return force_tokens(logits, rows, torch.tensor(tokens))

    def _samples(self, request: TappedRequest, position: int) -> bool:
        """Whether a token is sampled: part of a prompt has a row too, and none is.

        An engine that drafts is ahead of what it knows to be accepted, and of a request's end.
        """
        end = request.prompt_tokens + request.sampled
        if not self._drafts:
            return position == end
        return position >= end and (not request.sampled or self.use.has_next(request))

    def _inputs(self, order: list[str], widths: list[int]) -> list[int]:
        """The token behind which each row is: of the later ones of a request its drafts."""
        ids, indices = getattr(self._batch, "input_ids", None), []
        if ids is not None:
            indices = self._batch.logits_indices
        else:
            ids, end = self._runner.input_ids.gpu, 0
            for name, width in zip(order, widths, strict=True):
                end += self._counts[name]
                indices += range(end - width, end)
        tokens: list[int] = ids[indices].tolist()
        return tokens


class Tap:
    """The tap of one worker: wraps the two methods that make up a step, and the model's logits.

    The wraps stay, and only look whether it is on. The first rank keeps and compares logits.
    """

    def __init__(self, worker: Any, *, first: bool = True) -> None:
        self._worker = worker
        self._first = first
        self._tapping: _Tapping | None = None
        model = worker.model_runner.get_model()
        if not hasattr(model, "compute_logits"):
            raise CommandError(f"{type(model).__name__} computes no logits that could be tapped")
        wrap_method(worker, "execute_model", self._around_execute)
        wrap_method(worker, "sample_tokens", self._around_sample)
        wrap_method(model, "compute_logits", self._around_logits)

    def switch(
        self, mode: str, path: str, requests: int, text: Sequence[tuple[int, Sequence[int]]] = ()
    ) -> None:
        """Records or compares the first so many requests to come, with that file; or turns it off.

        A recording is written when its tap is turned off. In it the tokens after a prompt are those
        that the text has for its checksum.
        """
        before, self._tapping = self._tapping, None
        if before is not None:
            before.check()
            before.use.finish()
        if mode != "off":
            use = self._use(mode, path, dict(text))
            self._tapping = _Tapping(self._worker.model_runner, use, requests)

    def compared(self) -> list[dict[str, Any]]:
        """What was compared since the last call: one item for each sampled token."""
        if self._tapping is None:
            return []
        self._tapping.check()
        use = self._tapping.use
        compared, use.compared = use.compared, []
        return compared

    def _use(self, mode: str, path: str, text: Mapping[int, Sequence[int]]) -> Use:
        _refuse_other_engines(self._worker)
        if mode == "record":
            return LogitRecording(Path(path), keeps=self._first, text=text)
        if mode == "compare":
            return LogitComparison(Path(path), compares=self._first)
        raise CommandError(f"there is no tap {mode}; give record, compare or off")

    def _around_execute(
        self, original: Any, scheduler_output: Any, *rest: Any, **named: Any
    ) -> Any:
        if self._tapping is not None:
            self._tapping.begin_step(scheduler_output)
        return original(scheduler_output, *rest, **named)

    def _around_sample(self, original: Any, *arguments: Any, **named: Any) -> Any:
        if self._tapping is not None:
            self._tapping.begin_sample()
        return original(*arguments, **named)

    def _around_logits(self, original: Any, *arguments: Any, **named: Any) -> Any:
        logits = original(*arguments, **named)
        tapping = self._tapping
        return logits if tapping is None or logits is None else tapping.tap(logits)


def _refuse_other_engines(worker: Any) -> None:
    refuse_stages(worker)
    parallel = getattr(getattr(worker, "vllm_config", None), "parallel_config", None)
    if getattr(parallel, "data_parallel_size", 1) > 1:
        raise CommandError("the ranks of data parallelism have other requests each; start without")
    if getattr(worker.model_runner, "batch_sharder", None) is not None:
        raise CommandError("start without --enable-batch-sharded-sampling: its logits are split")


def tap_of(worker: Any) -> Tap:
    """The tap of a worker, installed when it is first asked for."""
    if _OF_WORKER not in vars(worker):
        from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

        setattr(worker, _OF_WORKER, Tap(worker, first=get_tensor_model_parallel_rank() == 0))
    tap: Tap = getattr(worker, _OF_WORKER)
    return tap
