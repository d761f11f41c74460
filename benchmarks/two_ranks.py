"""The owners of several ranks' kernels, by default and against an eager run of the same ranks.

    python -m benchmarks.two_ranks DEFAULT EAGER [--batch N] [--json FILE]

Both are recordings of the same command, with and without --enforce-eager. Of each rank: the kernels
of a decode step, on what their owners stand as shares of the decode steps' time, and what is wrong
against the eager run, node by node (see architecture_compare.py). Beside that, collectives alone in
their order: what each serves and in which layer, whatever kernel makes it. Exit code 1 where a bar
is missed: nothing wrong, proven 95 %, proven or derived 99 %.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.architecture_compare import Owned, compare, decode_step, within
from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.layer_consistency import with_known_layers
from spark_prof.datasets.opened import opened
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle
from spark_prof.vocabulary import BASIS_CLASSES, COPIES

LEAST_PROVEN, LEAST_WITH_OWNER = 0.95, 0.99
"""The least shares of the time that are proven, and proven or derived."""

_MOST_LINES = 40  # lines of what is wrong, a rank and batch


@dataclass(frozen=True)
class RankResult:
    """What came of one rank at one batch size; without an eager step nothing is compared."""

    rank: int
    batch: int
    steps: int  # decode steps of that batch
    kernels: int  # of the usual one, copies left out
    collectives: int  # among them
    shares: dict[str, float]  # of the decode steps' kernel time, by class of basis
    layers: int  # in which kernels have a known owner
    collective_share: float  # of the same time
    compared: int = 0
    compared_collectives: int = 0
    wrong: tuple[str, ...] = ()
    remark: str = ""  # why something was not compared

    @property
    def good(self) -> bool:
        """Whether it meets the bars, as far as it was compared."""
        proven = self.shares["proven"]
        return (
            not self.wrong
            and proven >= LEAST_PROVEN
            and proven + self.shares["derived"] >= LEAST_WITH_OWNER
        )


def batches_of(bundle: Bundle, rank: int) -> dict[int, int]:
    """Batch sizes of the decode steps, with how many there are."""
    steps = bundle.frame("steps", rank, ["phase", "decode_requests"])
    decode = steps[steps["phase"].astype(str) == "decode"]
    sizes, counts = np.unique(decode["decode_requests"].to_numpy(np.int64), return_counts=True)
    return dict(zip(sizes.tolist(), counts.tolist(), strict=True))


def decode_rows(bundle: Bundle, rank: int, batch: int) -> pd.DataFrame:
    """The kernels of all decode steps of that batch size as a report has them."""
    placed = with_known_layers(bundle, rank, place_kernels(bundle, rank))
    steps = bundle.frame("steps", rank, ["step", "phase", "decode_requests"])
    decode_steps = steps[
        (steps["phase"].astype(str) == "decode") & (steps["decode_requests"] == batch)
    ]["step"]
    rows = placed[placed["step"].isin(decode_steps) & ~placed["kind"].astype(str).isin(COPIES)]
    return rows.assign(ns=rows["end_ns"] - rows["start_ns"])


def shares_of(rows: pd.DataFrame) -> dict[str, float]:
    """The shares of the time by class of basis; what is known but in no place is unknown."""
    whole = float(rows["ns"].sum()) or 1.0
    in_class = {name: rows["basis"].isin(bases) for name, bases in BASIS_CLASSES.items()}
    placed = rows["placed"].astype(bool)
    chosen_rows = {name: in_class[name] & placed for name in ("proven", "derived")}
    chosen_rows["guessed"] = in_class["guessed"]
    share = {
        name: float(rows.loc[chosen, "ns"].sum()) / whole for name, chosen in chosen_rows.items()
    }
    return share | {"unknown": max(0.0, 1.0 - sum(share.values()))}


def collectives_apart(eager: Sequence[Owned], other: Sequence[Owned]) -> tuple[int, list[str], str]:
    """Collectives in order, whatever their kernels: how many were compared, what is wrong, why not.

    What is fused with a norm stands in the layer of the norm; it is left out on both sides only by
    a number that differs.
    """
    theirs = [k for k in eager if k.component == "collective"]
    ours = [k for k in other if k.component == "collective"]
    if len(theirs) != len(ours):
        return 0, [], f"{len(ours)} collectives a step, eager {len(theirs)}"
    if [k.name for k in theirs] != [k.name for k in ours]:
        return 0, [], "collectives by other kernels than in the eager run"
    wrong = [
        f"collective {n}: layer {k.layer} {k.role or '(none)'} by {k.basis}, eager in the range of "
        f"layer {truth.range_layer} {truth.range_role or '(none)'}: {k.name}"
        for n, (truth, k) in enumerate(zip(theirs, ours, strict=True))
        if (truth.range_role or truth.range_layer >= 0) and not within(k, truth)
    ]
    return len(ours), wrong, ""


def check(default: Bundle, eager: Bundle | None, rank: int, batch: int, steps: int) -> RankResult:
    """One rank at one batch size."""
    rows = decode_rows(default, rank, batch)
    whole = float(rows["ns"].sum()) or 1.0
    exchanged = rows["component"].astype(str) == "collective"
    has_owner = rows["basis"].isin([*BASIS_CLASSES["proven"], *BASIS_CLASSES["derived"]])
    layers = set(rows.loc[has_owner & (rows["layer"] >= 0), "layer"].tolist())
    step = decode_step(default, batch, rank)
    result = RankResult(
        rank=rank,
        batch=batch,
        steps=steps,
        kernels=len(step),
        collectives=sum(k.component == "collective" for k in step),
        shares=shares_of(rows),
        layers=len(layers),
        collective_share=float(rows.loc[exchanged, "ns"].sum()) / whole,
    )
    remark = ""
    try:
        truth = decode_step(eager, batch, rank) if eager is not None else []
    except (ValueError, KeyError, IndexError) as error:
        truth, remark = [], f"eager: {error}"
    if not truth:
        return replace(result, remark=remark or "no eager recording of this rank")
    compared = compare(truth, step, max(layers, default=-1) + 1)
    exchanges, wrong, why = collectives_apart(truth, step)
    wrong_lines = dict.fromkeys([*compared.wrong, *wrong])
    return replace(
        result,
        compared=compared.compared,
        compared_collectives=exchanges,
        wrong=tuple(wrong_lines),
        remark=why,
    )


def check_all(default: Bundle, eager: Bundle | None, batch: int | None) -> list[RankResult]:
    """All ranks at all batch sizes, or at that one."""
    results = []
    for rank in default.ranks:
        truth = eager if eager is not None and rank in eager.ranks else None
        for size, steps in sorted(batches_of(default, rank).items()):
            if batch in (None, size):
                results.append(check(default, truth, rank, size, steps))
    return results


def table_text(results: Sequence[RankResult]) -> str:
    """The results as lines."""
    lines = ["rank batch steps kernels  proven derived guessed unknown  layers collectives compared"
             " wrong"]  # fmt: skip
    for r in results:
        shares = " ".join(f"{100 * r.shares[name]:6.2f}%" for name in BASIS_CLASSES)
        lines.append(
            f"{r.rank:4} {r.batch:5} {r.steps:5} {r.kernels:7} {shares} {r.layers:7} "
            f"{r.collectives:4} {100 * r.collective_share:5.1f}% {r.compared:8} {len(r.wrong):5}"
            f"{'' if r.good else '  MISSED'}"
        )
        lines += [f"     {r.remark}"] if r.remark else []
        lines += [f"     wrong: {line}" for line in r.wrong[:_MOST_LINES]]
        if len(r.wrong) > _MOST_LINES:
            lines.append(f"     and {len(r.wrong) - _MOST_LINES} more")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the comparison; 2 for input that cannot be read."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("default", help="recording in default execution, of several ranks")
    parser.add_argument("eager", nargs="?", help="recording of the same with --enforce-eager")
    parser.add_argument("--batch", type=int, help="this batch size alone")
    parser.add_argument("--json", type=Path, help="writes the results there as well")
    options = parser.parse_args(arguments)
    try:
        with opened(options.default) as default:
            if options.eager:
                with opened(options.eager) as eager:
                    results = check_all(default, eager, options.batch)
            else:
                results = check_all(default, None, options.batch)
    except CommandError as error:
        print(f"two_ranks: {error}", file=sys.stderr)
        return 2
    if not results:
        print("two_ranks: no decode step was recorded", file=sys.stderr)
        return 2
    print(table_text(results))
    compared = {r.rank for r in results if r.compared}
    alone = {r.rank for r in results} - compared if options.eager else set()
    if alone:
        print(f"nothing of rank {', '.join(map(str, sorted(alone)))} could be compared")
    if options.json:
        options.json.write_text(
            json.dumps([asdict(r) | {"good": r.good} for r in results], indent=1)
        )
    return 0 if all(r.good for r in results) and not alone else 1


if __name__ == "__main__":
    sys.exit(main())
