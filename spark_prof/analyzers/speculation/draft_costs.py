"""What drafts cost a decode step, and what a step without them would take.

A step with drafts, without the time from the drafter's first kernel to its last, takes at least as
long as one without drafts: it computes more tokens. On a GPU that verifies few tokens it takes
hardly longer, since it reads the same weights; only of experts it reads more, as each token takes
some of its own. How many is estimated from both sides: as many as one token takes, or as many as
tokens take that choose alike all over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.ceilings.checkpoint_ceilings import expected_experts
from spark_prof.analyzers.ceilings.config import Config
from spark_prof.analyzers.graph_use import in_graphs_of
from spark_prof.analyzers.lookup import copies_in, mapping_in
from spark_prof.analyzers.speculation.acceptance import (
    MOST,
    by_batch,
    by_context,
    drafts_of,
    positions_of,
    with_outcome,
)
from spark_prof.analyzers.speculation.speculation_rows import DraftCost, DraftPart, Speculation
from spark_prof.analyzers.step_accounting import Steps
from spark_prof.analyzers.token_time import given_tokens, that_count
from spark_prof.arrays import Flags
from spark_prof.rules.components import DRAFTER, DRAFTING, part_of
from spark_prof.traces.bundle import Bundle

_FEWEST = 8
"""Fewer steps without drafts are no time of one."""
_WIDEST = 32
"""Tokens of a step above which a GPU may compute 4-bit weights for longer than it reads them.

60 on a GB10 (125 TFLOPS in BF16 by 273 GB/s) and 148 on an H100; half of the lower one.
"""
_NEARLY_ALL = 0.9
_MOSTLY = 0.8
MODEL = "model"  # what the graphs are for that run the model
_ONE_FIGURE = 0.02  # two estimates of a step that are no further apart are one


@dataclass(frozen=True, eq=False)
class _Drafting:
    """What drafting takes in each decode step, in us, indexed by step; 0 where it does nothing."""

    us: pd.Series
    by: str  # kernels or host


def draft_cost(
    bundle: Bundle,
    rank: int,
    placed: pd.DataFrame,
    steps: pd.DataFrame,
    drafted: pd.Series,
    decode_us: float | None,
) -> DraftCost | None:
    """What the drafts of these steps cost; None where no decode step of them has drafts.

    Args:
        placed: their kernels, as `place_kernels` gives them.
        steps: with `step_us`.
        drafted: keys of the batches that had drafts.
        decode_us: the time of a token in decode steps as the report has it, which may stand on
            others that were not profiled: all times are in its terms.
    """
    decode = that_count(steps)
    decode = decode[(decode["phase"].astype(str) == "decode").to_numpy()]
    sequences, tokens = given_tokens(decode)
    sound = (decode["step_us"] > 0) & (decode["decode_requests"] > 0)
    decode = decode[(sequences > 0) & (tokens > 0) & sound.to_numpy()]
    has_drafts = decode["key"].isin(drafted).to_numpy()
    verify, plain = decode[has_drafts], decode[~has_drafts]
    if verify.empty:
        return None
    theirs = placed[~copies_in(placed) & placed["step"].isin(verify.index).to_numpy()]
    by_drafter = _of_drafter(theirs)
    host = _on_host(bundle, rank, decode)
    drafting = _drafting(placed, decode, verify, host)
    token_us = _time_over_tokens(decode)
    cost = DraftCost(
        steps=len(verify),
        plain_steps=len(plain),
        step_us=_by_sequence(verify["step_us"], verify),
        width=float(verify["decode_tokens"].sum() / verify["decode_requests"].sum()),
        requests=float(verify["decode_requests"].mean()),
        tokens_per_step=float(given_tokens(verify)[1].sum() / given_tokens(verify)[0].sum()),
        token_us=token_us,
        host_us=None if host is None else _by_sequence(host.loc[verify.index].fillna(0.0), verify),
        parts=_parts(theirs[by_drafter], len(verify)),
    )
    if drafting is not None:
        least = (verify["step_us"] - drafting.us.loc[verify.index]).clip(lower=0.0)
        cost = replace(
            cost,
            drafter_us=_by_sequence(drafting.us.loc[verify.index], verify),
            drafter_by=drafting.by,
            plain_most_us=_by_sequence(least, verify),
        )
    on_cpu = bool((theirs["kind"] == "op").all())
    experts = theirs[~by_drafter & (theirs["component"] == "experts").to_numpy()]
    more_us = _experts_us(bundle, rank, experts, cost)
    cost = _without(cost, decode, plain, drafting, more_us, on_cpu=on_cpu)
    outside, longer_us = _outside_graphs(bundle, rank, verify)
    cost = replace(cost, outside_graphs=outside, outside_us=longer_us)
    return _scaled(cost, decode_us / token_us if decode_us else 1.0)


def _without(
    cost: DraftCost,
    decode: pd.DataFrame,
    plain: pd.DataFrame,
    drafting: _Drafting | None,
    more_us: float,
    *,
    on_cpu: bool,
) -> DraftCost:
    """The cost with what a step without drafts would take, or why nothing tells.

    Args:
        more_us: what experts may take less where each sequence has one token.
    """
    measured = _measured(decode, plain, drafting)
    if measured is not None:
        return replace(cost, plain_low_us=measured, plain_high_us=measured, plain_by="steps")
    if drafting is None or cost.plain_most_us is None:
        return replace(cost, why_unknown="drafter")
    if on_cpu:
        return replace(cost, why_unknown="cpu")
    if cost.width * cost.requests > _WIDEST:
        return replace(cost, why_unknown="wide")
    high = cost.plain_most_us
    low = max(high - more_us, 0.0)
    low = low if high - low > _ONE_FIGURE * high else high
    return replace(cost, plain_low_us=low, plain_high_us=high, plain_by="drafter")


def _measured(
    decode: pd.DataFrame, plain: pd.DataFrame, drafting: _Drafting | None
) -> float | None:
    """The mean step without drafts and drafting, as the steps' batch sizes are; None of too few."""
    us = plain["step_us"]
    if drafting is not None:
        us = (us - drafting.us.loc[plain.index]).clip(lower=0.0)
    sizes = us.groupby(plain["decode_requests"].to_numpy()).agg(["size", "mean"])
    enough = sizes.loc[sizes["size"] >= _FEWEST, "mean"]
    expected = decode["decode_requests"].map(enough)
    sequences = given_tokens(decode)[0]
    estimated = expected.notna().to_numpy()
    if sequences[estimated].sum() < _MOSTLY * sequences.sum():
        return None
    return float((expected.to_numpy() * sequences)[estimated].sum() / sequences[estimated].sum())


