"""Draws the result of `spark-prof tune`, and the list of what it would try, in every format."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from spark_prof.ab.statistics import Interval
from spark_prof.dashboards import cells, section
from spark_prof.dashboards.ab_answer import agreement, interval, kept_busy, step_time
from spark_prof.dashboards.render import Layout, draw
from spark_prof.dashboards.section import Document, Section, commands, listed, pairs, table
from spark_prof.dashboards.units import counted, figure
from spark_prof.tune.tune_result import Tried, TuneResult, left_out
from spark_prof.tune.tune_trial import Answers, Candidate, CandidateTable, LeftOut, Timed, name_of

_LONGEST = 100_000  # characters of a command: all of it
_Factor = cells.Quantity("number", lambda gain: figure(gain, ".3f", " x"))
_StepTime = cells.Quantity("number", step_time)


def render_tune(result: TuneResult, layout: Layout) -> str:
    """Draws a result, of a tune that finished or did not, in a format."""

    def record() -> dict[str, Any]:
        return {**msgspec.to_builtins(result), "answer_line": answer_line(result)}

    return draw(partial(document, result), record, layout)


def render_candidates(table_: CandidateTable, layout: Layout) -> str:
    """Draws what a tune would try, and why not the rest."""
    title = f"{counted(len(table_.candidates), 'candidate')} to try"
    sections = [_candidates(table_.candidates), _left_out(left_out(table_))]
    drawn = section.document(title, (), sections)
    return draw(lambda: drawn, lambda: table_, layout)


def answer_line(result: TuneResult) -> str:
    """What helps, by how much, and whether the model says the same; or that nothing helps."""
    if result.answer:
        gains = ", ".join(_gain(timed) for timed in result.times)
        line = f"{' '.join(result.answer)}: {gains}; {_says(result.answers)}"
    elif fastest := next((e for e in result.tried if e.name == result.unconfirmed), None):
        gain = fastest.gain.value if fastest.gain else fastest.one_start
        seen = f", {gain:.2f} x per token in the search" if gain else ""
        line = f"not confirmed: {fastest.name}{seen}"
    elif not result.finished:
        line = "nothing is confirmed yet"
    else:
        candidates = [each for each in result.tried if each.source]
        tried = [each for each in candidates if each.verdict != "not tried"]
        line = "no candidate could be tried in this time"
        if tried or not result.tried:
            line = f"nothing helps, of {counted(len(tried), 'candidate')} tried"
        if tried and len(tried) < len(candidates):
            line += f"; {len(candidates) - len(tried)} were not tried in this time"
    if not result.answer and result.line:
        line += f"; {result.line}"
    if not result.answer and (busy := kept_busy(result.others)):
        line += f"; {busy}"
    if result.failure:
        return f"{line} (ended early: {result.failure})"
    return line if result.finished else f"{line} (not finished)"


def document(result: TuneResult) -> Document:
    """The document that text, Markdown and HTML draw; its title is the answer."""
    headline = [
        (f"per token at batch {timed.requests}", _proven(timed.gain))
        for timed in result.times
        if timed.gain
    ]
    return section.document(answer_line(result), headline, _sections(result))


def _gain(timed: Timed) -> str:
    factor = _proven(timed.gain) if timed.gain else "no gain told"
    return f"{factor} per token at batch {timed.requests}"


def _proven(gain: Interval) -> str:
    """With its interval where that holds 1, so that nothing is proven."""
    ends = f" (95 % {interval(gain)})" if gain.low <= 1 <= gain.high else ""
    return f"{gain.value:.2f} x{ends}"


def _says(answers: Answers | None) -> str:
    if answers is None:
        return "what it says was not compared"
    positions = counted(answers.positions, "position")
    if not answers.decided:
        return f"of its answers nothing is told by {positions}: random weights, or near ties"
    if answers.agreement == 1:
        return f"same answers on {positions}"
    kept = "" if answers.bits == "kept" else ", it may compute something else"
    return f"{agreement(answers.agreement)} of {positions} have the same answer{kept}"


def _sections(result: TuneResult) -> Iterator[Section]:
    yield _confirmed(result)
    yield from _serve(result)
    yield _tried(result.tried)
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
    )
    intro = (
        "Time of a step, which gives each request one token, in fresh engines, apart from the "
        "search: what a search finds best is in part luck.",
    )
    return table("tune_confirmed", "The answer, measured again", result.times, columns, intro)


def _serve(result: TuneResult) -> Iterator[Section]:
    if not result.answer:
        return
    lines = [f"export {name}={shlex.quote(value)}" for name, value in result.environment.items()]
    yield commands("tune_serve", "Serve it", (*lines, result.serve))


def _tried(tried: Sequence[Tried]) -> Section:
    columns = (
        cells.Prose("Tried", lambda each: _wrapped(each.name)),
        cells.Text("From", "source", optional=True),
        cells.Text("Over", "than", optional=True),
        cells.Text("Verdict", "verdict"),
        _Factor("Gain", lambda each: each.gain.value if each.gain else each.one_start),
        cells.Text("95 %", lambda each: interval(each.gain)),
        cells.Prose("Why", "why"),
    )
    intro = (
        "Gain per token over the engine as it is, or over what stands beside it: a geometric mean "
        "of the batch sizes, whose interval is that of their ends.",
    )
    return table("tune_tried", "What was tried", tried, columns, intro)


def _wrapped(words: str) -> str:
    """A side that may be wrapped between its words, and is the same side then."""
    return words if "[" in words else words.replace(",", ", ")


def _left_out(rows: Sequence[LeftOut]) -> Section:
    columns = (
        cells.Prose("Not tried", lambda each: _wrapped(each.words)),
        cells.Text("From", "source", optional=True),
        cells.Prose("Why not", "why"),
    )
    return table("tune_left_out", "Left out", rows, columns)


def _candidates(candidates: Sequence[Candidate]) -> Section:
    columns = (
        cells.Prose("Candidate", lambda each: _wrapped(name_of((each.words,)))),
        cells.Text("From", "source"),
        cells.Prose("Applies", "condition"),
        cells.Text("Finding", "finding", optional=True),
        cells.Written(
            "At most", lambda each: each.expected_ms and f"{each.expected_ms:.3f} ms", optional=True
        ),
        cells.Text("Model", lambda each: "changes" if each.changes_model else ""),
    )
    return table("tune_candidates", "Candidates", candidates, columns)
