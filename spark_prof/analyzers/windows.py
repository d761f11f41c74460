"""Where each step begins and ends on the device's time line.

A step begins when its scheduler begins to choose the batch, but not before the device has finished
the step before it: with asynchronous scheduling the host runs ahead. It ends where the next one
begins, or before that with the scheduler's update when nothing was left to do; the last one with
its update or its last kernel, whichever is later.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.clocks import Believed, believed_steps
from spark_prof.analyzers.lookup import positions
from spark_prof.analyzers.ranks.layout import layout_of
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.tables import empty_table

_PAUSE_NS = 50_000_000
"""Without the scheduler's record, steps further apart than this had the engine idle between."""


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of a rank's steps, and which steps have none.

    Attributes:
        steps: what `step_windows` returns.
        left_out: numbers of the watched steps whose times cannot be believed.
        notes: why, one line each.
    """

    steps: pd.DataFrame
    left_out: npt.NDArray[np.int64]
    notes: tuple[str, ...]


def step_windows(bundle: Bundle, rank: int, kernels: pd.DataFrame) -> pd.DataFrame:
    """One row per recorded step of a rank, in order; arguments and errors as `timed_windows`.

    Returns:
        The watched steps of the `steps` table whose times can be believed, indexed by step, with
        `begin_ns` and `finish_ns` of the step's window, `engine_ns` (the iteration's length by the
        engine's own clock, NaN where unknown), `output_tokens` and `output_requests` (NaN where
        unknown).
    """
    return timed_windows(bundle, rank, kernels).steps


def timed_windows(bundle: Bundle, rank: int, kernels: pd.DataFrame) -> Windows:
    """The same, with what was left out because a clock was set.

    Args:
        bundle: the bundle.
        rank: the rank.
        kernels: the rank's kernels, at least `step` and `end_ns`; with `start_ns` more faults are
            seen.

    Raises:
        CommandError: the table is damaged: two steps have one number, or no time can be believed.
    """
    steps = bundle.frame("steps", rank).sort_values("step").set_index("step", drop=False)
    if not steps.index.is_unique:
        raise CommandError(
            f"{bundle.path} has two steps of one number in rank {rank}; it is damaged"
        )
    steps = steps[steps["watched"]]
    steps = steps.join(_engine_rows(bundle, steps))
    # Sums alone have no times to judge.
    timed = not bundle.meta.settings.get("summed")
    everything = Believed(np.ones(len(steps), bool), np.zeros(len(steps), bool))
    awaited = rank in layout_of(bundle).output_ranks
    believed = (
        believed_steps(steps, kernels, one_clock=bundle.imported, awaited=awaited)
        if timed
        else everything
    )
    left_out = steps.index.to_numpy(np.int64)[~believed.kept]
    if len(left_out) == len(steps) > 0:
        [reason, *_] = believed.notes
        raise CommandError(f"{bundle.path} has no step whose times can be believed: {reason}")
    steps, breaks = steps[believed.kept], believed.breaks[believed.kept]
    last_end = np.zeros(len(steps) + 1, np.int64)
    place = positions(steps.index.to_numpy(), kernels["step"].to_numpy())
    # What belongs to no step of these has its place behind the last one.
    np.maximum.at(last_end, place, kernels["end_ns"].to_numpy())
    scheduled = steps["schedule_ns"].fillna(steps["start_ns"]).to_numpy(np.int64)
    updated = steps["update_ns"].fillna(steps["end_ns"]).to_numpy(np.int64)

    piece = steps["piece"].to_numpy()
    same_piece = np.append(False, piece[1:] == piece[:-1])[: len(steps)] & ~breaks
    had_work = steps["unfinished"].fillna(0).to_numpy() > 0
    apart = steps["start_ns"].to_numpy()[1:] - steps["end_ns"].to_numpy()[:-1]
    known = steps["unfinished"].notna().to_numpy()
    busy = np.where(known[:-1], had_work[:-1], apart < _PAUSE_NS)
    follows = same_piece & np.append(False, busy.astype(bool))

    # The first step of a piece may wait for a flush, or for the recording to get ready.
    alone = np.where(same_piece, scheduled, steps["start_ns"])
    # A step without kernels ends on the device when the one before it does.
    device_done = np.maximum.accumulate(last_end[:-1])
    before = np.append(0, device_done[:-1])
    begin = np.where(follows, np.maximum(scheduled, before), alone)
    begin = np.maximum.accumulate(begin)
    finish = np.maximum.reduce([updated, device_done, begin])
    finish[:-1] = np.where(follows[1:], begin[1:], np.minimum(finish[:-1], begin[1:]))

    period = np.where(follows, updated - np.append(0, updated[:-1]), updated - alone)
    engine = np.where(steps["update_ns"].notna(), period.astype(np.float64), np.nan)
    windows = steps.assign(begin_ns=begin, finish_ns=finish, engine_ns=engine)
    return Windows(windows, left_out, believed.notes)


def tokens_per_sequence(steps: pd.DataFrame) -> pd.Series:
    """How many tokens each step gave a sequence, NaN where no sequence got any.

    Without the scheduler's record every decoding request is taken to get one.
    """
    tokens = steps["output_tokens"].fillna(steps["decode_requests"])
    requests = steps["output_requests"].fillna(steps["decode_requests"])
    per_sequence: pd.Series = tokens / requests.replace(0, np.nan)
    return per_sequence


def _engine_rows(bundle: Bundle, steps: pd.DataFrame) -> pd.DataFrame:
    """The scheduler's record of each step, indexed by step."""
    times = ["schedule_ns", "update_ns"]
    counts = ["output_tokens", "output_requests", "unfinished"]
    records = [bundle.frame("engine", r).assign(replica=r) for r in _replicas(bundle)]
    engine = pd.concat([empty_table("engine").to_pandas(), *records])
    engine = engine[engine["update_ns"] > 0]
    pairs = steps[["step", "key", "start_ns"]].reset_index(drop=True).merge(engine, on="key")
    pairs = pairs[pairs["schedule_ns"] <= pairs["start_ns"]]
    # The same batch can come back after a preemption: take the latest before the step.
    pairs = pairs.sort_values("schedule_ns").drop_duplicates("step", keep="last")
    # Nullable integers keep every digit of the times beside rows that have none.
    types = dict.fromkeys(times, "Int64") | dict.fromkeys(counts, "float64")
    return pairs.set_index("step")[times + counts].astype(types).reindex(steps.index)


def _replicas(bundle: Bundle) -> list[int]:
    names = [name for name in bundle.meta.tables if name.startswith("engine-rank")]
    return [int(n.removeprefix("engine-rank").removesuffix(".parquet")) for n in names]
