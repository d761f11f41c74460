"""Proves a kernel right on this machine: `spark-prof kernels check`.

The package's kernels and somebody's own go through the same cases; for each a kernel is built anew.
Of somebody's own, which may abstain, it is tried whether it remembers its arguments, or keeps
memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any

import torch

from spark_prof.errors import one_line
from spark_prof.kernels.candidate import (
    Abstained,
    ExpertsLayer,
    Format,
    KernelCandidate,
    LinearLayer,
    Replacement,
    WrongResult,
    check_taken,
)
from spark_prof.kernels.check.attention_cases import AttentionCase, attention_cases
from spark_prof.kernels.check.cases import (
    SMALL,
    SMALL_EXPERTS,
    Case,
    DenseCase,
    Kind,
    MoeCase,
    NormCase,
    Posed,
    RoutingCase,
    cases_of,
    formats_of,
)
from spark_prof.kernels.check.inputs import GuardedResult, copies, memory_of
from spark_prof.kernels.check.late import LateRows, late_rows
from spark_prof.kernels.check.normed_cases import NormedCase, normed_cases
from spark_prof.kernels.check.normed_experts_cases import (
    NormedExpertsCase,
    normed_experts_cases,
)
from spark_prof.kernels.check.normed_mlp_cases import NormedMlpCase, normed_mlp_cases
from spark_prof.kernels.check.repeats import Results, difference_again, difference_when_late
from spark_prof.kernels.check.verdict import (
    CheckVerdict,
    Judgement,
    Status,
    judge,
    judge_changed,
    same_bits,
)
from spark_prof.kernels.check.w4a4_cases import W4a4Case, w4a4_cases
from spark_prof.kernels.kernel_error import KernelError, reason
from spark_prof.kernels.runtime.launch import dependent_launches

Attempts = Iterator[tuple[str, Callable[[], Judgement]]]


def check(
    candidate: KernelCandidate, device: str, selects: Callable[[str], bool] | None = None
) -> Iterator[CheckVerdict]:
    """Tries all that a candidate must pass, or the wanted labels, and yields what each showed."""
    for label, run in _attempts(candidate, device):
        if selects is None or selects(label):
            status, judgement = attempt(run, candidate.is_custom)
            used, detail = judgement.used, judgement.detail
            yield CheckVerdict(candidate.name, label, device, status, used, detail)


def _attempts(candidate: KernelCandidate, device: str) -> Attempts:
    cases = LAYER_CASES.get(candidate.name, cases_of)
    for case in cases(candidate, device):
        yield case.label, partial(run_case, case, candidate, device)
    if not candidate.is_custom:
        return
    for kind, (name, probe) in product(formats_of(candidate), PROBES.items()):
        yield f"{kind}, {name}", partial(_probe, kind, probe, 3, candidate, device)
    for kind, tokens in product(formats_of(candidate), (*range(1, 17), 17, 130)):
        label = f"{kind}, {tokens} tokens, other values in the same memory"
        yield label, partial(_probe, kind, reads_when_it_runs, tokens, candidate, device)


def attempt(run: Callable[[], Judgement], custom: bool) -> tuple[Status, Judgement]:
    """Runs one case; somebody's own kernel may abstain, and raise anything."""
    try:
        judgement = run()
    except Abstained as why:
        return "skipped", Judgement(None, str(why))
    except WrongResult as wrong:
        return "failed", Judgement(None, str(wrong))
    except (Exception, SystemExit) as error:  # else the check would end with the kernel's code
        if custom:
            return "failed", Judgement(None, reason(error))
        if isinstance(error, KernelError):
            return "failed", Judgement(None, f"does not run: {error}")
        if isinstance(error, torch.OutOfMemoryError):
            return "skipped", Judgement(None, "not enough memory on the GPU for this case")
        if isinstance(error, RuntimeError):
            return "failed", Judgement(None, f"PyTorch: {one_line(str(error))}")
        raise
    return "failed" if judgement.detail else "passed", judgement


