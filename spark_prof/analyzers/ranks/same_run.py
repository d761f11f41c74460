"""Whether recordings that were made by different calls of `record` are of one run of vLLM.

With vLLM's own way to several hosts (`--nnodes`) each host starts a command of its own, under a
recorder of its own. What they recorded says whether it was one run: the ranks of a replica worked
on the same batches, in the same order and at the same time, and met at one address.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spark_prof.analyzers.rank_layout import clock_name, layout_of
from spark_prof.analyzers.ranks.align_ranks import join_steps, teamwork_of
from spark_prof.analyzers.ranks.rank_clocks import clocks_of
from spark_prof.traces.bundle import Bundle

_MOSTLY = 0.9
_CLOCKS_APART_S = 1.0  # by how much clocks that NTP sets may be apart; no engine starts as fast
_MASTER = ("--master-addr", "--master-port")
_ANY_HOST = ("127.0.0.1", "localhost", "0.0.0.0", "::1")


def call_of(part: Bundle) -> str:
    """What names the call of `record` that made a part; empty where nothing does."""
    runs = [str(fact.get("run") or "") for fact in part.meta.facts.values()]
    return next(filter(None, [*runs, str(part.meta.settings.get("run") or "")]), "")


def made_by_one_call(parts: Sequence[Bundle]) -> bool:
    """Whether one call of `record` made all parts, as where Ray spreads a command over hosts."""
    return len({call_of(part) for part in parts}) == 1 and bool(call_of(parts[0]))


def why_other_runs(first: Bundle, second: Bundle) -> str:
    """Why two parts are of different runs; empty where what they recorded fits together."""
    for option in _MASTER:
        masters = [_option(part.meta.command, option) for part in (first, second)]
        if all(masters) and masters[0] != masters[1] and not set(masters) & set(_ANY_HOST):
            return f"{option} is {masters[0]} for one and {masters[1]} for the other"
    steps = [
        {rank: part.frame("steps", rank, ["step", "key", "start_ns", "end_ns"])
         for rank in part.ranks}
        for part in (first, second)
    ]  # fmt: skip
    if empty := [part.path for part, steps_of_part in zip((first, second), steps, strict=True)
                 if not any(map(len, steps_of_part.values()))]:  # fmt: skip
        return f"{empty[0]} has no step, so that nothing tells"
    layout = layout_of(first)
    world = layout.tensor * layout.pipeline * layout.told_replicas
    if layout.sizes_known and max(*first.ranks, *second.ranks) >= world:
        return f"one has rank {max(*first.ranks, *second.ranks)}, the run has {world} ranks"
    # How many ranks work on one batch.
    size = layout.tensor * layout.pipeline if layout.sizes_known else 1 << 30
    together = [(a, b) for a in first.ranks for b in second.ranks if a // size == b // size]
    spans = [
        (min(int(rows["start_ns"].min()) for rows in steps_of_part.values() if len(rows)),
         max(int(rows["end_ns"].max()) for rows in steps_of_part.values() if len(rows)))
        for steps_of_part in steps
    ]  # fmt: skip
    for a, b in together[:1]:
        ours, theirs = (
            steps_of_part[rank].sort_values("step")
            for steps_of_part, rank in zip(steps, (a, b), strict=True)
        )
        joined = join_steps({0: ours, 1: theirs})
        if joined.empty:
            return f"no step of rank {a} is one of rank {b}"
        places = [
            np.searchsorted(rows["step"].to_numpy(), joined[column].to_numpy())
            for column, rows in ((0, ours), (1, theirs))
        ]
        between = max(int(place[-1] - place[0]) + 1 for place in places)
        if len(joined) < _MOSTLY * between:
            return (
                f"their steps differ: of {between:,} in a row ranks {a} and {b} have "
                f"{len(joined):,} in common"
            )
        spans = [
            (int(rows["start_ns"].iloc[place[0]]), int(rows["end_ns"].iloc[place[-1]]))
            for rows, place in zip((ours, theirs), places, strict=True)
        ]
    apart_s = (max(start for start, _ in spans) - min(end for _, end in spans)) / 1e9
    clocks = {clock_name(part.facts(part.ranks[0])) for part in (first, second)}
    if apart_s > (_CLOCKS_APART_S if len(clocks) > 1 else 0):
        return f"one had ended {apart_s:,.1f} s before the other began, by their hosts' clocks"
    return ""


def why_torn(bundle: Bundle) -> str:
    """Why a bundle's parts cannot be of one run; empty where its collectives fit together.

    Nobody leaves a collective before the last has come, on whatever clocks: of two runs, of which
    each keeps its own time, no offset between the clocks makes that true.
    """
    layout = layout_of(bundle)
    for clock in clocks_of(bundle, layout, teamwork_of(bundle, layout)):
        if clock.met and clock.offset is None:
            return (
                f"by no clock do the collectives of ranks {clock.reference} and {clock.rank} fit "
                "together"
            )
    return ""


def _option(command: Sequence[str], name: str) -> str:
    """The value of an option, empty where it is not given."""
    for place, word in enumerate(command):
        if word == name:
            return command[place + 1] if command[place + 1 :] else ""
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return ""
