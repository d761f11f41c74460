"""Draws the result of `spark-prof tune`, and the list of what it would try, in every format."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import Any, NamedTuple

import msgspec

from spark_prof.ab.apply import exports_of, harmless_side
from spark_prof.ab.engine_options import with_options
from spark_prof.ab.statistics import Interval
from spark_prof.analyzers.finding import (
    NONE,
    TypedCommand,
    command,
    exports,
    recorded,
    typed_by_user,
)
from spark_prof.analyzers.recorded_command import (
    in_container,
    split,
    starting_words,
    with_variables,
)
from spark_prof.dashboards import cells, section
from spark_prof.dashboards.ab_answer import agreement, interval, kept_busy, step_time
from spark_prof.dashboards.render import Layout, draw
from spark_prof.dashboards.render.terminal import first_rows, fitting
from spark_prof.dashboards.section import Document, Section, commands, listed, pairs, table
from spark_prof.dashboards.units import counted, figure
from spark_prof.swaps.swap_settings import SWAPS_ENVIRONMENT
from spark_prof.tune.tune_result import EarlierGain, Tried, TuneResult, effect_at, left_out
from spark_prof.tune.tune_trial import (
    Answers,
    Candidate,
    CandidateTable,
    Timed,
    UntriedCandidate,
    name_of,
)

_ROWS = (20, 14, 10, 7, 4)
"""Rows of each table on one screen; as many as fit."""
_MOST_ASKED = 5
_VERDICTS: Mapping[str, str] = {
    "faster": "the answer", "not told": "unclear", "no effect": "no faster", "slower": "slower",
}  # fmt: skip
_LONGEST = 100_000  # characters of a command: all of it
_Factor = cells.Quantity("number", lambda gain: figure(gain, ".3f", " x"))
_StepTime = cells.Quantity("number", step_time)


def render_tune(
    result: TuneResult, layout: Layout, *, typed: bool = False, whole: bool = True
) -> str:
    """Draws a result, of a tune that finished or did not, in a format.

    Args:
        typed: who reads it has typed the engine's command just now; else it is a file's.
        whole: every section; without it, and where none is asked for, text and Markdown have one
            screen.
    """

    def record() -> dict[str, Any]:
        fields = {**msgspec.to_builtins(result), "answer_line": answer_line(result)}
        fields["per_batch"] = [
            {"requests": timed.requests, "verdict": effect_at(timed)} for timed in result.times
        ]
        if result.answer and not typed:
            served = _served(result)
            fields |= {"environment": served.environment, "serve": served.serve}
            if served != _typed(result):
                fields["recorded_as"] = list(_recorded(result))
        return fields

    drawn = partial(document, result, typed=typed)
    if layout.kind != "html" and not (whole or layout.bounds.sections):
        drawn = partial(_short, result, layout.width, typed=typed)
    return draw(drawn, record, layout)


def render_candidates(table_: CandidateTable, layout: Layout, *, whole: bool = True) -> str:
    """Draws what a tune would try, and why not the rest."""
    title = f"{counted(len(table_.candidates), 'candidate')} to try"
    if not table_.recorded:
        title = (
            f"{counted(len(table_.candidates), 'candidate')} that may apply; which do, and what "
            "each can save, a recording tells: --from RECORDING"
        )
    rows = left_out(table_)

    def drawn() -> Document:
        if whole or layout.kind == "html" or layout.bounds.sections:
            sections = [_candidates(table_.candidates), _left_out(rows)]
            return section.document(title, (), sections)
        return fitting(
            (
                section.document(
                    title,
                    (),
                    [
                        first_rows(_candidates(table_.candidates), most),
                        _counted(rows),
                        listed("more", "More", ["Why each is left out: --all."]),
                    ],
                )
                for most in _ROWS
            ),
            layout.width,
        )

    return draw(drawn, lambda: table_, layout)


def answer_line(result: TuneResult) -> str:
    """What helps, by how much, and whether the model says the same; or that nothing helps."""
    if result.answer:
        gains = ", ".join(map(_gain, _proven_at(result)))
        rest = [_not_the_answer(t) for t in result.times if t not in _proven_at(result)]
        clause = "; ".join(filter(None, (gains, *rest, _same_answers(result.answers))))
        line = f"{' '.join(result.answer)}: {clause}"
    elif fastest := next((e for e in result.tried if e.name == result.unconfirmed), None):
        gain = fastest.gain.value if fastest.gain else fastest.one_start
        gain_text = f", {gain:.2f} x per token in the search" if gain else ""
        line = f"not confirmed: {fastest.name}{gain_text}"
    elif not result.finished:
        line = "nothing is confirmed yet"
    else:
        candidates = [trial for trial in result.tried if trial.source]
        tried = [trial for trial in candidates if trial.verdict != "not tried"]
        line = "no candidate could be tried in this time"
        if tried or not result.tried:
            line = f"nothing helps, of {counted(len(tried), 'candidate')} tried"
        if tried and len(tried) < len(candidates):
            line += f"; {len(candidates) - len(tried)} were not tried in this time"
    if not result.answer and result.line:
        line += f"; {result.line}"
    if not result.answer and result.needed_minutes:
        line += _lacking(result)
    if not result.answer and (busy := kept_busy(result.others)):
        line += f"; {busy}"
    if result.failure:
        return f"{line} (ended early: {result.failure})"
    return line if result.finished else f"{line} (not finished)"


def _lacking(result: TuneResult) -> str:
    """How long all of it would take."""
    took = f"an engine takes about {result.engine_s:.0f} s here, " if result.engine_s else ""
    return f"; {took}so all of it takes {result.needed_minutes} minutes: give --minutes " + str(
        result.needed_minutes
    )


def document(result: TuneResult, *, typed: bool = False) -> Document:
    """The document that text, Markdown and HTML draw; its title is the answer."""
    headline = [
        (f"per token at batch {timed.requests}", _proven(timed.gain))
        for timed in result.times
        if timed.gain
    ]
    return section.document(answer_line(result), headline, _sections(result, typed))


def _proven_at(result: TuneResult) -> list[Timed]:
    """The batch sizes at which the answer is one."""
    return [timed for timed in result.times if effect_at(timed) == "faster"]


def _not_the_answer(timed: Timed) -> str:
    """The effect where none is shown at a batch size: `at batch 1 it is undecided`."""
    ends = f" ({timed.gain.value:.2f} x, 95 % {interval(timed.gain)})" if timed.gain else ""
    return f"at batch {timed.requests} it is {_VERDICTS[effect_at(timed)]}{ends}"


def _gain(timed: Timed) -> str:
    factor = _proven(timed.gain) if timed.gain else "no gain told"
    return f"{factor} per token at batch {timed.requests}"


def _proven(gain: Interval) -> str:
    """With its interval where that holds 1, so that nothing is proven."""
    ends = f" (95 % {interval(gain)})" if gain.low <= 1 <= gain.high else ""
    return f"{gain.value:.2f} x{ends}"


def _same_answers(answers: Answers | None) -> str:
    if answers is None:
        return "what it says was not compared"
    positions = counted(answers.positions, "position")
    if not answers.decided:
        return f"of its answers nothing is told by {positions}: random weights, or near ties"
    if answers.agreement == 1:
        return f"same answers on {positions}"
    warning = "" if answers.bits == "kept" else ", it may compute something else"
    return f"{agreement(answers.agreement)} of {positions} have the same answer{warning}"


def _sections(result: TuneResult, typed: bool) -> Iterator[Section]:
    yield _confirmed(result)
    yield from _serve(result, typed)
    yield _tried(result.tried)
    yield _earlier(result)
    yield _left_out(result.left_out)
    yield listed("tune_missing", "Not measured", result.missing)
    rows = [
        ("model", result.model),
        ("command", shlex.join(result.engine)),
        ("vLLM", result.vllm),
        ("on", result.gpu),
        ("meanwhile", kept_busy(result.others)),
        ("time", f"{result.minutes:g} minutes from {result.taken}"),
        ("prompts", f"of {result.context} tokens"),
    ]
    yield pairs("tune_setup", "Setup", rows, _LONGEST)


def _confirmed(result: TuneResult) -> Section:
    columns = (
        cells.Text("Steps", lambda timed: f"batch {timed.requests}"),
        _StepTime("As it is", "than_us"),
        _StepTime("Tuned", "own_us"),
        _Factor("Gain", "gain.value"),
        cells.Text("95 %", lambda timed: interval(timed.gain)),
        cells.Text("There it is", lambda timed: _VERDICTS[effect_at(timed)]),
    )
    intro = (
        "Time of a step, which gives each request one token, in fresh engines, apart from the "
        "search: what a search finds best is in part luck.",
    )
    return table("tune_confirmed", "The answer, measured again", result.times, columns, intro)


def _serve(result: TuneResult, typed: bool) -> Iterator[Section]:
    if not result.answer:
        return
    served = _typed(result) if typed else _served(result)
    lines = [*exports(served.environment), served.serve]
    swaps = in_container(result.engine) and SWAPS_ENVIRONMENT in result.environment
    intro: tuple[str, ...] = ()
    if swaps and typed:
        intro = (
            "Swaps need spark-prof in the container: the command prints a line that mounts it.",
        )
        side = " ".join(result.answer)
        lines = [command("spark-prof", "ab", "--apply", "--b", side, "--", *result.engine)]
    elif swaps:
        intro = ("Swaps need spark-prof in the container: spark-prof ab --apply mounts it.",)
    proven = _proven_at(result)
    if proven and len(proven) < len(result.times):
        sizes = " and ".join(str(timed.requests) for timed in proven)
        rest = ",".join(str(t.requests) for t in result.times if t not in proven)
        intro = (
            f"For batch {sizes}. For batch {rest} serve the engine as it is, or look for an answer "
            f"there by itself: --batch-sizes {rest}.",
            *intro,
        )
    yield commands("tune_serve", "Serve it", lines, intro, () if any(lines) else _recorded(result))


class _ServingCommand(NamedTuple):
    """What serves an answer."""

    environment: dict[str, str]
    serve: TypedCommand


def _typed(result: TuneResult) -> _ServingCommand:
    """The serving command of a tune that the person at the command line ran just now."""
    if in_container(result.engine):
        words = with_variables(split(result.serve), result.environment)
        return _ServingCommand({}, typed_by_user(shlex.join(words)))
    return _ServingCommand(result.environment, typed_by_user(result.serve))


def _served(result: TuneResult) -> _ServingCommand:
    """The serving command of a stored result; empty where a word of it may be harmful."""
    side = harmless_side(" ".join(result.answer))
    engine = starting_words(result.engine, PurePath(result.model).name)
    if side is None or not (side.swaps or side.options or side.environment) or not engine:
        return _ServingCommand({}, NONE)
    variables, words = exports_of(side, {}), with_options(engine, side.options)
    if in_container(engine):
        return _ServingCommand({}, command(*with_variables(words, variables)))
    return _ServingCommand(variables, command(*words))


def _recorded(result: TuneResult) -> Iterator[str]:
    for name, value in result.environment.items():
        yield recorded(f"export {name}={shlex.quote(value)}")
    yield recorded(result.serve)


def _tried(tried: Sequence[Tried]) -> Section:
    columns = (
        cells.Prose("Tried", lambda trial: _wrapped(trial.name)),
        cells.Text("From", "source", optional=True),
        cells.Text("Over", "than", optional=True),
        cells.Text("Verdict", "verdict"),
        _Factor("Gain", lambda trial: trial.gain.value if trial.gain else trial.one_start),
        cells.Text("95 %", lambda trial: interval(trial.gain)),
        cells.Prose("Why", "why"),
    )
    intro = (
        "Gain per token over the engine as it is, or over what stands beside it: a geometric mean "
        "of the batch sizes, whose interval is that of their ends.",
    )
    return table("tune_tried", "What was tried", tried, columns, intro)


def _short(result: TuneResult, width: int, *, typed: bool) -> Document:
    """The fullest document that fits on one screen."""
    whole = document(result, typed=typed)
    return fitting(
        (replace(whole, sections=tuple(_sections_of(whole, result, most))) for most in _ROWS),
        width,
    )


def _sections_of(whole: Document, result: TuneResult, most: int) -> Iterator[Section]:
    """The first rows of the whole document's sections, and how many candidates were not tried."""
    for whole_section in whole.sections:
        if whole_section.id == "tune_confirmed":
            yield replace(whole_section, intro=())
        elif whole_section.id == "tune_tried":
            measured = [trial for trial in result.tried if trial.verdict != "not tried"]
            tried = replace(_tried(measured), intro=_untried(result.tried))
            if tried.rows:
                yield first_rows(section.without_empty_columns(tried), most)
            elif tried.intro:
                yield listed(tried.id, tried.title, tried.intro)
        elif whole_section.id == "tune_left_out":
            yield _counted(result.left_out)
        elif whole_section.id == "tune_setup":
            rows = tuple(row for row in whole_section.rows if row[0] != "command")
            yield replace(whole_section, rows=rows)
        else:
            yield first_rows(whole_section, most)
    yield _more_section()