def _of_drafter(kernels: pd.DataFrame) -> Flags:
    roles = kernels["role"].astype("category")
    drafts = np.array([part_of(str(role)) == DRAFTER for role in roles.cat.categories] + [False])
    flags: Flags = drafts[roles.cat.codes.to_numpy()]
    return flags


def _drafting(
    placed: pd.DataFrame, decode: pd.DataFrame, verify: pd.DataFrame, host: pd.Series | None
) -> _Drafting | None:
    """From the drafter's first kernel to its last; of a drafter without any its time on the host.

    None where hardly any step with drafts has either.
    """
    kernels = placed[placed["step"].isin(decode.index).to_numpy() & ~copies_in(placed)]
    kernels = kernels[_of_drafter(kernels)]
    span = kernels.groupby("step").agg(begin=("start_ns", "min"), end=("end_ns", "max"))
    us = ((span["end"] - span["begin"]) / 1e3).reindex(decode.index)
    for times, by in ((us, "kernels"), (host, "host")):
        if times is not None and times.loc[verify.index].notna().mean() >= _NEARLY_ALL:
            return _Drafting(times.fillna(0.0), by)
    return None


def _on_host(bundle: Bundle, rank: int, decode: pd.DataFrame) -> pd.Series | None:
    """How long the call that drafts takes on the host in each step; None where it is not marked."""
    modules = bundle.frame("modules", rank, ["module", "path"])
    numbers = modules.loc[modules["path"] == DRAFTING, "module"]
    if numbers.empty:
        return None
    ranges = bundle.frame("ranges", rank, ["module", "step", "start_ns", "end_ns"])
    ranges = ranges[ranges["module"].isin(numbers).to_numpy()]
    took = (ranges["end_ns"] - ranges["start_ns"]) / 1e3
    us: pd.Series = took.groupby(ranges["step"].to_numpy()).sum().reindex(decode.index)
    return us if us.notna().any() else None


def _parts(kernels: pd.DataFrame, steps: int) -> tuple[DraftPart, ...]:
    """What each component of the drafter takes in a step, the most expensive first."""
    took = (kernels["end_ns"] - kernels["start_ns"]) / 1e3
    us = took.groupby(kernels["component"].astype(str).to_numpy()).sum() / steps
    rows = us.sort_values(ascending=False, kind="stable").items()
    return tuple(DraftPart(str(name), float(part_us)) for name, part_us in rows if part_us > 0)


def _experts_us(bundle: Bundle, rank: int, experts: pd.DataFrame, cost: DraftCost) -> float:
    """How much less the experts may take in a step with one token of each sequence."""
    config = Config(mapping_in(bundle.facts(rank), "model_config"))
    if experts.empty or not 0 < config.experts_per_token < config.experts:
        return 0.0
    took = float((experts["end_ns"] - experts["start_ns"]).sum()) / 1e3 / cost.steps
    fewer, all_of_them = (
        expected_experts(config.experts, config.experts_per_token, tokens)
        for tokens in (cost.requests, cost.requests * cost.width)
    )
    return took * (1 - fewer / all_of_them)


