"""What a reader must know before believing a report: one rule a sentence."""

from __future__ import annotations

from spark_prof.analyzers.model import Coverage, Steps
from spark_prof.analyzers.step_accounting import Books
from spark_prof.traces.bundle import Bundle

_ENOUGH_LAYERS = 0.95
_GOOD_BOOKS_PERCENT = 1.0
_FEW_DECODE_STEPS = 16
_LATE = 5


def notes_of(
    bundle: Bundle, rank: int, steps: Steps, coverage: Coverage, books: tuple[Books, ...]
) -> tuple[str, ...]:
    """The notes of a report, what was lost first."""
    facts = bundle.facts(rank)
    settings = bundle.meta.settings
    imported = bundle.imported
    execution = str(facts.get("execution", ""))
    notes = [f"lost: {line}" for line in bundle.meta.lost]
    if skipped := settings.get("warmup_steps"):
        notes.append(f"The first {skipped} steps were let pass before these (--warmup-steps).")
    if settings.get("decode_only"):
        notes.append("Only steps without any prefill were recorded (--decode-only).")
    if bundle.meta.state == "interrupted":
        notes.append("The recording was ended early; it holds the steps up to then.")
    if bundle.meta.state == "salvaged":
        notes.append("The recorded process died; this is what it had written by then.")
    if settings.get("summed"):
        notes.append(
            "The source has sums only, not when a kernel ran: there are no times of steps, no gaps "
            "and nothing about overlap."
        )
    if coverage.guessed:
        notes.append(
            f"{100 * coverage.guessed:.1f} % of the kernel time was placed by a guess: by "
            "its name, by its order in a decoder layer, by what repeats like layers, or as in "
            "another trace of the same model."
        )
    if coverage.placed < _ENOUGH_LAYERS and "CUDA graphs" in execution and not imported:
        notes.append(
            "Kernels of CUDA graphs whose capture was not seen have no layer: torch's profiler "
            "sees none, --attach comes too late. Start vLLM under record with CUPTI, or with "
            "--enforce-eager (its gaps are larger, its kernels nearly the same)."
        )
    if 0 < steps.count == settings.get("steps"):
        notes.append(f"The window closed after {steps.count} steps; see --steps.")
    if 0 < steps.decode < _FEW_DECODE_STEPS:
        notes.append(f"Only {steps.decode} decode steps: their median and p99 say little.")
    if steps.decode_us and steps.decode_us.p99 > _LATE * steps.decode_us.median:
        notes.append(
            f"Some decode steps took more than {_LATE} times the median. The first use of a kernel "
            "compiles it: --warmup-steps leaves such steps out."
        )
    if books and abs(books[0].residual_percent) > _GOOD_BOOKS_PERCENT:
        notes.append(
            f"The books are off by {books[0].residual_percent:.1f} % of the step time: kernels "
            "ran outside the step that launched them."
        )
    if books and books[0].engine_us is None and not imported:
        notes.append(
            "The scheduler's own record is missing for some steps: their token counts assume one "
            "token per decoding request."
        )
    return tuple(notes)