def _untried(tried: Sequence[Tried]) -> tuple[str, ...]:
    """How many candidates were not tried, by the reason, a sentence each."""
    reasons = Counter(trial.why for trial in tried if trial.verdict == "not tried")
    return tuple(f"{count} more not tried: {why}." for why, count in reasons.items())


def _counted(rows: Sequence[UntriedCandidate]) -> Section:
    """How many things were left out, by where they are from; of what was asked for, each."""
    requested = [f"{row.words}: {row.why}." for row in rows if row.source in ("yours", "known")]
    sources = Counter(row.source for row in rows)
    parts = ", ".join(f"{source} {count}" for source, count in sources.most_common())
    lines = [f"{len(rows)}, each with its reason: {parts}."] if rows else []
    return listed("tune_left_out", "Left out", [*requested[:_MOST_ASKED], *lines])


def _more_section() -> Section:
    return listed("more", "More", ["Why each is left out, and all else: --all, and report.html."])


def _earlier(result: TuneResult) -> Section:
    """What was known before, beside what came of it now."""
    now = {trial.name: trial for trial in result.tried}

    def then(earlier: EarlierGain) -> str:
        return f"{earlier.gain:.2f} x" if earlier.gain else earlier.verdict

    columns = (
        cells.Prose("Known before", lambda earlier: _wrapped(earlier.words)),
        cells.Text("Then", then),
        cells.Text(
            "Now", lambda earlier: now[earlier.words].verdict if earlier.words in now else ""
        ),
        cells.Prose(
            "By",
            lambda earlier: f"{earlier.where}, {earlier.taken[:10]}, vLLM {earlier.vllm or '?'}",
        ),
    )
    intro = ("Earlier results of this GPU and model: they say what to try first, and no more.",)
    return table("tune_earlier", "Where it started", result.earlier, columns, intro)


def _wrapped(words: str) -> str:
    """A side that may be wrapped between its words, and is the same side then."""
    return words if "[" in words else words.replace(",", ", ")


def _left_out(rows: Sequence[UntriedCandidate]) -> Section:
    columns = (
        cells.Prose("Not tried", lambda row: _wrapped(row.words)),
        cells.Text("From", "source", optional=True),
        cells.Prose("Why not", "why"),
    )
    return table("tune_left_out", "Left out", rows, columns)


def _candidates(candidates: Sequence[Candidate]) -> Section:
    columns = (
        cells.Prose("Candidate", lambda candidate: _wrapped(name_of((candidate.words,)))),
        cells.Text("From", "source"),
        cells.Prose("Applies", "condition"),
        cells.Text("Finding", "finding", optional=True),
        cells.Formatted(
            "At most",
            lambda candidate: candidate.expected_ms and f"{candidate.expected_ms:.3f} ms",
            optional=True,
        ),
        cells.Text("Model", lambda candidate: "changes" if candidate.changes_model else ""),
    )
    return table("tune_candidates", "Candidates", candidates, columns)