AnyCase = Case | W4a4Case | NormedCase | NormedExpertsCase | NormedMlpCase | AttentionCase

LAYER_CASES: dict[str, Callable[[KernelCandidate, str], Iterator[AnyCase]]] = {
    "normed": normed_cases,
    "attention": lambda _, device: attention_cases(device),
    "normed-experts": normed_experts_cases,
    "normed-mlp": normed_mlp_cases,
    "w4a4": w4a4_cases,
}
"""Cases that are not of a slot, by what the registry's `check` says."""


def run_case(case: AnyCase, candidate: KernelCandidate, device: str) -> Judgement:
    """Runs a case: results within their bounds, nothing beside them written, again equal bits.

    A kernel that changes the weights' bits is held against its own error alone.
    """
    posed = case.pose(candidate, device)
    guarded = None
    if not candidate.is_custom and isinstance(posed.layer, LinearLayer | ExpertsLayer):
        guarded = GuardedResult(*posed.results[0], device)
    out = guarded.tensor if guarded else None
    try:
        replacement = _built(candidate, posed)
        results = run_replacement(replacement, posed.arguments, posed.results, out, posed.outputs)
    except KernelError as error:
        return Judgement(None, "" if case.may_refuse else f"refused: {error}")
    if guarded and (problem := guarded.problem()):
        return Judgement(None, problem)
    judged = posed.judge(results, judge if replacement.bits == "kept" else judge_changed)
    if judged.detail:
        return judged

    def again(arrive: Callable[[], None] | None = None) -> Results:
        fresh = None if out is None else torch.full_like(out, torch.nan)
        return run_replacement(
            replacement, posed.arguments, posed.results, fresh, posed.outputs, arrive
        )

    first = [tensor.clone() for tensor in results]
    difference = difference_again(again, first)
    if not difference and device == "cuda":
        difference = difference_when_late(again, first, _late_rows(candidate, posed))
    return Judgement(judged.used, difference)


def _late_rows(candidate: KernelCandidate, posed: Posed) -> list[LateRows]:
    """What is to be written late; nothing where somebody's own kernel runs without NVRTC."""
    try:
        return late_rows(posed.arguments, posed.outputs)
    except KernelError:
        if candidate.is_custom:
            return []
        raise


def _built(candidate: KernelCandidate, posed: Posed) -> Replacement:
    replacement = candidate.build(posed.layer)
    if replacement.bits == "changed" and not replacement.line:
        raise WrongResult("it changes the weights' bits; its line must state what is lost")
    return replacement


def run_replacement(
    replacement: Replacement,
    arguments: Sequence[torch.Tensor | None],
    kinds: Sequence[Kind],
    out: torch.Tensor | None = None,  # what a kernel of the package writes its one result to
    outputs: Sequence[int] = (),  # arguments that it writes to: it gets copies
    arrive: Callable[[], None] | None = None,
) -> Results:
    """Calls a replacement; its results are of these kinds, and it left its arguments alone.

    Behind the results come the copies of arguments that it may write to. Behind `arrive`, which
    writes arguments, it starts as early as it can.

    Raises:
        Abstained: it does not take as many tokens.
        WrongResult: a result is something else, or arguments were written to.
    """
    x = arguments[0]
    assert x is not None
    check_taken(replacement, len(x))
    originals = [argument for argument in (arguments[i] for i in outputs) if argument is not None]
    copied = dict(zip(outputs, copies(originals), strict=True))
    arguments = [copied.get(i, argument) for i, argument in enumerate(arguments)]
    if copied:
        x.neg()  # a kernel that starts early reads what the one before it has not written
    capturing = x.is_cuda and torch.cuda.is_current_stream_capturing()
    # Comparing waits for the device, which a capture does not allow.
    untouched = (
        []
        if capturing
        else [
            (a, a.clone(), memory_of(a).clone())
            for i, a in enumerate(arguments)
            if a is not None and i not in copied
        ]
    )
    if arrive is not None:
        arrive()
    with nullcontext() if arrive is None else dependent_launches():
        answer: Any = replacement.run(*arguments, *([] if out is None else [out]))
    results = answer if isinstance(answer, tuple) else (answer,)
    if len(results) != len(kinds):
        raise WrongResult(f"it returns {len(results)} results; it must return {len(kinds)}")
    for result, (shape, dtype) in zip(results, kinds, strict=True):
        if not isinstance(result, torch.Tensor):
            raise WrongResult(f"it returns a {type(result).__name__}, not a tensor")
        if result.dtype != dtype or tuple(result.shape) != shape or result.device != x.device:
            raise WrongResult(
                f"it returns {result.dtype} {tuple(result.shape)} on {result.device}; it must"
                f" return {dtype} {shape} on {x.device}"
            )
        if any(_share(result, argument) for argument in arguments if argument is not None):
            raise WrongResult("its result lies in the memory of an argument; return a new tensor")
    for argument, before, memory in untouched:
        if not same_bits(argument, before):
            raise WrongResult("it writes to its arguments")
        if not torch.equal(memory_of(argument), memory):
            raise WrongResult("it writes beside its arguments")
    return (*results, *copied.values())


