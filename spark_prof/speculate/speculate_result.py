"""The result of `spark-prof speculate`, and its file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import msgspec

from spark_prof.ab.result import Gate, decoded, text_of
from spark_prof.errors import CommandError
from spark_prof.speculate.acceptance import Acceptance
from spark_prof.speculate.best_k import Best
from spark_prof.speculate.step_cost import StepCost


@dataclass(frozen=True)
class Measured:
    """The rounds of one batch size and context."""

    requests: int  # that decode in each step
    context: int  # tokens of each prompt
    rounds: tuple[dict[int, float], ...]
    """The time of a step in us by its drafts, a round each; 0 is the engine without a drafter."""
    loaded_us: tuple[float, ...] = ()  # of a step without drafts in an engine that has a drafter


@dataclass(frozen=True)
class IfAccepted:
    """The best number of drafts where each is accepted with the same chance."""

    requests: int  # that decode in each step
    context: int  # tokens of each prompt
    rate: float  # the chance of each draft, if those before it are accepted
    drafts: int  # the best number of them


@dataclass(frozen=True)
class ContextConfig:
    """What is best at one context; vLLM has one table of drafts, for all of them."""

    context: int  # tokens of each prompt
    config: dict[str, Any] | None  # of a drafter with the best drafts; None for no drafter


@dataclass(frozen=True)
class Proof:
    """The chosen drafts as they would be served, against the engine without drafts."""

    requests: int  # that decode in each step
    drafts: int  # of each step
    plain_us: float  # a token of each request without drafts
    token_us: float  # with them
    speed: StepCost  # tokens a second over those without
    tokens: float  # that a step gave each request
    same_texts: int | None = None  # of requests; None where what is accepted was fixed
    texts: int = 0  # that were compared
    same_tokens: int = 0  # before the first difference, over all requests
    compared_tokens: int = 0  # of all requests


@dataclass(frozen=True, kw_only=True)
class SpeculateResult:
    """Everything that was found until now."""

    # Others tell the file by its first bytes.
    kind: Literal["spark-prof speculate"] = "spark-prof speculate"
    schema: Literal[1] = 1  # of the file
    model: str  # name or folder
    engine: tuple[str, ...]  # the command that was given; secret values are hidden
    drafter: dict[str, Any]  # its configuration, as it was given
    minutes: float  # that it may take
    taken: str  # when it began, ISO 8601 in UTC
    gpu: str = ""  # name; of a CPU engine the processor's
    vllm: str = ""  # its version
    execution: str = ""  # of the engine with drafts, such as ``torch.compile, CUDA graphs``
    dummy: bool = False  # the weights are no checkpoint's
    together: bool = False  # all engines were alive at once and measured in turns
    engines: int = 0  # that were started
    start_seconds: float = 0.0  # the longest start of an engine
    measured: tuple[Measured, ...] = ()
    acceptance: Acceptance | None = None
    bests: tuple[Best, ...] = ()  # one a batch size and context
    if_accepted: tuple[IfAccepted, ...] = ()  # where acceptance is not known
    config: dict[str, Any] | None = None  # of a drafter with the best drafts; None for no drafter
    serve: tuple[str, ...] = ()  # the command with it; none where nothing is best
    configs: tuple[ContextConfig, ...] = ()  # one a context; the first is `config`
    gates: tuple[Gate, ...] = ()  # whether the engine with drafts says the same, one a batch size
    proofs: tuple[Proof, ...] = ()
    missing: tuple[str, ...] = ()  # what could not be measured, one line each
    failure: str = ""  # why it ended early, one line; empty if it did not
    finished: bool = False


def served_drafts(
    bests: Sequence[Best], measured: Sequence[Measured], context: int
) -> dict[int, int]:
    """The drafts to serve by batch size: none where no drafts are certain to be faster than none.

    Where drafts are best at one batch size, all have the drafter: then none of them are best where
    they are with the drafter loaded, which takes time, too.
    """
    served = {
        shape.requests: 0 if 0 in shape.rivals else shape.drafts
        for shape in bests
        if shape.drafts is not None and shape.context == context
    }
    if not any(served.values()):
        return served
    loaded = {shape.requests: shape.loaded_us for shape in measured if shape.context == context}
    for best in bests:
        if best.context == context and served.get(best.requests) == 0 and loaded.get(best.requests):
            drafted = [row for row in best.rows if row.drafts and row.token_us is not None]
            least = min(drafted, key=lambda row: row.token_us or math.inf, default=None)
            if least and (least.token_us or math.inf) < fmean(loaded[best.requests]):
                served[best.requests] = least.drafts
    return served


def to_json(result: SpeculateResult) -> bytes:
    """Writes a result as JSON, the kind first."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"


def read_speculate(path: Path) -> SpeculateResult:
    """Reads what `to_json` wrote; CommandError where the file is no such result."""
    result = decoded(text_of(path), SpeculateResult, "speculate", str(path))
    for best in result.bests:
        if best.drafts is not None and not {0, best.drafts} <= {row.drafts for row in best.rows}:
            raise CommandError(
                f"{path} is damaged: it has no row for the drafts that it calls best"
            )
    if any(us <= 0 for shape in result.measured for times in shape.rounds for us in times.values()):
        raise CommandError(f"{path} is damaged: a step takes no time in it")
    if (acceptance := result.acceptance) and not acceptance.is_sound:
        raise CommandError(f"{path} is damaged: its acceptance is no share of each position")
    return result
