"""Finds the fastest combination of candidates by measuring, in a time that is kept: one policy.

`STAGES` is the policy, in its order; each works on a `Bench` within a `Budget`. Candidates lose by
interval: where its upper end is at 1, or below the lower end of a rival, one that cannot be on
together with it. What two bring together is never assumed, but measured.

Nothing here starts an engine: `Measure` does, or a simulation of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_prof.tune.bench import Bench, engine_groups
from spark_prof.tune.confirmation import confirm
from spark_prof.tune.engine_stages import extend, try_engines, try_lead
from spark_prof.tune.known_gains import Verdict
from spark_prof.tune.swap_stages import try_swaps
from spark_prof.tune.tune_trial import (
    BASE,
    Candidate,
    Combination,
    Measure,
    Timed,
    TimeUpError,
    TuneTrial,
)


def look_once(bench: Bench) -> None:
    """Where nothing could be tried with time to confirm it: a first look with what is left.

    `--resume` goes on with it.
    """
    if bench.evidence.gains or BASE in bench.evidence.bad:
        return
    bench.budget.reserving = False
    bench.evidence.why.clear()
    for stage in (try_swaps, try_engines, extend):
        stage(bench)


STAGES: tuple[Callable[[Bench], None], ...] = (
    try_lead,  # what promises most, where it needs an engine of its own
    try_swaps,  # swaps, all in one engine
    try_engines,  # options and variables, an engine each, with and without the swaps that won
    extend,  # the best of all, and what makes it better still
    look_once,  # with too little time for any of that, what fits into the time
    confirm,  # the best again, in fresh engines: that figure is the answer
)


@dataclass(frozen=True)
class SearchResult:
    """What a search came to."""

    answer: Combination  # confirmed in fresh engines; none where nothing helps
    times: tuple[Timed, ...]  # of the answer, from its confirmation
    trials: tuple[TuneTrial, ...]
    verdicts: dict[str, tuple[Verdict, str]]  # of each candidate's words, with one line or none
    line: str = ""  # why there is no answer though something was faster in the search
    unconfirmed: Combination = BASE  # what that was, where the time was up
    needed_minutes: int | None = None  # for all of it, where time was lacking
    engine_s: float | None = None  # what an engine took here, where time was lacking


class Search:
    """One search over the candidates of a table.

    Search(table.candidates, engines, print).run().answer
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        measure: Measure,
        say: Callable[[str], None],
        first: Sequence[TuneTrial] = (),  # what is known before, such as the base's first start
        alone: frozenset[str] = frozenset(),  # swaps for whose copies one engine has no room
        keep: Callable[[TuneTrial], None] = lambda _: None,  # is given each trial as it ends
    ) -> None:
        self._bench = Bench.of(candidates, measure, say, alone, keep)
        for trial in first:
            self._bench.keep(trial)

    def run(self) -> SearchResult:
        """Goes through the stages, as far as the time goes."""
        bench = self._bench
        try:
            for stage in STAGES:
                stage(bench)
        except TimeUpError:
            gains, answer = bench.evidence.gains, bench.answer
            worth = [c for c in gains if c and bench.evidence.worth(c)]
            answer.unconfirmed = max(worth, key=lambda c: gains[c].value, default=BASE)
            answer.line = "the time was up before anything was told; --resume goes on"
            if answer.unconfirmed:
                answer.line = "the time was up before it was confirmed; --resume goes on"
        return self.result()

    def result(self) -> SearchResult:
        """What is known, of a search that ended early too."""
        answer, evidence = self._bench.answer, self._bench.evidence
        line = answer.line
        if (base := evidence.bad.get(BASE)) and not answer.confirmed:
            line = f"the engine as it is could not be measured: {base.why}"
        verdicts = {
            words: evidence.verdict(words, answer.confirmed, line) for words in self._bench.order
        }
        return SearchResult(
            answer.confirmed,
            answer.times,
            tuple(evidence.trials),
            verdicts,
            "" if answer.confirmed else line,
            BASE if answer.confirmed else answer.unconfirmed,
            *self._needed(verdicts),
        )

    def _needed(self, verdicts: dict[str, tuple[Verdict, str]]) -> tuple[int | None, float | None]:
        """Minutes that all of it takes, and seconds of an engine; None where time was enough."""
        bench, answer = self._bench, self._bench.answer
        untried = [words for words, (verdict, _) in verdicts.items() if verdict == "not tried"]
        lacking = untried or (answer.unconfirmed and not answer.confirmed)
        if not lacking or _is_broken(bench):
            return None, None
        minutes = bench.budget.minutes_for(len(bench.swapped), len(engine_groups(bench.separate)))
        return minutes, bench.budget.start_s


def _is_broken(bench: Bench) -> bool:
    """Whether the engine as it is does not start, for want of anything but time."""
    return BASE in bench.evidence.bad and bench.budget.left > bench.budget.start_s
