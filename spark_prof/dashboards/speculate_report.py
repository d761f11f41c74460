"""Draws the result of `spark-prof speculate` in every format."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

import msgspec

from spark_prof.analyzers.finding import recorded, typed_by_user
from spark_prof.dashboards import ab_sections, cells, section
from spark_prof.dashboards.chart_speculate import speculate_figures
from spark_prof.dashboards.render import Layout, draw
from spark_prof.dashboards.section import Document, Section, commands, listed, pairs, table
from spark_prof.dashboards.units import (
    MISSING,
    between,
    counted,
    figure,
    microseconds,
    share,
)
from spark_prof.speculate.best_k import Best, DraftCount
from spark_prof.speculate.plan import drafts_at
from spark_prof.speculate.speculate_result import IfAccepted, Proof, SpeculateResult
from spark_prof.speculate.step_cost import StepCost

_LONGEST = 100_000  # characters of a command: all of it
_OF_ONE_SCREEN = (
    "spec_best", "spec_why", "spec_costs", "spec_if", "spec_serve", "spec_contexts", "spec_gate",
    "spec_proof", "spec_missing",
)  # fmt: skip
_ROWS_OF_ONE_SCREEN = 24
_SOURCES: Mapping[str, str] = {
    "given": "given, so exact",
    "requests": "of your requests",
    "recording": "of the recording",
    "server": "of the running server",
}


def render_speculate(
    result: SpeculateResult, layout: Layout, *, typed: bool = False, whole: bool = True
) -> str:
    """Draws a result, of a run that finished or did not, in a format.

    Args:
        typed: who reads it has typed the engine's command just now; else it is a file's.
        whole: every section; without it, and where none is asked for, text and Markdown have one
            screen.
    """

    def drawn() -> Document:
        page = document(result, typed=typed)
        if whole or layout.kind == "html" or layout.bounds.sections:
            return page
        sections = [part for part in page.sections if part.id in _OF_ONE_SCREEN]
        return replace(page, sections=tuple(map(_short, sections)))

    def record() -> dict[str, Any]:
        page: dict[str, Any] = msgspec.to_builtins(result)
        return {**page, "answer_line": answer_line(result)}

    return draw(drawn, record, layout, partial(speculate_figures, result))


def answer_line(result: SpeculateResult, *, typed: bool = False) -> str:
    """How many drafts are best, what they bring, and the option for that.

    Args:
        typed: with the option itself, which a file may have made up.
    """
    judged = [best for best in result.bests if best.drafts is not None]
    if judged:
        line = _best_lines(judged, result)
        if failed := [gate for gate in result.gates if not gate.verdict.passed]:
            why = next(iter(failed[0].verdict.reasons), "no reason given")
            line += (
                "; nothing to set: with drafts the model says something else, at batch "
                f"{failed[0].requests} {why}"
            )
        elif result.config is not None:
            option = f"--speculative-config {shlex.quote(json.dumps(result.config))}"
            line += f"; set {option}" if typed else "; the option is below"
        elif all(best.drafts == 0 for best in judged):
            line += "; leave --speculative-config out"
        else:
            line += "; nothing to set: no drafts are certain to be faster than none"
    elif result.bests:
        line = _without_acceptance(result)
    else:
        line = "nothing is measured yet"
    if result.failure:
        return f"{line} (ended early: {result.failure})"
    return line if result.finished else f"{line} (not finished)"


def document(result: SpeculateResult, *, typed: bool = False) -> Document:
    """The document that text, Markdown and HTML draw; its title is the answer."""
    headline = [
        (
            f"{_drafts(proof.drafts)} at batch {proof.requests}, proven",
            _factor(proof.speed) or MISSING,
        )
        for proof in result.proofs
    ]
    return section.document(
        answer_line(result, typed=typed), headline, _sections(result, typed), _caveats(result)
    )


def _best_lines(judged: list[Best], result: SpeculateResult) -> str:
    several = len({best.context for best in result.bests}) > 1
    lines = []
    for best in judged:
        assert best.drafts is not None
        row, plain = best.row(best.drafts), best.row(0)
        where = f"at batch {best.requests}" + (f", context {best.context}" if several else "")
        rivals = " and ".join(map(str, best.rivals))
        unsure = f", not told apart from {rivals}" if best.rivals else ""
        if best.drafts == 0:
            lines.append(f"no drafts {where}{unsure}")
        elif len(judged) == 1:
            lines.append(
                f"k = {best.drafts} {where}: a token takes {microseconds(row.token_us)}, without "
                f"drafts {microseconds(plain.token_us)} ({_with_ends(row.speed)}){unsure}"
            )
        else:
            lines.append(f"k = {best.drafts} {where} ({_with_ends(row.speed)}{unsure})")
    return ", ".join(lines)


def _without_acceptance(result: SpeculateResult) -> str:
    """Says from which acceptance on drafts pay, where none was measured."""
    lines = []
    for best in result.bests:
        evens = [(row.break_even.value, row.drafts) for row in best.rows if row.break_even]
        if not evens:
            continue
        least, drafts = min(evens)
        if least > 1:
            lines.append(f"drafts cannot pay at batch {best.requests}")
        else:
            lines.append(
                f"{_drafts(drafts)} at batch {best.requests} pay from {share(max(least, 0.0))} "
                "accepted on"
            )
    line = "; ".join(dict.fromkeys(lines)) or "nothing is measured yet"
    return f"{line}; what is accepted is not known: give --requests FILE or --acceptance 0.8,0.6"


def _caveats(result: SpeculateResult) -> Iterator[str]:
    if result.dummy:
        yield (
            "The weights are random: times are those of a checkpoint, and what is accepted is not."
        )


@dataclass(frozen=True)
class _Row:
    """A number of drafts with where it was measured."""

    best: Best
    row: DraftCount


def _sections(result: SpeculateResult, typed: bool) -> Iterator[Section]:
    yield _bests(result)
    yield _why(result)
    yield _costs(result)
    yield _if_accepted(result)
    if result.serve and result.config is not None:
        text = shlex.join(result.serve)
        intro = (
            "Its drafts are set by batch size, num_speculative_tokens_per_batch_size: a row has "
            "the first batch size, the last one, and the drafts.",
        )
        by_batch = intro if "num_speculative_tokens_per_batch_size" in result.config else ()
        if typed:
            yield commands("spec_serve", "Serve it", [typed_by_user(text)], by_batch)
        else:
            yield commands("spec_serve", "Serve it", [], by_batch, (recorded(text),))
    yield _contexts(result)
    yield _gate(result)
    yield _proofs(result)
    yield _acceptance(result)
    yield _lines(result)
    yield listed("spec_missing", "Not measured", result.missing)
    together = "alive at once, measured in turns" if result.together else "one after the other"
    rows = [
        ("model", result.model),
        ("command", shlex.join(result.engine)),
        ("vLLM", result.vllm),
        ("on", result.gpu),
        ("runs as", result.execution),
        ("engines", f"{result.engines}, {together}; a start took {result.start_seconds:.0f} s"),
        ("time", f"{result.minutes:g} minutes from {result.taken}"),
    ]
    yield pairs("spec_setup", "Setup", rows, _LONGEST)


def _bests(result: SpeculateResult) -> Section:
    judged = [best for best in result.bests if best.drafts is not None]

    def row(best: Best) -> DraftCount:
        return best.row(best.drafts or 0)

    columns = (
        cells.Count("Batch", "requests"),
        cells.Count("Context", "context"),
        cells.Formatted("Best k", lambda best: str(best.drafts)),
        cells.Time("A token", lambda best: row(best).token_us),
        cells.Time("Without drafts", lambda best: best.row(0).token_us),
        cells.Formatted("Tokens/s", lambda best: _factor(row(best).speed)),
        cells.Text("95 %", lambda best: _ends(row(best).speed) if best.drafts else ""),
        cells.Text("Not told apart from", lambda best: ", ".join(map(str, best.rivals))),
    )
    intro = ("A token of one request; k is how many tokens are drafted for each step.",)
    return table("spec_best", "The best number of drafts", judged, columns, intro)


def _why(result: SpeculateResult) -> Section:
    """What the command's own drafts cost and bring at each batch size and context."""
    rows = [
        (best, row)
        for best in result.bests
        for row in best.rows
        if row.drafts and row.drafts == drafts_at(result.drafter, best.requests)
    ]
    columns = (
        cells.Count("Batch", lambda pair: pair[0].requests),
        cells.Count("Context", lambda pair: pair[0].context, optional=True),
        cells.Formatted("k", lambda pair: str(pair[1].drafts)),
        cells.Formatted("A step takes", lambda pair: _longer(*pair)),
        cells.Ratio("It gives", lambda pair: pair[1].tokens),
        cells.Formatted("Tokens/s", lambda pair: _factor(pair[1].speed)),
        cells.Share("Accepted", lambda pair: _accepted(pair[1])),
        cells.Formatted("Pays from", lambda pair: _even(pair[1])),
    )
    intro = (
        "A step with drafts takes so many times as long as one without, drafter and check of "
        "the drafts included, and gives so many tokens; where it takes more than it gives, drafts "
        "are slower than none, however many are accepted.",
    )
    return table("spec_why", "The drafts of the command, against none", rows, columns, intro)


