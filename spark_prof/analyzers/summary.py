"""Puts a whole report together from a bundle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from spark_prof.analyzers.answers import answers_of
from spark_prof.analyzers.attribution.placement import (
    kernels_in_order,
    place_kernels,
    unseen_captures,
)
from spark_prof.analyzers.breakdown import (
    ComponentRow,
    Coverage,
    KernelRow,
    LayerRow,
    code_of,
    component_rows,
    conflicts_of,
    copies_of,
    coverage_of,
    kernel_rows,
    layer_rows,
    sums_of,
    typical_kernels,
)
from spark_prof.analyzers.ceilings.schemes import bits_of
from spark_prof.analyzers.classify.evidence import evidence_of
from spark_prof.analyzers.clients.client_comparison import clients_of
from spark_prof.analyzers.context.context_costs import context_cost
from spark_prof.analyzers.conversions.conversion_costs import conversions_of
from spark_prof.analyzers.conversions.conversion_rows import AttributedConversion
from spark_prof.analyzers.counters.counter_batches import counters_of
from spark_prof.analyzers.fallbacks.audit import audit_of
from spark_prof.analyzers.findings.ranking import OF_ALL_STEPS, findings_of, ranked
from spark_prof.analyzers.first_uses import first_uses
from spark_prof.analyzers.graph_use import graph_use
from spark_prof.analyzers.instants import Attributed, OwnedTime, with_own_starts
from spark_prof.analyzers.invariants import Facts, checked
from spark_prof.analyzers.layer_consistency import LayerTables, unknown_layers, without_layers
from spark_prof.analyzers.lookup import copies_in, mapping_in, positions
from spark_prof.analyzers.model import Collectives, ModuleRow, RankRow, Report
from spark_prof.analyzers.note import Note
from spark_prof.analyzers.overhead import overhead_of
from spark_prof.analyzers.pauses import pauses_of
from spark_prof.analyzers.prefill.prefill_costs import prefill_of
from spark_prof.analyzers.rank_layout import parallel_of
from spark_prof.analyzers.ranks.rank_summary import collectives_of
from spark_prof.analyzers.ranks.replica_load import replica_load
from spark_prof.analyzers.recorded_run import NOTHING, Run, gpu_of, markers_of, run_of, steps_by
from spark_prof.analyzers.requests.served import served_of
from spark_prof.analyzers.roofline.step_roofline import roofline_of
from spark_prof.analyzers.roofline.weight_bytes import stored_as, weights_of_tensors
from spark_prof.analyzers.shapes.shape_summary import shapes_of
from spark_prof.analyzers.speculation.speculation_rows import Speculation
from spark_prof.analyzers.speculation.speculation_summary import speculation_of
from spark_prof.analyzers.step_accounting import (
    Books,
    Steps,
    books,
    step_books,
    steps_of,
    sum_by_group,
)
from spark_prof.analyzers.step_time import attributed_time, token_ledgers
from spark_prof.analyzers.swapped_run import swaps_of
from spark_prof.analyzers.timed_steps import timed_steps
from spark_prof.analyzers.token_time import DECODING, FEWEST_TIMED
from spark_prof.analyzers.views.waterfall import beside_waterfall
from spark_prof.analyzers.windows import Windows, timed_windows
from spark_prof.arrays import Flags
from spark_prof.cores import cores
from spark_prof.errors import CommandError
from spark_prof.rules.components import DRAFTER, LM_HEAD
from spark_prof.traces.benchmarks.load_test import BenchmarkResult, imported_runs
from spark_prof.traces.bundle import Bundle, table_file
from spark_prof.traces.execution import Execution
from spark_prof.traces.foreign import is_impossible
from spark_prof.traces.measured import Measured
from spark_prof.traces.readers.engine_log import EngineLog
from spark_prof.traces.swapped import layers_of, tensors_of
from spark_prof.vocabulary import PHASES

_ENOUGH_LAYERS = 0.95
_GOOD_BOOKS_PERCENT = 1.0
_FEW_DECODE_STEPS = 16
_LATE = 5

Row = TypeVar("Row", ComponentRow, LayerRow, KernelRow, AttributedConversion)


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
    batch: int | None = None,
) -> Report:
    """The report of one rank of a bundle; arguments and errors are those of `summary_of`."""
    return summary_of(bundle, rank, log, measured, results, batch).report


def summary_of(
    bundle: Bundle,
    rank: int | None = None,
    log: EngineLog | None = None,
    measured: Measured | None = None,
    results: Sequence[BenchmarkResult] = (),
    batch: int | None = None,
) -> Summary:
    """The report of one rank of a bundle, the lowest if None, with the rows that it was made of.

    Where several batch sizes were recorded, what it says of a decode step and a token is of the one
    with most of the time; its counts and sums are of all steps.

    Args:
        log: what the engine printed in the same run.
        measured: ceilings of its GPU that were measured; those of another GPU are not used.
        results: of load generators that saw the same server, beside those in the bundle.
        batch: leaves out steps in which other numbers of requests decode; None leaves out none.
    """
    whole = _summary(bundle, rank, log, measured, results, batch)
    told = whole.report.steps.told
    if batch is not None or told is None or told.screen.batch is None:
        return whole
    if len(whole.report.steps.batches) < 2:
        return whole
    found = _summary(bundle, rank, log, measured, (), told.screen.batch, whole.report).report
    return replace(whole, report=_of_screen(whole.report, found))


def _summary(
    bundle: Bundle,
    rank: int | None,
    log: EngineLog | None,
    measured: Measured | None,
    results: Sequence[BenchmarkResult],
    batch: int | None,
    whole: Report | None = None,
) -> Summary:
    """As `summary_of`, of these steps; with the report of all of them, some of it is taken over."""
    if rank is None:
        rank = min(bundle.ranks, default=0)
    if rank not in bundle.ranks:
        ranks = ", ".join(map(str, bundle.ranks)) or "none"
        raise CommandError(f"{bundle.shown} has no rank {rank}; it has {ranks}")
    if not bundle.meta.tables[table_file("steps", rank)]:
        raise CommandError(f"{bundle.shown} has no step of rank {rank}; record again")
    samples = bundle.frame("counters", rank)
    ran = _ran(bundle, rank, batch, with_nodes=len(samples) > 0)
    timed, placed, steps, timed_only = ran.timed, ran.placed, ran.steps, ran.timed_only
    attributed, owned = ran.attributed, ran.owned
    in_all_layers = LayerTables.of(
        bundle, rank, sums_of(placed, steps["phase"], steps if timed else None, owned)
    )
    unknown = unknown_layers(in_all_layers)
    sums = without_layers(in_all_layers.sums, unknown)
    every = without_layers(ran.every, unknown)
    evidence = evidence_of(bundle, rank)
    summary = replace(steps_of(steps, timed_only), left_out=len(ran.windows.left_out))
    run = run_of(bundle, rank, placed, steps)
    if not run.tells_steps:
        # What has the rows of one step is the whole recording.
        summary = replace(summary, count=0, unknown=0, unknown_us=None, host_gap_us=None)
    by_kernel = kernel_rows(sums, evidence.label)
    run = replace(run, swaps=swaps_of(bundle, rank, by_kernel))
    coverage = coverage_of(sums, by_kernel)
    accounting = books(steps) if timed else ()
    if not run.tells_steps:
        accounting = tuple(replace(book, steps=0) for book in accounting)
    busy_us = accounting[0].busy_us if timed else None
    ahead_us = _ahead_us(placed, steps)
    collectives = Collectives()
    shares: Mapping[int, Mapping[str, Any]] = {}
    if whole is not None:
        collectives = whole.collectives
    elif timed:
        collectives, shares = collectives_of(bundle)
    of_tokens = () if summary.token is None else (summary.token, *summary.batches)
    config = mapping_in(bundle.facts(rank), "model_config")
    weights = layers_of(bundle, rank)[["component", "bytes"]]
    counters = counters_of(samples, placed, steps, weights, config)
    # What looks at every kernel once more; NumPy lets the cores share it.
    with ThreadPoolExecutor(cores()) as pool:
        known = without_layers(placed, unknown)
        converting = pool.submit(
            conversions_of, known, steps, summary, by_kernel, evidence.label, owned, timed=timed
        )
        shaping = pool.submit(shapes_of, bundle, rank, every, steps, sums, counters)
        copies = copies_of(placed, steps.index, busy_us)
    ledgers = token_ledgers(attributed, steps, sums, of_tokens) if attributed else ()
    if not run.tells_steps:
        ledgers = tuple(replace(ledger, steps=0) for ledger in ledgers)
    # How many decode steps compute how many tokens.
    sizes = Counter(sorted(steps.loc[steps["phase"] == "decode", "decode_tokens"].tolist()))
    overhead = overhead_of(bundle, rank) if timed else ()
    runs = [*imported_runs(bundle), *(run for result in results for run in result.runs)]
    report = Report(
        run=run,
        gpu=gpu_of(bundle.facts(rank)),
        steps=summary,
        books=accounting,
        wall_us=_wall_us(steps, batch) if timed else None,
        coverage=coverage,
        components=component_rows(sums),
        layers=layer_rows(sums),
        kernels=by_kernel,
        typical=typical_kernels(sums),
        conversions=converting.result(),
        modules=_modules(bundle, rank),
        copies=copies,
        ranks=whole.ranks
        if whole is not None
        else tuple(
            _rank(bundle, r, steps if r == rank else None, shares.get(r, {}))
            for r in bundle.ranks
            if timed
        ),
        findings=(),
        notes=(
            *ran.windows.notes,
            *_told_timed(summary, len(timed_only)),
            # What fails a check is told there, and is not for want of a place.
            *notes_of(
                bundle, rank, summary, coverage_of(in_all_layers.sums, by_kernel), accounting
            ),
            *_dependent(sums, run, ahead_us),
            *evidence.lost,
        ),
        collectives=collectives,
        replicas=replica_load(bundle),
        parallel=parallel_of(bundle, rank),
        overhead=overhead,
        pauses=pauses_of(bundle, rank),
        requests=whole.requests if whole is not None else served_of(bundle, rank),
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
        graphs=graph_use(bundle, rank),
        ahead_us=ahead_us,
        speculation=speculation_of(bundle, rank, placed, steps, summary, batch),
    )
    kernels = _of_steps(placed, steps) if timed else placed[:0]
    if whole is not None:
        report = replace(report, context=whole.context, prefill=whole.prefill)
    else:
        roof = report.roofline
        budget = report.requests.max_num_batched_tokens if report.requests else None
        report = replace(
            report,
            context=context_cost(bundle, rank, placed, steps, timed_only, roof),
            prefill=prefill_of(bundle, rank, placed, steps, by_kernel, roof, budget),
        )
    report = checked(Facts(report, kernels, in_all_layers))
    report = beside_waterfall(report, findings=findings_of(report), answers=answers_of(report))
    return Summary(report, every, steps, sums, timed)


@dataclass(frozen=True, eq=False)
class _Ran:
    """What ran in the steps that a report is about, and who owns each instant of them."""

    # Nothing but sums, such as a table of kernels, has no times at which anything ran.
    timed: bool
    every: pd.DataFrame  # kernels and copies of all steps, placed
    placed: pd.DataFrame  # those that may run in these steps
    windows: Windows
    steps: pd.DataFrame  # these steps, with their books where they are timed
    timed_only: pd.DataFrame  # steps that were not profiled
    attributed: Attributed | None  # None without times, as `owned`
    owned: OwnedTime | None


def _ran(bundle: Bundle, rank: int, batch: int | None, *, with_nodes: bool) -> _Ran:
    extra = ["stream", "module", *(["graph_node"] if with_nodes else [])]
    every = placed = with_own_starts(place_kernels(bundle, rank, extra))
    timed = not bundle.meta.settings.get("summed")
    windows = timed_windows(bundle, rank, placed)
    steps, timed_only, gone = windows.steps, timed_steps(bundle, rank), windows.left_out
    if timed:
        steps = _judged(steps, placed)
    if batch is not None:
        others = _of_other_sizes(bundle, steps, batch)
        gone = np.append(gone, steps.index.to_numpy(np.int64)[others])
        steps, timed_only = steps[~others], timed_only[timed_only["decode_requests"] == batch]
    if len(gone):
        # Kernels of another time line would fill the gaps of this one.
        placed = placed[~placed["step"].isin(gone)].reset_index(drop=True)
    if not timed:
        return _Ran(timed, every, placed, windows, steps, timed_only, None, None)
    with ThreadPoolExecutor(cores()) as pool:
        attributing = pool.submit(attributed_time, placed, steps)
        with_books = step_books(steps, placed)
        attributed, owned = attributing.result()
    return _Ran(timed, every, placed, windows, with_books, timed_only, attributed, owned)


def _judged(steps: pd.DataFrame, placed: pd.DataFrame) -> pd.DataFrame:
    """The windows, each with whether it used a kernel for the first time."""
    us = (steps["finish_ns"] - steps["begin_ns"]) / 1e3
    own = ~copies_in(placed) & (placed["component"] != "collective").to_numpy()
    step = positions(steps.index.to_numpy(), placed["step"].to_numpy()[own])
    took = (placed["end_ns"] - placed["start_ns"]).to_numpy()[own]
    found = first_uses(steps.assign(step_us=us), sum_by_group(took, step, len(steps)) / 1e3)
    return steps.assign(first_use=found.any, first_use_sure=found.first)


def _of_other_sizes(bundle: Bundle, steps: pd.DataFrame, batch: int) -> Flags:
    """Which steps have another number of requests that decode."""
    decoding = steps["phase"].astype(str).isin(DECODING).to_numpy()
    sizes = steps["decode_requests"].to_numpy(np.int64)
    others = np.asarray(decoding & (sizes != batch))
    if others.sum() == decoding.sum():
        had = ", ".join(f"{size:,}" for size in np.unique(sizes[decoding]).tolist())
        told = f"its steps had {had}" if had else "no step decodes"
        raise CommandError(f"{bundle.shown} has no step in which {batch:,} requests decode: {told}")
    return others


_OF_A_STEP = ("decode_us_per_step", "decode_calls_per_step", "calls_per_step", "us_per_token")


def _of_screen(whole: Report, found: Report) -> Report:
    """The whole report, with what one batch size's says of a step and a token."""

    def a_step(rows: Iterable[Row], own: Iterable[Row], key: Callable[[Row], object]) -> Any:
        known = {key(row): row for row in own}
        changed = []
        for row in rows:
            names = [name for name in _OF_A_STEP if hasattr(row, name)]
            figures: dict[str, Any] = {n: getattr(known.get(key(row)), n, 0.0) for n in names}
            changed.append(replace(row, **figures))
        return tuple(changed)

    def use(row: AttributedConversion) -> object:
        return row.kind, row.name, row.component, row.consumer, row.after

    own = found.conversions
    conversions = replace(
        whole.conversions,
        us_per_token=own.us_per_token,
        charged=a_step(whole.conversions.charged, own.charged, use),
        padding=a_step(whole.conversions.padding, own.padding, use),
        repeated=own.repeated,
    )
    screen = replace(
        whole,
        components=a_step(whole.components, found.components, lambda row: row.name),
        layers=a_step(whole.layers, found.layers, lambda row: (row.layer, row.component)),
        kernels=a_step(whole.kernels, found.kernels, lambda row: (row.name, row.component)),
        conversions=conversions,
        typical=found.typical,
        roofline=found.roofline,
        shapes=found.shapes,
        answers=found.answers,
        speculation=_of_both(whole.speculation, found.speculation),
    )
    findings = [
        *(f for f in whole.findings if f.id in OF_ALL_STEPS),
        *(f for f in found.findings if f.id not in OF_ALL_STEPS),
    ]
    return replace(screen, findings=ranked(findings, screen, whole))