def _share(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())


Run = Callable[[torch.Tensor], torch.Tensor]
"""From x to a result: what else a kernel takes stays the same."""

Probe = Callable[[Run, torch.Tensor], str]

_CALLS = 4


def _probe(
    kind: Format, probe: Probe, tokens: int, candidate: KernelCandidate, device: str
) -> Judgement:
    case: Case = DenseCase(kind, SMALL, tokens)
    if candidate.slot == "router":
        case = RoutingCase(32, 4, tokens)
    elif candidate.slot == "moe":
        case = MoeCase(kind, SMALL_EXPERTS, tokens)
    elif candidate.slot == "norm":
        case = NormCase(tokens, SMALL[1])
    posed = case.pose(candidate, device)
    replacement = _built(candidate, posed)

    def run(x: torch.Tensor) -> torch.Tensor:
        # Of flipped logits the weights are the same, the experts, which come last, others.
        return run_replacement(replacement, (x, *posed.arguments[1:]), posed.results)[-1]

    x = posed.arguments[0]
    assert x is not None
    run(x)
    return Judgement(None, probe(run, x))


def reads_when_it_runs(run: Run, x: torch.Tensor) -> str:
    """Whether the same tensor with other values in it gives another result, in a graph too."""
    first = run(x).clone()
    other = x.flip(-1).contiguous()
    expected = run(other.clone()).clone()
    if same_bits(first, expected):
        return "other activations give the same result"
    if x.is_cuda:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = run(x)
        x.copy_(other)
        graph.replay()
        torch.cuda.synchronize(x.device)
        if not same_bits(result, expected):
            return "a CUDA graph's replay does not compute with the activations of that moment"
        return ""
    x.copy_(other)
    same = same_bits(run(x), expected)
    return "" if same else "it does not compute with the activations of the moment"


def _keeps_no_memory(run: Run, x: torch.Tensor) -> str:
    before = _tensor_bytes(x.device)
    for _ in range(_CALLS):
        run(x)
    grown = _tensor_bytes(x.device) - before
    return f"{_CALLS} calls keep {grown} bytes" if grown > 0 else ""


PROBES: dict[str, Probe] = {
    "the same tensor with other values": reads_when_it_runs,
    "memory after a call": _keeps_no_memory,
}


def _tensor_bytes(device: torch.device) -> int:
    """Bytes of all tensors; on a GPU what its allocator has given away."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return int(torch.cuda.memory_allocated(device))
    # Others, such as those of a compiler, have no memory.
    real = (torch.Tensor, torch.nn.Parameter)
    tensors = [tensor for tensor in gc.get_objects() if type(tensor) in real]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())
