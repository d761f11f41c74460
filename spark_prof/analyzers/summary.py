"""Puts a whole report together from a bundle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from spark_prof.analyzers.answers import answers_of
from spark_prof.analyzers.attribution.placement import kernels_in_order, place_kernels
from spark_prof.analyzers.breakdown import (
    Coverage,
    code_of,
    component_rows,
    conflicts_of,
    copies_of,
    coverage_of,
    kernel_rows,
    layer_rows,
    sums_of,
)
from spark_prof.analyzers.ceilings.schemes import bits_of
from spark_prof.analyzers.classify.evidence import evidence_of
from spark_prof.analyzers.clients.client_comparison import clients_of
from spark_prof.analyzers.conversions.conversion_costs import conversions_of
from spark_prof.analyzers.conversions.conversion_rows import Conversions
from spark_prof.analyzers.counters.counter_batches import counters_of
from spark_prof.analyzers.fallbacks.audit import audit_of
from spark_prof.analyzers.findings.ranking import findings_of
from spark_prof.analyzers.instants import with_own_starts
from spark_prof.analyzers.invariants import Facts, checked
from spark_prof.analyzers.layer_consistency import LayerTables, unknown_layers, without_layers
from spark_prof.analyzers.lookup import copies_in, mapping_in, positions
from spark_prof.analyzers.model import Collectives, ModuleRow, RankRow, Report
from spark_prof.analyzers.overhead import overhead_of
from spark_prof.analyzers.ranks.rank_summary import collectives_of
from spark_prof.analyzers.recorded_run import gpu_of, markers_of, run_of
from spark_prof.analyzers.roofline.step_roofline import roofline_of
from spark_prof.analyzers.roofline.weight_bytes import stored_as
from spark_prof.analyzers.shapes.shape_summary import shapes_of
from spark_prof.analyzers.step_accounting import Books, Steps, books, step_books, steps_of
from spark_prof.analyzers.step_time import token_ledgers
from spark_prof.analyzers.views.waterfall import waterfall_of
from spark_prof.analyzers.windows import timed_windows
from spark_prof.cores import cores
from spark_prof.errors import CommandError
from spark_prof.traces.benchmarks.load_test import BenchmarkResult, imported_runs
from spark_prof.traces.bundle import Bundle, table_file
from spark_prof.traces.measured import Measured
from spark_prof.traces.readers.engine_log import EngineLog

_ENOUGH_LAYERS = 0.95
_GOOD_BOOKS_PERCENT = 1.0
_FEW_DECODE_STEPS = 16
_LATE = 5


@dataclass(frozen=True)
class Summary:
    """A report, and the rows that it sums up."""

    report: Report
    # What `place_kernels` returned, `stream` among it, from their own starts on, without the layers
    # whose kernels are not known.
    kernels: pd.DataFrame
    # What `step_books` returned; of kernels without times what `timed_windows` did.
    steps: pd.DataFrame
    sums: pd.DataFrame  # what `sums_of` returned, without those layers too
    timed: bool  # whether it is known when the kernels ran


def summarize(
    bundle: Bundle,
    rank: int | None = None,
    log: EngineLog | None = None,
    measured: Measured | None = None,
    results: Sequence[BenchmarkResult] = (),
) -> Report:
    """The report of one rank of a bundle; arguments and errors are those of `summary_of`."""
    return summary_of(bundle, rank, log, measured, results).report


def summary_of(
    bundle: Bundle,
    rank: int | None = None,
    log: EngineLog | None = None,
    measured: Measured | None = None,
    results: Sequence[BenchmarkResult] = (),
) -> Summary:
    """The report of one rank of a bundle, the lowest if None, with the rows that it was made of.

    Args:
        log: what the engine printed in the same run.
        measured: ceilings of its GPU that were measured; those of another GPU are not used.
        results: of load generators that saw the same server, beside those in the bundle.
    """
    if rank is None:
        rank = min(bundle.ranks, default=0)
    if rank not in bundle.ranks:
        ranks = ", ".join(map(str, bundle.ranks)) or "none"
        raise CommandError(f"{bundle.path} has no rank {rank}; it has {ranks}")
    if not bundle.meta.tables[table_file("steps", rank)]:
        raise CommandError(f"{bundle.path} has no step of rank {rank}; record again")
    samples = bundle.frame("counters", rank)
    extra = ["stream", "module", *(["graph_node"] if len(samples) else [])]
    placed = with_own_starts(place_kernels(bundle, rank, extra))
    # Nothing but sums, such as a table of kernels, has no times at which anything ran.
    timed = not bundle.meta.settings.get("summed")
    windows = timed_windows(bundle, rank, placed)
    steps = windows.steps
    every = placed
    if len(windows.left_out):
        # Kernels of another time line would fill the gaps of this one.
        placed = placed[~placed["step"].isin(windows.left_out)].reset_index(drop=True)
    with ThreadPoolExecutor(cores()) as pool:
        summing = pool.submit(sums_of, placed, steps["phase"], steps if timed else None)
        if timed:
            steps = step_books(steps, placed)
        in_all_layers = LayerTables.of(bundle, rank, summing.result())
    unknown = unknown_layers(in_all_layers)
    sums = without_layers(in_all_layers.sums, unknown)
    every = without_layers(every, unknown)
    evidence = evidence_of(bundle, rank)
    summary = replace(steps_of(steps), left_out=len(windows.left_out))
    by_kernel = kernel_rows(sums, evidence.label)
    coverage = coverage_of(sums, by_kernel)
    accounting = books(steps) if timed else ()
    busy_us = accounting[0].busy_us if timed else None
    collectives, shares = collectives_of(bundle) if timed else (Collectives(), {})
    config = mapping_in(bundle.facts(rank), "model_config")
    weights = bundle.frame("layers", rank, ["component", "bytes"])
    counters = counters_of(samples, placed, steps, weights, config)
    # What looks at every kernel once more; NumPy lets the cores share it.
    with ThreadPoolExecutor(cores()) as pool:
        accounted = pool.submit(token_ledgers, placed, steps, sums) if timed else None
        known = without_layers(placed, unknown)
        converting = pool.submit(
            conversions_of, known, steps, summary, by_kernel, evidence.label, timed=timed
        )
        shaping = pool.submit(shapes_of, bundle, rank, every, steps, sums, counters)
        copies = copies_of(placed, steps.index, busy_us)
    ledgers = accounted.result() if accounted else ()
    decode = next((ledger for ledger in ledgers if ledger.phase == "decode"), None)
    # How many decode steps compute how many tokens.
    sizes = Counter(sorted(steps.loc[steps["phase"] == "decode", "decode_tokens"].tolist()))
    overhead = overhead_of(bundle, rank) if timed else ()
    runs = [*imported_runs(bundle), *(run for result in results for run in result.runs)]
    report = Report(
        run=run_of(bundle, rank, placed, steps),
        gpu=gpu_of(bundle.facts(rank)),
        steps=summary,
        books=accounting,
        wall_us=_wall_us(steps) if timed else None,
        coverage=coverage,
        components=component_rows(sums, summary.decode, decode),
        layers=layer_rows(sums),
        kernels=by_kernel,
        conversions=converting.result(),
        modules=_modules(bundle, rank),
        copies=copies,
        ranks=tuple(
            _rank(bundle, r, steps if r == rank else None, shares.get(r, {}))
            for r in bundle.ranks
            if timed
        ),
        findings=(),
        notes=(
            *windows.notes,
            # What fails a check is told there, and is not for want of a place.
            *notes_of(
                bundle, rank, summary, coverage_of(in_all_layers.sums, by_kernel), accounting
            ),
            *_dependent(sums, summary),
            *evidence.lost,
        ),
        collectives=collectives,
        overhead=overhead,
        # A trace of sums alone does not say when a step began.
        clients=clients_of(runs, steps if timed else steps[:0], bundle.facts(rank), overhead),
        counters=counters,
        markers=markers_of(bundle, rank),
        machine_code=code_of(evidence, by_kernel),
        conflicts=conflicts_of(evidence, by_kernel),
        roofline=roofline_of(
            bundle,
            rank,
            placed,
            steps,
            # What a kernel reads is proven by the kernel, whatever the others of its layer do.
            in_all_layers.sums,
            by_kernel,
            summary,
            counters,
            measured,
        ),
        shapes=shaping.result(),
        tokens=ledgers,
        audit=audit_of(bundle, rank, by_kernel, sizes, log),
    )
    ran = _of_steps(placed, steps) if timed else placed[:0]
    report = checked(Facts(report, ran, in_all_layers))
    report = replace(report, conversions=_of_the_step(report))
    report = replace(report, findings=findings_of(report), answers=answers_of(report))
    return Summary(report, every, steps, sums, timed)


def _dependent(sums: pd.DataFrame, steps: Steps) -> Iterator[str]:
    """What is to be known of the times of kernels that start early."""
    ahead = sums[(sums["phase"] == "decode").to_numpy() & (sums["ahead_us"] > 0).to_numpy()]
    if len(ahead) and steps.decode:
        yield (
            f"In a decode step kernels start {ahead['ahead_us'].sum():.1f} us before the one before"
            " them on their stream has ended, and wait for it (programmatic dependent launch): that"
            " time is the earlier one's; what of a call's bandwidth they hide is not known."
        )


def _of_the_step(report: Report) -> Conversions:
    """The conversions, which share what the waterfall gives all of them: one figure of a token."""
    found = report.conversions
    us = sum(part.us for part in waterfall_of(report).parts if part.kind == "conversion")
    if not us or not found.us_per_token:
        return found
    factor = us / found.us_per_token
    rows = [replace(row, us_per_token=factor * (row.us_per_token or 0.0)) for row in found.charged]
    return replace(found, us_per_token=us, charged=tuple(rows))


def notes_of(
    bundle: Bundle, rank: int, steps: Steps, coverage: Coverage, books: tuple[Books, ...]
) -> tuple[str, ...]:
    """The notes of a report, what was lost first."""
    settings, imported = bundle.meta.settings, bundle.imported
    execution = str(bundle.facts(rank).get("execution", ""))
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


def _of_steps(placed: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    own = positions(steps.index.to_numpy(), placed["step"].to_numpy()) >= 0
    own &= ~copies_in(placed)
    columns = placed[["start_ns", "end_ns"]]
    return columns if own.all() else columns[own]


def _wall_us(steps: pd.DataFrame) -> float:
    """How long the steps took, piece by piece: between two pieces others may have run."""
    pieces = steps.groupby("piece")
    return float((pieces["finish_ns"].max() - pieces["begin_ns"].min()).sum()) / 1e3


def _modules(bundle: Bundle, rank: int) -> tuple[ModuleRow, ...]:
    layers = bundle.frame("layers", rank)
    stored = stored_as(bundle.frame("tensors", rank))
    narrow = {path: form for path, form in stored.items() if (bits_of(form) or 16) < 16}
    layers = layers.assign(format=[narrow.get(path, "") for path in layers["path"]])
    keys = ["component", "type", "quant_method", "kernel", "weight_dtype", "shape", "format"]
    groups = layers.groupby(keys, observed=True, sort=False)["bytes"].agg(["size", "sum"])
    rows = (
        ModuleRow(component, kind, method, kernel, dtype, shape, int(count), int(total), form)
        for (component, kind, method, kernel, dtype, shape, form), count, total in (
            groups.itertuples(name=None)
        )
    )
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def _rank(
    bundle: Bundle, rank: int, steps: pd.DataFrame | None, share: Mapping[str, Any]
) -> RankRow:
    if not bundle.meta.tables[table_file("steps", rank)]:
        return RankRow(rank, 0, 0.0, 0.0, 0.0)
    if steps is None:
        columns = ["start_ns", "end_ns", "stream", "kind", "step"]
        kernels = with_own_starts(kernels_in_order(bundle, rank, columns))
        windows = timed_windows(bundle, rank, kernels)
        if len(windows.left_out):
            kernels = kernels[~kernels["step"].isin(windows.left_out)]
        steps = step_books(windows.steps, kernels)
    step_us, kernels_us, gap_us = map(float, steps[["step_us", "kernels_us", "gap_us"]].sum())
    return RankRow(rank, len(steps), step_us, kernels_us, gap_us, **share)