def _outside_graphs(bundle: Bundle, rank: int, verify: pd.DataFrame) -> tuple[int, float]:
    """How many steps with drafts ran outside of the model's graphs, and by how much longer.

    None where no other step with drafts ran inside of one, or nothing tells.
    """
    rows = bundle.frame("kernels", rank, ["step", "graph_node"])
    rows = rows[rows["step"].isin(verify.index).to_numpy()]
    of_model = in_graphs_of(bundle, rank, MODEL, rows["graph_node"].to_numpy(np.int64))
    inside = np.isin(verify.index.to_numpy(), rows["step"].to_numpy()[of_model])
    if not inside.any() or inside.all():
        return 0, 0.0
    longer = verify.loc[~inside, "step_us"].mean() - verify.loc[inside, "step_us"].mean()
    return int((~inside).sum()), max(float(longer), 0.0)


def _by_sequence(us: pd.Series, steps: pd.DataFrame) -> float:
    """The mean, each step counted for every sequence that got tokens of it."""
    sequences = given_tokens(steps)[0]
    return float((us.to_numpy(np.float64) * sequences).sum() / sequences.sum())


def _time_over_tokens(steps: pd.DataFrame) -> float:
    sequences, tokens = given_tokens(steps)
    return float((steps["step_us"].to_numpy(np.float64) * sequences).sum() / tokens.sum())


def _scaled(cost: DraftCost, factor: float) -> DraftCost:
    """The cost with every time in it so many times as long."""
    times = {
        name: value * factor
        for name, value in vars(cost).items()
        if name.endswith("_us") and value is not None
    }
    parts = tuple(replace(part, us=part.us * factor) for part in cost.parts)
    return replace(cost, **times, parts=parts)


_COLUMNS = ("key", "phase", "decode_requests")


def speculation_of(
    bundle: Bundle,
    rank: int,
    placed: pd.DataFrame,
    steps: pd.DataFrame,
    summary: Steps,
    batch: int | None = None,
) -> Speculation | None:
    """Acceptance and cost of the drafts; None where none were recorded.

    Of 60 drafts in 20 verifications, 42 of them accepted: 2.1 of 3 each.

    Args:
        placed: the rank's kernels, as `place_kernels` gives them.
        steps: the analyzed ones, with `step_us` where anything has times.
        summary: of those steps.
        batch: leaves out steps in which other numbers of requests decode.
    """
    every = bundle.frame("steps", rank, _COLUMNS)
    if batch is not None:
        every = every[(every["decode_requests"] == batch).to_numpy()]
    rows = drafts_of(bundle, every)
    if batch is not None:
        rows = rows[(rows["batch"] == batch).to_numpy()]
    if rows.empty:
        return None
    settled, keys = with_outcome(rows), rows["key"].drop_duplicates()
    headline = summary.headline_and_screen
    # Where other steps were only timed, a token takes what it takes in them.
    alone = (
        headline.screen.decode_only_us
        if headline is not None and headline.screen.timed_steps
        else None
    )
    method, most = _draft_settings(bundle.facts(rank))
    return Speculation(
        method=method,
        most=most,
        requests=int(rows.loc[rows["request"] >= 0, "request"].nunique()),
        verified=len(settled),
        unknown=len(rows) - len(settled),
        proposed=int(settled["proposed"].sum()),
        accepted=int(settled["accepted"].sum()),
        positions=positions_of(settled),
        contexts=by_context(settled),
        batches=by_batch(settled, _step_us(steps, keys)),
        cost=draft_cost(bundle, rank, placed, steps, keys, alone) if "step_us" in steps else None,
    )


def _step_us(steps: pd.DataFrame, keys: pd.Series) -> dict[int, float]:
    """The mean decode step with drafts of each batch size."""
    if "step_us" not in steps:
        return {}
    usual = that_count(steps)
    chosen = (usual["phase"].astype(str) == "decode") & usual["key"].isin(keys)
    means = usual[chosen.to_numpy()].groupby("decode_requests")["step_us"].mean()
    sizes = means.index.to_numpy(np.int64).tolist()
    return dict(zip(sizes, means.to_numpy(np.float64).tolist(), strict=True))


def _draft_settings(facts: Mapping[str, Any]) -> tuple[str, int | None]:
    """The method and the number of drafts that the engine was started with."""
    config = mapping_in(mapping_in(facts, "engine_config"), "speculative_config")
    text = str(config.get("num_speculative_tokens") or "")
    most = int(text) if text.isascii() and text.isdecimal() and len(text) < 4 else 0
    return str(config.get("method") or ""), most if 0 < most <= MOST else None