def _longer(best: Best, row: DraftCount) -> str:
    plain = next((other.step_us.value for other in best.rows if not other.drafts), None)
    return figure(row.step_us.value / plain, ".2f", " x") if plain else MISSING


def _accepted(row: DraftCount) -> float | None:
    return None if row.tokens is None or not row.drafts else (row.tokens - 1) / row.drafts


def _costs(result: SpeculateResult) -> Section:
    rows = [_Row(best, row) for best in result.bests for row in best.rows]
    columns = (
        cells.Count("Batch", "best.requests"),
        cells.Count("Context", "best.context", optional=True),
        cells.Formatted("k", lambda entry: str(entry.row.drafts)),
        cells.Time("A step", "row.step_us.value"),
        cells.Text("95 %", lambda entry: _time_ends(entry.row.step_us)),
        cells.Ratio("Tokens", "row.tokens"),
        cells.Time("A token", "row.token_us"),
        cells.Formatted(
            "Tokens/s", lambda entry: _factor(entry.row.speed) if entry.row.drafts else None
        ),
        cells.Text("95 % ", lambda entry: _ends(entry.row.speed) if entry.row.drafts else ""),
        cells.Share("Accepted", lambda entry: _accepted(entry.row)),
        cells.Formatted("Pays from", lambda entry: _even(entry.row)),
    )
    intro = (
        "Tokens are those that a step gives each request. Of the drafts so many are accepted; they "
        "pay from that share on, and never, where even all of them would not.",
    )
    return table("spec_costs", "Cost of a step by its drafts", rows, columns, intro)


