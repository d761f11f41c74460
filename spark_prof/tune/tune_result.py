"""The result of `spark-prof tune`, and its file: what was tried, what helps, how to serve it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec

from spark_prof.ab.apply import exports_of
from spark_prof.ab.command import EngineCommand
from spark_prof.ab.engine_options import with_options
from spark_prof.ab.result import decoded, text_of
from spark_prof.ab.statistics import Effect, Interval, effect_of_gain
from spark_prof.redact import redacted, redacted_value
from spark_prof.tune.known_gains import Verdict, of_starts
from spark_prof.tune.search import SearchResult
from spark_prof.tune.tune_trial import (
    BASE,
    Answers,
    Candidate,
    CandidateTable,
    Combination,
    Timed,
    TuneTrial,
    UntriedCandidate,
    name_of,
    over_batches,
    side_of,
)


@dataclass(frozen=True)
class Tried:
    """A candidate, or a combination of several, and what came of it."""

    name: str  # values of secret variables are hidden
    source: str  # of the candidate; empty for a combination
    finding: str  # id of the finding that it answers; empty for none
    verdict: Verdict
    why: str = ""  # one line
    than: str = ""  # what it was compared with; empty for the engine as it is
    gain: Interval | None = None  # over all batch sizes
    one_start: float | None = None  # the gain of one engine start each, which has no interval
    times: tuple[Timed, ...] = ()  # one a batch size
    answers: Answers | None = None


@dataclass(frozen=True)
class EarlierGain:
    """What an earlier result measured on the same GPU and model; it is measured again."""

    words: str  # a side as `spark-prof ab --b` takes it, secrets hidden
    verdict: str  # of the earlier result
    gain: float | None  # over all its batch sizes; of an A/B at the one that answers for it
    where: str  # the result's folder or file, without its path
    taken: str  # when it began, ISO 8601 in UTC
    gpu: str  # its name
    vllm: str  # its version


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """Everything that a tune found until now."""

    # Others tell the file by its first bytes.
    kind: Literal["spark-prof tune"] = "spark-prof tune"
    schema: Literal[1] = 1  # of the file
    model: str  # name or folder
    engine: tuple[str, ...]  # the command that was given; secret values are hidden
    minutes: float  # that it may take
    batch_sizes: tuple[int, ...]
    context: int  # tokens of each prompt
    taken: str  # when it began, ISO 8601 in UTC
    gpu: str = ""  # name; of a CPU engine the processor's
    vllm: str = ""  # its version
    model_digest: str = ""  # of the model's configuration, whatever it is called
    answer: tuple[str, ...] = ()  # what helps, confirmed; none where nothing does
    times: tuple[Timed, ...] = ()  # of the answer, measured in fresh engines, apart from the search
    answers: Answers | None = None  # of the answer, at its worst batch size
    line: str = ""  # why nothing was confirmed though something was faster in the search
    unconfirmed: str = ""  # what that was, where the time was up; a name in `tried`
    needed_minutes: int | None = None
    """For all of it, by what the engine's starts took here; None where no time was lacking."""
    engine_s: float | None = None  # what an engine took here from its start to its end, with that
    environment: dict[str, str] = field(default_factory=dict)  # to serve the answer
    serve: str = ""  # the command line for that
    tried: tuple[Tried, ...] = ()  # candidates in the order of the table, then combinations
    others: float | None = None  # processors that other programs kept busy, at most
    left_out: tuple[UntriedCandidate, ...] = ()  # of the table, secrets hidden
    earlier: tuple[EarlierGain, ...] = ()  # what was known before, the largest gain first
    missing: tuple[str, ...] = ()  # what could not be measured, one line each
    failure: str = ""  # why it ended early, one line; empty if it did not
    finished: bool = False


def effect_at(timed: Timed) -> Effect:
    """What the answer's own interval tells at one batch size.

    What is told of all batch sizes together says nothing of one: there an interval that holds 1
    is no answer.
    """
    return effect_of_gain(timed.gain)


