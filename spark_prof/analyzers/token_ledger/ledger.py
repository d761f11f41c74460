"""The token ledger: a mean step taken apart into components and gaps, by phase and batch size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.lookup import NameColumn
from spark_prof.analyzers.order import CODES
from spark_prof.analyzers.placement import COPIES
from spark_prof.analyzers.token_ledger.charging import Charges, charge
from spark_prof.analyzers.token_ledger.model import (
    HOST,
    LAUNCH_GAPS,
    Ledger,
    LedgerRow,
    StepSpread,
)
from spark_prof.analyzers.token_ledger.splitting import Work
from spark_prof.analyzers.windows import tokens_per_sequence
from spark_prof.vocabulary import COMPONENTS, PHASES

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_MOST_BATCH_SIZES = 16
_WINDOW = ("begin_ns", "finish_ns")
_TIMES = (-(1 << 61), 1 << 62)
"""From before the epoch to a century from now: no two such times are further apart than a number
of ns can tell."""


def token_ledgers(
    placed: pd.DataFrame, steps: pd.DataFrame, sums: pd.DataFrame
) -> tuple[Ledger, ...]:
    """One ledger each phase that occurs, decode first; then one each batch size of decode steps.

    Batch sizes are left out where all decode steps have the same one; of many, those with the most
    steps are kept.

    Args:
        placed: everything that ran, from analyzers.placement.place_kernels.
        steps: the analyzed steps, from analyzers.windows.step_windows.
        sums: what analyzers.breakdown.sums_of returned for them.
    """
    begin, finish = (np.clip(steps[name].to_numpy(), *_TIMES) for name in _WINDOW)
    # Where two windows overlap, the later one has the time.
    finish = np.append(np.minimum(finish[:-1], begin[1:]), finish[-1:])
    charges = charge(_work(placed), begin, finish, len(COMPONENTS))
    length = (finish - begin) / 1e3
    per_sequence = tokens_per_sequence(steps).to_numpy(np.float64)
    return tuple(
        _ledger(
            phase,
            batch_size,
            _parts(charges, chosen),
            length[chosen],
            per_sequence[chosen] if phase == "decode" else np.empty(0),
            _layers(sums, phase),
        )
        for phase, batch_size, chosen in _groups(steps)
    )


@dataclass(frozen=True)
class _Part:
    """One part of each of some windows, in us."""

    name: str
    summed: Floats
    charged: Floats
    alone: Floats


def _work(placed: pd.DataFrame) -> Work:
    copies = NameColumn(placed["kind"]).flags(lambda kind: kind in COPIES)
    kind = placed["component"].cat.codes.to_numpy()
    if copies.any():
        kind = np.where(copies, np.int8(CODES["memcpy"]), kind)
    start, end = placed["start_ns"].to_numpy(), placed["end_ns"].to_numpy()
    return Work(start, end, kind, ~copies)


def _parts(charges: Charges, chosen: Flags) -> tuple[_Part, ...]:
    """What the chosen windows consist of: components that occur in them, then the gaps."""
    summed, charged, alone = (
        times[chosen].T / 1e3 for times in (charges.summed, charges.charged, charges.alone)
    )
    work = zip(COMPONENTS, summed, charged, alone, strict=True)
    gaps = ((LAUNCH_GAPS, charges.between[chosen]), (HOST, charges.outside[chosen]))
    return (
        *(_Part(*part) for part in work if part[1].any()),
        *(_Part(name, ns / 1e3, ns / 1e3, ns / 1e3) for name, ns in gaps),
    )


def _groups(steps: pd.DataFrame) -> Iterator[tuple[str, int | None, Flags]]:
    """Phase, batch size and steps of each ledger."""
    phase, size = steps["phase"].astype(str).to_numpy(), steps["decode_requests"].to_numpy()
    for name in ("decode", *(name for name in PHASES if name != "decode")):
        if (chosen := phase == name).any():
            yield name, None, chosen
    decode = (phase == "decode") & (size > 0)
    sizes, counts = np.unique(size[decode], return_counts=True)
    if len(sizes) > 1:
        most = np.argsort(-counts, kind="stable")[:_MOST_BATCH_SIZES]
        for number in sorted(sizes[most].tolist()):
            yield "decode", int(number), decode & (size == number)


def _layers(sums: pd.DataFrame, phase: str) -> dict[str, int]:
    """In how many decoder layers each component ran in steps of that phase."""
    rows = sums[(sums["phase"] == phase) & (sums["layer"] >= 0)]
    counts = rows.groupby("component", observed=True)["layer"].nunique()
    return {str(name): int(count) for name, count in counts.items()}


def _ledger(
    phase: str,
    batch_size: int | None,
    parts: tuple[_Part, ...],
    length: Floats,
    per_sequence: Floats,
    layers: dict[str, int],
) -> Ledger:
    step = float(length.mean())
    known = per_sequence > 0
    # What a token takes of a step's time, where a step may give a sequence several.
    ratio = None
    if known.any() and length[known].any():
        ratio = float((length[known] / per_sequence[known]).mean() / length[known].mean())
    rows = tuple(
        LedgerRow(
            name=part.name,
            summed_us=float(part.summed.mean()),
            charged_us=us,
            alone_us=float(part.alone.mean()),
            share=us / step if step else 0.0,
            ms_per_token=None if ratio is None else us * ratio / 1e3,
            layers=layers.get(part.name, 0),
            per_layer_us=us / layers[part.name] if part.name in layers else None,
            spread=_spread(part.charged),
        )
        for part in parts
        for us in [float(part.charged.mean())]
    )
    return Ledger(
        phase=phase,
        batch_size=batch_size,
        steps=len(length),
        step=_spread(length),
        ms_per_token=None if ratio is None else step * ratio / 1e3,
        overlap_us=sum(row.summed_us - row.charged_us for row in rows),
        rows=rows,
    )


def _spread(us: Floats) -> StepSpread:
    p10, median, p90, p99 = np.quantile(us, [0.1, 0.5, 0.9, 0.99]).tolist()
    return StepSpread(float(us.mean()), median, p10, p90, p99)