def _even(row: DraftCount) -> str | None:
    if row.break_even is None:
        return None
    if row.break_even.value > 1:
        return "never"
    return share(max(row.break_even.value, 0.0))


def _if_accepted(result: SpeculateResult) -> Section:
    columns = (
        cells.Count("Batch", "requests"),
        cells.Count("Context", "context"),
        cells.Share("Each is accepted", "rate"),
        cells.Formatted("Best k", lambda entry: str(entry.drafts)),
    )
    rows: tuple[IfAccepted, ...] = result.if_accepted
    intro = ("Where a draft is accepted with this chance if all before it are.",)
    return table("spec_if", "If this much were accepted", rows, columns, intro)


def _contexts(result: SpeculateResult) -> Section:
    """What to set at each of several contexts."""
    configs = result.configs if len(result.configs) > 1 else ()
    columns = (
        cells.Count("Context", "context"),
        cells.Text("--speculative-config", lambda row: _option(row.config)),
    )
    intro = (
        "vLLM has one table, by batch size, for all contexts: take the one of the context that "
        "most of your requests have. The command above is of the first.",
    )
    return table("spec_contexts", "The option by context", configs, columns, intro)


def _option(config: Mapping[str, Any] | None) -> str:
    return "leave it out" if config is None else json.dumps(config)


def _gate(result: SpeculateResult) -> Section:
    """The gate of an A/B: a is the engine without drafts, b the one with them."""
    whole = ab_sections.gate(result.gates)
    behind = sum(gate.behind for gate in result.gates)
    intro = (
        "Both engines compute the same tokens: what the one without drafts (a) says is forced on "
        "the one with drafts (b), whose drafts are accepted where they are that.",
        f"{counted(behind, 'position')} behind accepted drafts.",
        *whole.intro,
    )
    return replace(whole, id="spec_gate", intro=intro if whole.rows else ())