def with_search_result(
    result: TuneResult, search_result: SearchResult, table: CandidateTable, command: EngineCommand
) -> TuneResult:
    """The result with what a search came to."""
    side = side_of(search_result.answer)
    confirmed = [t for t in search_result.trials if _is_of(t, search_result.answer, "confirmation")]
    environment = redacted_value(exports_of(side)) if search_result.answer else {}
    text = ("vllm", "serve", *command.text) if command.form == "model" else command.text
    serve = with_options(text, side.options)
    return replace(
        result,
        answer=tuple(name_of((words,)) for words in search_result.answer),
        times=tuple(_finite(timed) for timed in search_result.times),
        answers=_worst(confirmed),
        line=search_result.line,
        unconfirmed=name_of(search_result.unconfirmed) if search_result.unconfirmed else "",
        needed_minutes=search_result.needed_minutes,
        engine_s=search_result.engine_s,
        environment=environment,
        serve=shlex.join(redacted(list(serve))) if search_result.answer else "",
        tried=tuple(_tried(search_result, table.candidates)),
    )


def left_out(table: CandidateTable) -> tuple[UntriedCandidate, ...]:
    """What a table leaves out, for a result."""
    return tuple(
        replace(row, words=" ".join(redacted(row.words.split()))) for row in table.left_out
    )


def _tried(search_result: SearchResult, candidates: Sequence[Candidate]) -> Iterator[Tried]:
    combinations: dict[tuple[Combination, Combination | None], None] = {}
    for trial in search_result.trials:
        if trial.stage == "search" and len(trial.combination) > 1:
            combinations.setdefault((trial.combination, trial.than))
    for candidate in candidates:
        verdict, why = search_result.verdicts[candidate.words]
        of = _figures(search_result.trials, (candidate.words,))
        name = name_of((candidate.words,))
        yield replace(
            of, name=name, source=candidate.source, finding=candidate.finding,
            verdict=verdict, why=why,
        )  # fmt: skip
    for combination, than in combinations:
        of = _figures(search_result.trials, combination, than)
        bad = next((t for t in search_result.trials if _is_of(t, combination) and t.why), None)
        verdict = effect_of_gain(of.gain)
        if bad and bad.outcome != "measured":
            verdict = bad.outcome
        elif combination == search_result.answer:
            verdict = "chosen"
        yield replace(of, name=name_of(combination), verdict=verdict, why=bad.why if bad else "")


def _figures(
    trials: Sequence[TuneTrial], combination: Combination, than: Combination | None = BASE
) -> Tried:
    """What the search has measured of a combination."""
    combination_trials = [t for t in trials if _is_of(t, combination)]
    paired = [t for t in combination_trials if t.than == than and t.than is not None and t.times]
    starts = [t for t in combination_trials if t.than is None and t.times]
    times = paired[-1].times if paired else ()
    if not paired and starts:
        base = [t for t in trials if not t.combination and t.than is None]
        times = of_starts(base, starts)
    gain = over_batches(times)
    has_interval = gain is not None and gain.high < math.inf
    return Tried(
        "", "", "", "not tried",
        than=name_of(than) if than else "",
        gain=gain if has_interval else None,
        one_start=gain.value if gain and not has_interval else None,
        times=tuple(map(_finite, times)),
        answers=_worst(combination_trials),
    )  # fmt: skip


def _is_of(trial: TuneTrial, combination: Combination, stage: str = "search") -> bool:
    return trial.combination == combination and trial.stage == stage


def _finite(timed: Timed) -> Timed:
    """Without the interval of anything, which is none and has no figures in JSON."""
    unknown = timed.gain is not None and timed.gain.high == math.inf
    return replace(timed, gain=None) if unknown else timed


def _worst(trials: Sequence[TuneTrial]) -> Answers | None:
    answers = [trial.answers for trial in trials if trial.answers]
    return min(answers, key=lambda answer: answer.agreement or 0.0, default=None)


def to_json(result: TuneResult) -> bytes:
    """Writes a result as JSON, the kind first."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"


def read_tune(path: Path) -> TuneResult:
    """Reads what `to_json` wrote."""
    return decoded(text_of(path), TuneResult, "tune", str(path))
