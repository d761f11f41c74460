"""Puts a whole report together from a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.answers.answering import answers_of
from spark_prof.analyzers.breakdown import component_rows, kernel_rows, layer_rows, sums_of
from spark_prof.analyzers.classify.code_times import code_of, conflicts_of
from spark_prof.analyzers.classify.evidence import evidence_of
from spark_prof.analyzers.conversions.summary import conversions_of
from spark_prof.analyzers.copies import copies_of
from spark_prof.analyzers.counters.summary import counters_of
from spark_prof.analyzers.fallbacks.audit import audit_of
from spark_prof.analyzers.fallbacks.schemes import bits_of
from spark_prof.analyzers.findings.ranking import findings_of
from spark_prof.analyzers.gpu import gpu_of
from spark_prof.analyzers.invariants import Facts, checked
from spark_prof.analyzers.layer_consistency import LayerTables, unknown_layers, without_layers
from spark_prof.analyzers.lookup import NameColumn, positions
from spark_prof.analyzers.markers import markers_of
from spark_prof.analyzers.model import (
    Collectives,
    Coverage,
    KernelRow,
    ModuleRow,
    RankRow,
    Report,
    Steps,
)
from spark_prof.analyzers.notes import notes_of
from spark_prof.analyzers.overhead import overhead_of
from spark_prof.analyzers.placement import COPIES, place_kernels
from spark_prof.analyzers.ranks.summary import RankShare, collectives_of
from spark_prof.analyzers.roofline.summary import Recorded, roofline_of
from spark_prof.analyzers.roofline.tensors import stored_as
from spark_prof.analyzers.run import run_of
from spark_prof.analyzers.shapes.summary import shapes_of
from spark_prof.analyzers.step_accounting import books, spread, step_books
from spark_prof.analyzers.step_time import token_ledgers
from spark_prof.analyzers.windows import timed_windows, tokens_per_sequence
from spark_prof.cores import cores
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle, table_file
from spark_prof.traces.measured import Measured
from spark_prof.traces.readers.engine_log import EngineLog
from spark_prof.vocabulary import BASIS_CLASSES


@dataclass(frozen=True)
class Summary:
    """A report, and the rows that it sums up.

    Attributes:
        kernels: what `place_kernels` returned, `stream` among it, without the layers whose kernels
            are not known.
        steps: what `step_books` returned; of kernels without times what `step_windows` did.
        timed: whether it is known when the kernels ran.
    """

    report: Report
    kernels: pd.DataFrame
    steps: pd.DataFrame
    timed: bool


def summarize(
    bundle: Bundle,
    rank: int | None = None,
    log: EngineLog | None = None,
    measured: Measured | None = None,
) -> Report:
    """The report of one rank of a bundle; arguments and errors are those of `summary_of`."""
    return summary_of(bundle, rank, log, measured).report


def summary_of(
    bundle: Bundle,
    rank: int | None = None,
    log: EngineLog | None = None,
    measured: Measured | None = None,
) -> Summary:
    """The report of one rank of a bundle, with the rows that it was made of.

    Args:
        bundle: an opened bundle.
        rank: the rank, the lowest one if None.
        log: what the engine printed in the same run.
        measured: ceilings of its GPU that were measured; those of another GPU are not used.

    Raises:
        CommandError: the bundle has no such rank.
    """
    if rank is None:
        rank = bundle.ranks[0] if bundle.ranks else 0
    if rank not in bundle.ranks:
        ranks = ", ".join(map(str, bundle.ranks)) or "none"
        raise CommandError(f"{bundle.path} has no rank {rank}; it has {ranks}")
    if not bundle.meta.tables[table_file("steps", rank)]:
        raise CommandError(f"{bundle.path} has no step of rank {rank}; record again")
    samples = bundle.frame("counters", rank)
    placed = place_kernels(
        bundle, rank, ["stream", "module", *(["graph_node"] if len(samples) else [])]
    )
    # Nothing but sums, such as a table of kernels, has no times at which anything ran.
    timed = not bundle.meta.settings.get("summed")
    windows = timed_windows(bundle, rank, placed)
    steps = windows.steps
    every = placed
    if len(windows.left_out):
        # Kernels of another time line would fill the gaps of this one.
        placed = placed[~placed["step"].isin(windows.left_out)].reset_index(drop=True)
    with ThreadPoolExecutor(cores()) as pool:
        summing = pool.submit(sums_of, placed, steps["phase"])
        if timed:
            steps = step_books(steps, placed)
        in_all_layers = LayerTables.of(bundle, rank, summing.result())
    unknown = unknown_layers(in_all_layers)
    sums = without_layers(in_all_layers.sums, unknown)
    every = without_layers(every, unknown)
    evidence = evidence_of(bundle, rank)
    by_kernel = kernel_rows(sums, evidence.label)
    summary = replace(_steps(steps), left_out=len(windows.left_out))
    coverage = _coverage(sums, by_kernel)
    accounting = books(steps) if timed else ()
    busy_us = accounting[0].busy_us if timed else None
    collectives, shares = collectives_of(bundle) if timed else (Collectives(), {})
    counters = counters_of(
        samples,
        placed,
        steps,
        bundle.frame("layers", rank, ["component", "bytes"]),
        _object(bundle.facts(rank), "model_config"),
    )
    # What looks at every kernel once more; NumPy lets the cores share it.
    with ThreadPoolExecutor(cores()) as pool:
        accounted = pool.submit(token_ledgers, placed, steps, sums) if timed else None
        converting = pool.submit(
            conversions_of,
            without_layers(placed, unknown),
            steps,
            summary,
            by_kernel,
            evidence.label,
            timed=timed,
        )
        shaping = pool.submit(shapes_of, bundle, rank, every, steps, sums, counters)
        copies = copies_of(placed, steps.index, busy_us)
    ledgers = accounted.result() if accounted else ()
    decode = next((ledger for ledger in ledgers if ledger.phase == "decode"), None)
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
            _rank(bundle, r, steps if r == rank else None, shares.get(r))
            for r in bundle.ranks
            if timed
        ),
        findings=(),
        notes=(
            *windows.notes,
            # What fails a check is told there, and is not for want of a place.
            *notes_of(bundle, rank, summary, _coverage(in_all_layers.sums, by_kernel), accounting),
            *evidence.lost,
        ),
        collectives=collectives,
        overhead=overhead_of(bundle, rank) if timed else (),
        counters=counters,
        markers=markers_of(bundle, rank),
        machine_code=code_of(evidence, by_kernel),
        conflicts=conflicts_of(evidence, by_kernel),
        roofline=roofline_of(
            # What a kernel reads is proven by the kernel, whatever the others of its layer do.
            Recorded.of(bundle, rank, placed, steps, in_all_layers.sums),
            by_kernel,
            summary,
            counters,
            measured,
        ),
        shapes=shaping.result(),
        tokens=ledgers,
        audit=audit_of(bundle, rank, by_kernel, _decode_sizes(steps), log),
    )
    report = checked(
        Facts(
            report,
            _of_steps(placed, steps) if timed else placed[:0],
            in_all_layers,
        )
    )
    report = replace(report, findings=findings_of(report), answers=answers_of(report))
    return Summary(report, every, steps, timed)


def _of_steps(placed: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Start and end of the kernels of those steps, copies left out."""
    own = positions(steps.index.to_numpy(), placed["step"].to_numpy()) >= 0
    own &= ~NameColumn(placed["kind"]).flags(lambda kind: kind in COPIES)
    columns = placed[["start_ns", "end_ns"]]
    return columns if own.all() else columns[own]


