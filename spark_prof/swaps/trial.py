"""Tries every replacement on made-up tokens before the engine takes requests.

A kernel that raises, returns something else than vLLM's, cannot be captured in a CUDA graph, or
takes seconds is found here, where vLLM's own kernel can still take its place. Both compute with the
live weights, and every row of every number of tokens is compared, layer by layer: vLLM's kernel
runs once, on all the tokens, of which each call of the replacement gets some.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from spark_prof.swaps.activation_rounding import rounded_by
from spark_prof.swaps.build import BuiltReplacement, SwapPoint
from spark_prof.swaps.decoder_layer import PARTS
from spark_prof.swaps.guard import NOT_TAKEN, TRIAL, GuardedReplacement, deadline, logger
from spark_prof.swaps.layer_trial import try_attention, works_of_part
from spark_prof.swaps.layers import Replacement
from spark_prof.swaps.progress import Progress
from spark_prof.swaps.swap_settings import SIDES, element_bound, layer_bound
from spark_prof.swaps.trial_work import (
    MIXED,
    PLAIN,
    ZEROS,
    Fenced,
    Rows,
    TrialWork,
    compare_rows,
    fingerprint,
    row_floors,
    works_of,
)

_SLOW_SECONDS = 2.0
"""What no call of a kernel that is compiled takes, for up to 16 tokens."""

_FEW = 16
_BEYOND = (17, 130)  # tokens that fill no tile of a matrix
_PREFILL = 2048  # of a prefill, at most
_LONGEST_PREFILL = 16384
"""As `_PREFILL`, in the first and the last layer of a shape."""
_LARGEST_GRAPH = 512
_RING = 320
"""Tokens of which calls get their next ones by turns, at least; a multiple of 8."""


@dataclass(frozen=True)
class _TrialEngine:
    """What all trials share: the engine's config, how long a call may take, what was reported."""

    config: Any
    seconds: float
    reported: set[tuple[str, str]]

    @property
    def most(self) -> int:
        """Tokens of a step, at most."""
        return max(_FEW, int(self.config.scheduler_config.max_num_batched_tokens))


def try_all(swapped: Iterable[BuiltReplacement], vllm_config: Any, seconds: float) -> None:
    """Tries the live replacements: turns off those that fail, keeps the error of the others.

    The first and the last of the same work are tried with more. The layers still have vLLM's own
    methods. A kernel that does not come back in so many seconds ends the process.
    """
    engine = _TrialEngine(vllm_config, seconds, set())
    trials: list[tuple[GuardedReplacement, SwapPoint, tuple[TrialWork, ...], tuple[Any, ...]]] = []
    for guarded, point in _live(swapped):
        with _blamed(guarded):
            guarded.rounded = rounded_by(point)
            works = works_of_part(point) if point.kind in PARTS else works_of(point)
            shapes = tuple(work.shape for work in works)
            trials.append((guarded, point, works, (point.slot, point.kind, guarded.kernel, shapes)))
    last = {key: at for at, (*_, key) in enumerate(trials)}
    earlier = set()
    for at, (guarded, point, works, key) in enumerate(trials):
        extended = key not in earlier or at == last[key]
        if key not in earlier:
            logger.info("%s", Progress("trying", guarded.kernel))
        earlier.add(key)
        with _blamed(guarded), torch.inference_mode():
            before = fingerprint(point.module)
            if point.kind == "attention":
                try_attention(guarded, point, seconds)
            for work in works:
                _ReplacementTrial(guarded, point, work, engine, extended=extended).run()
                if not guarded.live or (guarded.error is not None and guarded.error.beyond):
                    break
            if fingerprint(point.module) != before:
                guarded.fail("on trial: it writes to the layer's weights", quiet=True)


def _live(swapped: Iterable[BuiltReplacement]) -> Iterator[tuple[GuardedReplacement, SwapPoint]]:
    for place in swapped:
        for guarded in dict.fromkeys(place.choices.values()):
            if guarded.live:
                yield guarded, place.point