def _proofs(result: SpeculateResult) -> Section:
    columns = (
        cells.Count("Batch", "requests"),
        cells.Formatted("k", lambda proof: str(proof.drafts)),
        cells.Time("Without drafts", "plain_us"),
        cells.Time("With them", "token_us"),
        cells.Formatted("Tokens/s", lambda proof: _factor(proof.speed)),
        cells.Text("95 %", lambda proof: _ends(proof.speed)),
        cells.Ratio("Tokens a step", "tokens"),
        cells.Text("Same text", _same),
    )
    intro = (
        "A fresh engine with these drafts, and one without, generate the same requests in turns; "
        "a token of one request. Where texts differ, a near tie may have been rounded otherwise: "
        "drafts are checked in other shapes than single tokens.",
    )
    return table("spec_proof", "Proof: served as above", result.proofs, columns, intro)


def _same(proof: Proof) -> str:
    if proof.same_texts is None:
        return "acceptance was fixed"
    if proof.same_texts == proof.texts:
        return f"all {proof.texts}"
    part = proof.same_tokens / max(proof.compared_tokens, 1)
    return f"{proof.same_texts} of {proof.texts}, {share(part)} of tokens before that"


def _acceptance(result: SpeculateResult) -> Section:
    acceptance = result.acceptance
    rows = (
        [(at + 1, acceptance.drafted[at], acceptance.accepted[at]) for at in range(acceptance.most)]
        if acceptance
        else []
    )
    columns = (
        cells.Formatted("Position", lambda row: str(row[0])),
        cells.Share("Steps that draft it", lambda row: row[1]),
        cells.Share("Accept it", lambda row: row[2]),
        cells.Ratio("Tokens a step to here", lambda row: acceptance and acceptance.tokens(row[0])),
    )
    intro = []
    if acceptance:
        steps = f", {counted(acceptance.steps, 'step')}" if acceptance.steps else ""
        intro = [f"A position counts with all before it; {_SOURCES[acceptance.source]}{steps}."]
    return table("spec_acceptance", "Acceptance by position", rows, columns, intro)


def _lines(result: SpeculateResult) -> Section:
    fitted = [best for best in result.bests if best.fit]
    loaded = {(shape.requests, shape.context): shape.loaded_us for shape in result.measured}

    def idle(best: Best) -> float | None:
        times = loaded.get((best.requests, best.context))
        return fmean(times) if times else None

    columns = (
        cells.Count("Batch", "requests"),
        cells.Count("Context", "context"),
        cells.Time("Fixed", "fit.fixed_us.value"),
        cells.Text("95 %", lambda best: _time_ends(best.fit.fixed_us)),
        cells.Time("A draft more", "fit.each_us.value"),
        cells.Text("95 % ", lambda best: _time_ends(best.fit.each_us)),
        cells.Share("Off at most", "fit.worst"),
        cells.Time("No drafts, drafter loaded", idle),
    )
    intro = (
        "A step with k drafts takes the fixed time and k times that of a draft, as far off as the "
        "next to last column says.",
    )
    return table("spec_fit", "A step as a line", fitted, columns, intro)


def _short(whole: Section) -> Section:
    if len(whole.rows) <= _ROWS_OF_ONE_SCREEN:
        return whole
    rest = f"And {len(whole.rows) - _ROWS_OF_ONE_SCREEN} more rows: --all."
    return replace(whole, rows=whole.rows[:_ROWS_OF_ONE_SCREEN], intro=(*whole.intro, rest))


def _drafts(number: int) -> str:
    return counted(number, "draft")


def _factor(speed: StepCost | None) -> str | None:
    return figure(speed.value, ".3f", " x") if speed else None


def _ends(speed: StepCost | None) -> str:
    if speed is None or speed.low is None or speed.high is None:
        return MISSING
    return f"{speed.low:.3f} to {speed.high:.3f}"


def _with_ends(speed: StepCost | None) -> str:
    if speed is None:
        return "by how much is not told"
    if speed.low is None or speed.high is None:
        return f"{speed.value:.2f} x"
    return f"{speed.value:.2f} x, {speed.low:.2f} to {speed.high:.2f}"


def _time_ends(time: StepCost) -> str:
    if time.low is None or time.high is None:
        return MISSING
    return between(microseconds(time.low), microseconds(time.high))