def _wall_us(steps: pd.DataFrame) -> float:
    """How long the steps took, piece by piece: between two pieces others may have run."""
    pieces = steps.groupby("piece")
    return float((pieces["finish_ns"].max() - pieces["begin_ns"].min()).sum()) / 1e3


def _decode_sizes(steps: pd.DataFrame) -> dict[int, int]:
    """How many decode steps compute how many tokens."""
    tokens = steps.loc[steps["phase"].astype(str) == "decode", "decode_tokens"]
    sizes, counts = np.unique(tokens.to_numpy(np.int64), return_counts=True)
    return dict(zip(sizes.tolist(), counts.tolist(), strict=True))


def _steps(steps: pd.DataFrame) -> Steps:
    """The steps, without times where nothing accounts for them."""
    if "step_us" not in steps:
        steps = steps.assign(step_us=np.nan, gap_us=np.nan)
    phase = steps["phase"].astype(str)
    decode = steps[phase == "decode"]
    counts = phase.value_counts()
    tokens = steps["output_tokens"].fillna(steps["decode_requests"])
    per_sequence = tokens_per_sequence(decode)
    return Steps(
        count=len(steps),
        prefill=int(counts.get("prefill", 0)),
        decode=int(counts.get("decode", 0)),
        mixed=int(counts.get("mixed", 0)),
        unknown=int(counts.get("unknown", 0)),
        tokens=int(tokens.sum()),
        scheduled_tokens=int(steps["prefill_tokens"].sum() + steps["decode_tokens"].sum()),
        prompt_tokens=int(steps["prefill_tokens"].sum()),
        decode_us=spread(decode["step_us"]),
        prefill_us=spread(steps.loc[phase == "prefill", "step_us"]),
        mixed_us=spread(steps.loc[phase == "mixed", "step_us"]),
        unknown_us=spread(steps.loc[phase == "unknown", "step_us"]),
        tpot_us=spread(decode["step_us"] / per_sequence),
        host_gap_us=spread((decode if len(decode) else steps)["gap_us"]),
    )


