"""What to know before a figure of a report is believed: what was lost, and how it was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from spark_prof.analyzers.attribution.placement import unseen_captures
from spark_prof.analyzers.breakdown import Coverage
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.analyzers.recorded_run import RecordingSetup
from spark_prof.analyzers.step_accounting import Steps
from spark_prof.analyzers.step_time import StepSums
from spark_prof.analyzers.token_time import FEWEST_TIMED
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.execution import Execution
from spark_prof.traces.foreign import is_impossible
from spark_prof.vocabulary import PHASES

About = Literal["figures", "recording", "left out"]


class Note(str):
    """A sentence, as JSON has it, which knows what it is about.

    Note("The first 8 steps were let pass before these (--warmup-steps).", "recording")

    Args:
        about: figures, which it takes something from; the recording, whose figures it leaves as
            they are; or what was left out of every figure.
    """

    about: About

    def __new__(cls, text: str, about: About = "figures") -> Note:
        """The sentence."""
        note = super().__new__(cls, text)
        note.about = about
        return note


def about(note: str) -> About:
    """What a sentence of a report is about."""
    return note.about if isinstance(note, Note) else "figures"


_TOLD_LONGEST_NS = 50_000_000
_TOLD_SHARE = 0.01
"""A pause as long as this, or pauses of this share of the recorded time, are worth a note."""


@dataclass(frozen=True)
class Pauses:
    """The pauses of one rank, in which it wrote what was recorded; no step contains them."""

    count: int
    us: float  # all of them
    longest_us: float
    share: float | None  # of the time from the first step to the last; None without two steps

    @property
    def long(self) -> bool:
        """Whether those who sent requests may have felt them."""
        return self.longest_us > _TOLD_LONGEST_NS / 1e3 or (self.share or 0.0) > _TOLD_SHARE


def pauses_of(bundle: Bundle, rank: int) -> Pauses | None:
    """What the worker said; None where it said nothing, as an earlier spark-prof or an import.

    Example: 19 pauses, 17.4 s in all, up to 1.6 s, in a recording of 50 s.
    """
    pauses = mapping_in(bundle.facts(rank), "pauses")
    numbers = [pauses.get(name) for name in ("count", "total_ns", "longest_ns")]
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
        return None
    count, total, longest = (int(number) for number in numbers if isinstance(number, int))
    if not count:
        return None
    steps = bundle.frame("steps", rank, ["start_ns", "end_ns"])
    length = int(steps["end_ns"].max() - steps["start_ns"].min()) if len(steps) > 1 else 0
    return Pauses(count, total / 1e3, longest / 1e3, total / length if length > 0 else None)


_ENOUGH_LAYERS = 0.95
_SMALL_RESIDUAL_PERCENT = 1.0
_FEW_DECODE_STEPS = 16
_LATE = 5


def notes_of_timed(steps: Steps, timed: int) -> Iterator[str]:
    """What to know of a recording in which some steps were only timed."""
    if not timed or steps.token is None:
        return
    few = [time for time in steps.batches if not time.timed_steps]
    if not steps.token.timed_steps:
        yield (
            f"Too few of the {timed} steps that were not profiled are decode steps of one batch "
            "size: the time of a token is that of profiled steps, what profiling costs included."
        )
    elif few:
        sizes = ", ".join(str(time.batch) for time in few)
        yield (
            f"At batch {sizes} fewer than {FEWEST_TIMED} decode steps were not profiled: their "
            "times are those of profiled steps."
        )


def notes_of_dependent(sums: pd.DataFrame, run: RecordingSetup, all_us: float) -> Iterator[str]:
    """What is to be known of the times of kernels that start early, in the first such phase.

    Args:
        all_us: by how much kernels of all steps start early.
    """
    ahead_us = sums.groupby(sums["phase"].astype(str))["ahead_us"].sum()
    exclusive_us = int(sums["ns"].sum()) / 1e3
    # Decode first, as everywhere.
    for phase in ("decode", *(name for name in PHASES if name != "decode")):
        us = float(ahead_us.get(phase, 0.0))
        if not us:
            continue
        where = f"a {phase} step" if phase != "unknown" else "a step"
        yield (
            f"In {where if run.tells_steps else 'the recording'} kernels start {us:.1f} us before "
            "the one before them on their stream has ended, and wait for it (programmatic "
            "dependent launch): that time is the earlier one's. Their whole durations, as classify "
            "has them, are longer; what of a call's bandwidth they hide is not known. "
            f"All of them add up to {exclusive_us + all_us:,.1f} us, and to "
            f"{exclusive_us:,.1f} us without that time."
        )
        return


def notes_of(
    bundle: Bundle, rank: int, steps: Steps, coverage: Coverage, sums: StepSums | None
) -> tuple[str, ...]:
    """The notes of a report, what was lost first."""
    return (
        *_notes_of_recording(bundle, rank),
        *_notes_of_places(bundle, rank, coverage),
        *_notes_of_steps(bundle, steps, sums),
    )


def _notes_of_recording(bundle: Bundle, rank: int) -> Iterator[str]:
    settings = bundle.meta.settings
    for line in bundle.meta.lost:
        yield Note(f"lost: {line}", "left out" if is_impossible(line) else "figures")
    if skipped := settings.get("warmup_steps"):
        text = f"The first {skipped} steps were let pass before these (--warmup-steps)."
        yield Note(text, "recording")
    if settings.get("decode_only"):
        text = "Only steps without any prefill were recorded (--decode-only)."
        yield Note(text, "recording")
    if bundle.meta.state == "interrupted":
        yield "The recording was ended early; it holds the steps up to then."
    if bundle.meta.state == "salvaged":
        yield "The recorded process died; this is what it had written by then."
    if (pauses := pauses_of(bundle, rank)) and pauses.long:
        share = f", {100 * pauses.share:.0f} % of the recorded time" if pauses.share else ""
        yield (
            f"The engine stood still {_times(pauses.count)} to write what was recorded, "
            f"{pauses.us / 1e6:.3g} s in all{share}, up to {pauses.longest_us / 1e3:.0f} ms: "
            "requests that ran then waited; no step contains that."
        )
    if settings.get("summed"):
        yield (
            "The source has sums only, not when a kernel ran: there are no times of steps, no gaps "
            "and nothing about overlap."
        )


def _notes_of_places(bundle: Bundle, rank: int, coverage: Coverage) -> Iterator[str]:
    mode = Execution.read(str(bundle.facts(rank).get("execution", "")))
    if round(coverage.guessed, 3):
        yield (
            f"{100 * coverage.guessed:.1f} % of the kernel time was placed by a guess: by "
            "its name, by its order in a decoder layer, by what repeats like layers, or as in "
            "another trace of the same model."
        )
    graphs = mode.graphs and not bundle.imported and coverage.placed < _ENOUGH_LAYERS
    unseen = unseen_captures(bundle, rank) if graphs else 0.0
    if unseen is None or unseen > 1 - _ENOUGH_LAYERS:
        yield (
            "Kernels of CUDA graphs whose capture was not seen have no layer: torch's profiler "
            "sees none, --attach comes too late. Start vLLM under record with CUPTI, or with "
            "--enforce-eager (its gaps are larger, its kernels nearly the same)."
        )


def _notes_of_steps(bundle: Bundle, steps: Steps, sums: StepSums | None) -> Iterator[str]:
    if 0 < steps.count == bundle.meta.settings.get("steps"):
        text = f"The window closed after {steps.count} steps; see --steps."
        yield Note(text, "recording")
    if 0 < steps.decode < _FEW_DECODE_STEPS:
        yield f"Only {steps.decode} decode steps: their median and p99 say little."
    if steps.decode_us and steps.decode_us.p99 > _LATE * steps.decode_us.median:
        yield f"Some decode steps took more than {_LATE} times the median."
    if steps.preemptions:
        yield (
            f"The KV cache was full: {steps.preemptions:,} preemptions, after which "
            f"{steps.recomputed_tokens:,} tokens were computed again, as prefill."
        )
    if sums and abs(sums.residual_percent) > _SMALL_RESIDUAL_PERCENT:
        yield (
            f"The books are off by {sums.residual_percent:.1f} % of the step time: kernels "
            "ran outside the step that launched them."
        )
    if sums and sums.engine_us is None and not bundle.imported:
        yield (
            "The scheduler's own record is missing for some steps: their token counts assume one "
            "token per decoding request."
        )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