@contextmanager
def _blamed(guarded: GuardedReplacement) -> Iterator[None]:
    """Turns a replacement off for what the body raises."""
    try:
        yield
    except Exception as error:
        guarded.fail(f"on trial: {type(error).__name__}: {error}", quiet=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # what it had taken


class _Wrong(Exception):  # noqa: N818 - ends a trial, whose result is kept
    """A row is further off than its bound: no more calls are needed."""


@dataclass(frozen=True)
class _TrialTokens:
    """Tokens of a kind, and what is to become of each."""

    kind: str
    rows: Rows
    expected: list[torch.Tensor]
    floors: list[float]
    is_stock: bool  # whether vLLM's kernel computed them, and not the replacement


class _ReplacementTrial:
    """The trial of one replacement in one form.

    An extended one has more kinds of tokens, more sizes and each size's CUDA graph.
    """

    def __init__(
        self,
        guarded: GuardedReplacement,
        point: SwapPoint,
        work: TrialWork,
        engine: _TrialEngine,
        *,
        extended: bool,
    ) -> None:
        assert guarded.replacement is not None
        self._guarded, self._work, self._engine, self._extended = guarded, work, engine, extended
        self._layer_key = (guarded.replacement.bits, point.slot, point.name)
        self.counts = _counts(guarded.replacement, point, work, engine, extended=extended)
        self._error = guarded.error  # of another form of the same layer

    def run(self) -> None:
        """Turns the replacement off where it fails, and keeps its largest error."""
        if not self.counts:
            self._guarded.fail("it takes no number of tokens that runs", quiet=True)
            return
        is_stock = True
        with suppress(_Wrong):
            is_stock = self._try_all_numbers()
        if self._guarded.live and is_stock:
            self._guarded.error = self._error

    def _try_all_numbers(self) -> bool:
        """All numbers twice, up and down again, in the same memory with other values in it.

        Returns whether vLLM's own kernel is what the results were held to.
        """
        size = -(-max(_RING, *self.counts, self._work.needed) // 8) * 8
        rows = self._work.rows(size, PLAIN)
        fenced = {n: Fenced(rows, n, self._work.fixed) for n in self.counts}
        least = fenced[self.counts[0]]
        least.fill(_cut(rows, 0, self.counts[0]))
        first = [  # what takes seconds is off before anything else is computed
            [tensor.clone() for tensor in self._replaced(least.arguments, again)]
            for again in (False, True)
        ]
        plain = self._reference(PLAIN, rows)
        for result in first:
            self._judge(result, plain, torch.arange(self.counts[0]), least)
        mixed = self._reference(MIXED, self._work.rows(size, MIXED), plain.floors)
        at = 0
        for count in self.counts:
            self._call(fenced[count], plain, _next(at, count, size))
            at += count
        most = max(self.counts)
        while at < self._work.needed:
            self._call(fenced[most], plain, _next(at, most, size))
            at += most
        at = 0
        for count in reversed(self.counts):
            self._call(fenced[count], mixed, _next(at, count, size).flip(0), again=True)
            at = -(-(at + count) // 8) * 8
        few = max((count for count in self.counts if count <= _FEW), default=0)
        if few and ZEROS in self._work.kinds:
            rows = tuple(tensor[:few].clone() for tensor in plain.rows)
            rows[0][3:] = 0  # as in a CUDA graph that is replayed with fewer tokens than it is of
            padded = self._reference("tokens of zeros behind three others", rows, plain.floors)
            self._call(fenced[few], padded, torch.arange(few))
        for count in self.counts if self._extended else (few,):
            if 0 < count <= _LARGEST_GRAPH and plain.rows[0].is_cuda:
                self._capture(fenced[count], plain, mixed, count)
        counts = [n for n in self.counts if n <= _RING] if self._extended else []
        for kind in self._work.kinds if counts else ():
            reference = self._reference(kind, self._work.rows(max(counts), kind), plain.floors)
            for count in counts:
                self._call(fenced[count], reference, torch.arange(count))
        return plain.is_stock

    def _reference(self, kind: str, rows: Rows, floors: list[float] | None = None) -> _TrialTokens:
        """What vLLM's kernel makes of tokens.

        Where that cannot run alone it is what the replacement does, so that a number of tokens at
        which it computes something else is found still.
        """
        size, most = len(rows[0]), self._engine.most
        parts = [self.stock_results(_cut(rows, at, at + most)) for at in range(0, size, most)]
        whole = [part for part in parts if part is not None]
        is_stock = len(whole) == len(parts)
        if not is_stock:
            most = max(count for count in self.counts if count <= size)
            starts = [(at, min(at, size - most)) for at in range(0, size, most)]
            whole = []
            for at, start in starts:
                part = self._replaced((*_cut(rows, start, start + most), *self._work.fixed))
                whole.append([tensor[at - start :].clone() for tensor in part])
        expected = [torch.cat(tensors) for tensors in zip(*whole, strict=True)]
        return _TrialTokens(kind, rows, expected, floors or row_floors(expected), is_stock)

    def stock_results(self, rows: Rows) -> list[torch.Tensor] | None:
        """What vLLM's kernel returns, None where it wants more of an engine than there is yet."""
        from vllm.config import set_current_vllm_config
        from vllm.forward_context import set_forward_context

        try:
            with (
                set_current_vllm_config(self._engine.config),
                set_forward_context(None, self._engine.config, num_tokens=len(rows[0])),
            ):
                copies = tuple(tensor.clone() for tensor in rows)
                return self._work.results(self._work.stock(*copies, *self._work.fixed))
        except Exception as error:
            key = (self._guarded.kernel, f"{type(error).__name__}: {error}")
            if key not in self._engine.reported:
                self._engine.reported.add(key)
                logger.warning(
                    "%s: vLLM's own kernel cannot run alone, so the results for different numbers"
                    " of tokens are compared with each other only: %s",
                    self._guarded.label, key[1],
                )  # fmt: skip
            return None

    def _replaced(self, arguments: tuple[Any, ...], again: bool = False) -> list[torch.Tensor]:
        """What the replacement returns; raises _Wrong where it failed or is slow, and is off."""
        count = len(arguments[0])
        begin = time.perf_counter()
        with deadline(self._engine.seconds, f"{self._guarded.label} has not ended"):
            result = self._guarded.run(TRIAL, *arguments)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        took = time.perf_counter() - begin
        if result is NOT_TAKEN:
            raise _Wrong
        if again and count <= _FEW and took > _SLOW_SECONDS:
            self._off(f"a call took {took:.1f} s", count)
        tensors = self._work.results(result)
        if any(len(tensor) != count for tensor in tensors):
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
            raise ValueError(f"it returns {shapes} for {_rows(count)}")
        return tensors

    def _call(
        self, fenced: Fenced, reference: _TrialTokens, index: torch.Tensor, *, again: bool = False
    ) -> None:
        """One call with those tokens of a reference, and what it did."""
        index = index.to(reference.rows[0].device)
        fenced.fill(_pick(reference.rows, index))
        result = self._replaced(fenced.arguments, again)
        self._judge(result, reference, index, fenced)

    def _judge(
        self,
        result: list[torch.Tensor],
        reference: _TrialTokens,
        index: torch.Tensor,
        fenced: Fenced,
        how: str = "",
    ) -> None:
        """Keeps the error of a call's worst row; raises _Wrong if that, or the call, is wrong."""
        count, index = len(index), index.to(reference.rows[0].device)
        rows_text = f"{_rows(count)} ({reference.kind}{how})"
        expected = [tensor.index_select(0, index) for tensor in reference.expected]
        of = (*self._layer_key, self._guarded.rounded if reference.is_stock else "")
        bounds = layer_bound(*of), element_bound(*of)
        try:
            error = compare_rows(result, expected, reference.floors, bounds, rows_text)
            if error.beyond and reference.is_stock:
                # Of as many rows vLLM's may be another kernel, such as one that quantizes them.
                same = self.stock_results(_pick(reference.rows, index))
                if same is not None:
                    error = compare_rows(result, same, reference.floors, bounds, rows_text)
        except ValueError as wrong:
            raise ValueError(f"with {rows_text}: {wrong}") from wrong
        problem = fenced.problem(result)
        if problem:
            self._off(problem + how, count)
        if error.beyond and not reference.is_stock:
            self._off(
                f"row {error.row} is {error.relative_l2:.2%} from what it returns for another"
                " number of tokens",
                count,
            )
        if error.beyond or self._error is None or error.relative_l2 > self._error.relative_l2:
            self._error = error
        if error.beyond:
            raise _Wrong

    def _capture(
        self, fenced: Fenced, plain: _TrialTokens, mixed: _TrialTokens, count: int
    ) -> None:
        """Captures a call, and replays it with other tokens in the same memory."""
        size, device = len(plain.rows[0]), plain.rows[0].device
        graph = torch.cuda.CUDAGraph()
        begin = time.perf_counter()
        with (
            deadline(self._engine.seconds, f"{self._guarded.label} has not ended"),
            torch.cuda.graph(graph),
        ):
            result = self._guarded.run(TRIAL, *fenced.arguments)
        took = time.perf_counter() - begin
        if took > _SLOW_SECONDS:
            self._off(f"its capture in a CUDA graph took {took:.1f} s", count)
        if result is NOT_TAKEN:
            raise _Wrong
        for reference in (plain, mixed):
            index = _next(8, count, size).to(device)
            fenced.fill(_pick(reference.rows, index))
            graph.replay()
            torch.cuda.synchronize()
            results = self._work.results(result)
            self._judge(results, reference, index, fenced, ", replayed from a CUDA graph")

    def _off(self, why: str, count: int) -> None:
        self._guarded.fail(f"on trial with {_rows(count)}: {why}", quiet=True)
        raise _Wrong


def try_dispatch(swapped: Iterable[BuiltReplacement], vllm_config: Any, seconds: float) -> None:
    """Calls the layers as the engine will, whether replacements run where they say that they do.

    Those are turned off that run with other numbers of tokens, or do not with their own.
    """
    engine, active = _TrialEngine(vllm_config, seconds, set()), SIDES.active
    alone = {id(place.point.module) for place in swapped if place.point.kind == "experts"}
    for place in swapped:
        if place.point.kind == "choice" and id(place.point.module) in alone:
            continue  # experts that route by themselves leave it nothing to choose
        for side, guarded in place.choices.items():
            if guarded.live:
                calls = guarded.calls.copy()
                with _blamed(guarded), torch.inference_mode():
                    SIDES.switch(side)
                    _try_side(guarded, place.point, engine)
                SIDES.switch(active)
                guarded.calls, guarded.retired = calls, None  # no graph has been captured


def _try_side(guarded: GuardedReplacement, point: SwapPoint, engine: _TrialEngine) -> None:
    """Calls a layer on the active side, with numbers of tokens that are and are not taken."""
    for work in works_of_part(point) if point.kind in PARTS else works_of(point):
        trial = _ReplacementTrial(guarded, point, work, engine, extended=False)
        token_counts = [n for n in trial.counts if n <= _FEW][-1:]
        for count in (*token_counts, *_not_taken(guarded, engine.most)):
            before = guarded.calls[SIDES.active]
            if trial.stock_results(work.rows(count, PLAIN)) is None or not guarded.live:
                return
            calls = guarded.calls[SIDES.active] - before
            if calls != int(guarded.takes(count)):
                verb = "takes" if guarded.takes(count) else "does not take"
                guarded.fail(
                    f"on trial with {_rows(count)}: it ran {calls} times, and {verb} as many",
                    quiet=True,
                )
                return


def _not_taken(guarded: GuardedReplacement, most: int) -> list[int]:
    """The first numbers of tokens that a replacement leaves to vLLM: a hole, and beyond its end."""
    assert guarded.replacement is not None
    end = guarded.replacement.tokens
    numbers = [*range(1, _BEYOND[0] + 1), *([end + 1] if end else [])]
    left = [n for n in numbers if n <= most and not guarded.takes(n)]
    return sorted({*left[:1], *left[-1:]})


def _counts(
    replacement: Replacement,
    point: SwapPoint,
    work: TrialWork,
    engine: _TrialEngine,
    *,
    extended: bool,
) -> list[int]:
    """The numbers of tokens that the replacement takes, of those that run."""
    config, most = engine.config, engine.most
    if point.slot == "lm_head":  # one token of each request
        requests = int(config.scheduler_config.max_num_seqs)
        speculative = getattr(config, "speculative_config", None)
        tokens_of_request = 1 + int(getattr(speculative, "num_speculative_tokens", 0) or 0)
        most = max(_FEW, min(most, requests * tokens_of_request))
    numbers = {*range(1, _FEW + 1), *_BEYOND, min(most, _PREFILL), replacement.tokens}
    if point.kind == "norm":
        numbers |= {count * heads for heads in _heads(config, work) for count in (1, 2, 3, 8, 16)}
    if extended:
        graphs = getattr(config.compilation_config, "cudagraph_capture_sizes", None) or ()
        numbers |= {int(size) for size in graphs if int(size) <= _LARGEST_GRAPH}
        numbers.add(min(most, _LONGEST_PREFILL))
    return sorted(n for n in numbers if 0 < n <= most and replacement.takes(n))


def _heads(config: Any, work: TrialWork) -> set[int]:
    """Rows of a token in a norm of each attention head by itself."""
    try:
        model, parallel = config.model_config, config.parallel_config
        if work.shape[0] != model.get_head_size():
            return set()
        return {model.get_num_attention_heads(parallel), model.get_num_kv_heads(parallel)}
    except Exception:
        return set()


def _next(at: int, count: int, size: int) -> torch.Tensor:
    """The numbers of that many tokens of a ring, from one on."""
    return (torch.arange(count) + at) % size


def _cut(rows: Rows, first: int, end: int) -> Rows:
    return tuple(tensor[first:end] for tensor in rows)


def _pick(rows: Rows, index: torch.Tensor) -> Rows:
    return tuple(tensor.index_select(0, index) for tensor in rows)


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"