def _coverage(sums: pd.DataFrame, rows: tuple[KernelRow, ...]) -> Coverage:
    ns, placed = sums["ns"], sums["placed"]
    total = int(ns.sum()) or 1
    named = sums["component"] != "other"
    of = {name: sums["basis"].isin(bases) for name, bases in BASIS_CLASSES.items()}
    known = of["proven"] | of["derived"]

    def share(chosen: pd.Series) -> float:
        return int(ns[chosen].sum()) / total

    return Coverage(
        layer=share(placed & known),
        component=share(named & known),
        engine=sum(row.share for row in rows if row.engine != "unknown"),
        unplaced_us=int(ns[~placed & ~named].sum()) / 1e3,
        placed=share(placed & (known | of["guessed"])),
        proven=share(placed & of["proven"]),
        derived=share(placed & of["derived"]),
        guessed=share(of["guessed"]),
        unknown=share(of["unknown"] | (known & ~placed)),
    )


def _object(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = facts.get(name)
    return value if isinstance(value, dict) else {}


def _modules(bundle: Bundle, rank: int) -> tuple[ModuleRow, ...]:
    layers = bundle.frame("layers", rank)
    if layers.empty:
        return ()
    stored = stored_as(bundle.frame("tensors", rank))
    narrow = {path: form for path, form in stored.items() if (bits_of(form) or 16) < 16}
    layers = layers.assign(format=[narrow.get(path, "") for path in layers["path"]])
    keys = ["component", "type", "quant_method", "kernel", "weight_dtype", "shape", "format"]
    groups = layers.groupby(keys, observed=True, sort=False)["bytes"].agg(["size", "sum"])
    rows = [
        ModuleRow(component, kind, method, kernel, dtype, shape, int(size), int(total), form)
        for (component, kind, method, kernel, dtype, shape, form), (size, total) in zip(
            groups.index.tolist(), groups.to_numpy().tolist(), strict=True
        )
    ]
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def _rank(
    bundle: Bundle, rank: int, steps: pd.DataFrame | None, share: RankShare | None
) -> RankRow:
    if not bundle.meta.tables[table_file("steps", rank)]:
        return RankRow(rank, 0, 0.0, 0.0, 0.0)
    if steps is None:
        kernels = bundle.frame("kernels", rank, ["kind", "step", "start_ns", "end_ns"])
        windows = timed_windows(bundle, rank, kernels)
        if len(windows.left_out):
            kernels = kernels[~kernels["step"].isin(windows.left_out)]
        steps = step_books(windows.steps, kernels)
    sums = steps[["step_us", "kernels_us", "gap_us"]].sum()
    row = RankRow(
        rank, len(steps), float(sums["step_us"]), float(sums["kernels_us"]), float(sums["gap_us"])
    )
    return share.added_to(row) if share else row