def _of_both(whole: Speculation | None, found: Speculation | None) -> Speculation | None:
    """Acceptance of all steps, with what drafts cost at the screen's batch size."""
    if whole is None or found is None:
        return whole
    return replace(whole, cost=found.cost)


def _told_timed(steps: Steps, timed: int) -> Iterator[str]:
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


def _ahead_us(placed: pd.DataFrame, steps: pd.DataFrame) -> float:
    """How long kernels of these steps waited on their stream for the one before them."""
    if "ahead_ns" not in placed:
        return 0.0
    chosen = ~copies_in(placed) & placed["step"].isin(steps.index).to_numpy()
    return int(placed["ahead_ns"].to_numpy()[chosen].sum()) / 1e3


def _dependent(sums: pd.DataFrame, run: Run, all_us: float) -> Iterator[str]:
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
    bundle: Bundle, rank: int, steps: Steps, coverage: Coverage, books: tuple[Books, ...]
) -> tuple[str, ...]:
    """The notes of a report, what was lost first."""
    return (
        *_notes_of_recording(bundle, rank),
        *_notes_of_places(bundle, rank, coverage),
        *_notes_of_steps(bundle, steps, books),
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


def _notes_of_steps(bundle: Bundle, steps: Steps, books: tuple[Books, ...]) -> Iterator[str]:
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
    if books and abs(books[0].residual_percent) > _GOOD_BOOKS_PERCENT:
        yield (
            f"The books are off by {books[0].residual_percent:.1f} % of the step time: kernels "
            "ran outside the step that launched them."
        )
    if books and books[0].engine_us is None and not bundle.imported:
        yield (
            "The scheduler's own record is missing for some steps: their token counts assume one "
            "token per decoding request."
        )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _of_steps(placed: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    own = positions(steps.index.to_numpy(), placed["step"].to_numpy()) >= 0
    own &= ~copies_in(placed)
    columns = placed[["start_ns", "end_ns"]]
    return columns if own.all() else columns[own]


def _wall_us(steps: pd.DataFrame, batch: int | None) -> float:
    """How long the steps took, piece by piece: between two pieces others may have run."""
    if batch is not None:  # and between two steps of one batch size
        return float(steps["step_us"].sum())
    pieces = steps.groupby("piece")
    return float((pieces["finish_ns"].max() - pieces["begin_ns"].min()).sum()) / 1e3


def _modules(bundle: Bundle, rank: int) -> tuple[ModuleRow, ...]:
    layers = layers_of(bundle, rank)
    stored = stored_as(tensors_of(bundle, rank))
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
    heads = _heads_of_drafter(bundle.frame("tensors", rank))
    return tuple(sorted((*rows, *heads), key=lambda row: -row.bytes))


def _heads_of_drafter(tensors: pd.DataFrame) -> Iterator[ModuleRow]:
    """The matrices with which a drafter computes logits, where it has its own."""
    for entry in weights_of_tensors(tensors, tied=False, drafter=True):
        if entry.component == LM_HEAD and entry.elements:
            row = tensors.loc[entry.tensor]
            narrow = entry.dtype if entry.quantized else ""
            yield ModuleRow(
                LM_HEAD, str(row["type"]), "", "", str(row["dtype"]), str(row["shape"]), 1,
                entry.bytes, narrow, DRAFTER,
            )  # fmt: skip


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
    count = len(steps) if steps_by(bundle, rank) != NOTHING else 0
    return RankRow(rank, count, step_us, kernels_us, gap_us, **share)
