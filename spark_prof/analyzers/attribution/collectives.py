"""What a collective serves: the work whose result it exchanges between ranks.

Whatever exchanges data is of the component `collective`, wherever it was launched. What it serves
is its role: `self_attn.o_proj → all_reduce`. The module that was open at its launch says so. Where
none was, as inside a compiled model, it is what ran before it on its own stream: an all-reduce
holds a table of the ranks' buffers and an output whose memory is used in turn, so neither memory
nor data tells. A stream that runs collectives alone, such as NCCL's own, tells nothing; then it is
what was launched before it. Where the owner of that is unknown, so is what the collective serves.
One that norms what it has summed as well reads the weight of that norm, maybe the next layer's.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.order import CODES, launch_order, nodes_of
from spark_prof.analyzers.attribution.owners import BASIS, PROOFS, Ownership
from spark_prof.analyzers.classify.classifier import classify, collective_kind, fills, finishes_gemm
from spark_prof.analyzers.lookup import Integers, NameColumn, combined, copies_in
from spark_prof.arrays import Flags
from spark_prof.traces.bundle import Bundle
from spark_prof.vocabulary import COMPONENTS, EXCHANGES, FUSES

_WHERE = ("start_ns", "stream", "correlation", "graph_node")
_OTHER_KIND = "exchange"


def serve(
    bundle: Bundle,
    rank: int,
    rows: pd.DataFrame,
    ownership: Ownership,
    exchanges: Flags,
    *,
    fused: bool = False,
) -> None:
    """Gives collectives that no module owns the owner of what they serve, in place.

    Args:
        rows: name, kind, start_ns and step, in order of start.
        ownership: what is known of each row; of a collective it is what it serves.
        exchanges: which rows are collectives.
        fused: also those whose weight told the norm that is fused with them.
    """
    step = rows["step"].to_numpy()
    by_weight = exchanges & (ownership.basis == BASIS["weight"]) & fused
    bare = ~ownership.settled | (ownership.basis == BASIS["order"]) | by_weight
    bare &= exchanges & (step >= 0)
    if not bare.any():
        return
    at = _launched(bundle, rank, rows, np.isin(step, np.unique(step[bare])))
    row = at.index.to_numpy()
    passed = exchanges | copies_in(rows) | NameColumn(rows["name"]).flags(hands_on)
    # In a model's order the next layer's norm begins right behind the last product of one.
    passed |= (ownership.basis == BASIS["order"]) & (ownership.component == CODES["norm"])
    on_stream, latest = _work_before(~passed[row], step[row], at["stream"].to_numpy())
    has_owner = ownership.settled & (ownership.component >= 0)
    places = np.flatnonzero(bare[row] & (latest >= 0))
    mine, last = row[on_stream[places]], row[latest[places]]
    # A stream that rarely runs anything else may last have worked for another layer.
    apart = has_owner[last] & has_owner[mine] & (ownership.layer[last] != ownership.layer[mine])
    alone = (on_stream[places] < 0) | apart
    source, to = np.where(alone, last, mine), row[places]
    guesses = ~np.isin(ownership.basis[source], [*PROOFS, BASIS["flow"]])
    ownership.layer = ownership.layer.copy()
    by_order = (
        (ownership.basis[to] == BASIS["order"])
        & ~has_owner[source]
        & (ownership.layer[source] >= 0)
    )
    ownership.layer[to[by_order]] = ownership.layer[source[by_order]]
    ownership.component[to[by_order]] = -1
    receives = has_owner[source] & ~(guesses & by_weight[to])
    # What prepares the norm that is fused with it is not what it serves.
    receives &= ~(by_weight[to] & (ownership.role[source] == ownership.role[to]))
    source, to, alone = source[receives], to[receives], alone[receives]
    proven = np.isin(ownership.basis[source], PROOFS)
    basis = np.where(proven, BASIS["flow"], ownership.basis[source])
    basis[proven & ~alone] = BASIS["stream"]
    ownership.fused = np.where(by_weight, ownership.role, 0)
    ownership.fused[np.setdiff1d(np.flatnonzero(by_weight), to)] = 0
    # A layer that was open at the launch is believed before that of what ran before.
    fixed = (ownership.layer[to] >= 0) & ~ownership.settled[to]
    ownership.layer[to] = np.where(fixed, ownership.layer[to], ownership.layer[source])
    ownership.component[to], role = ownership.component[source], ownership.role[source]
    ownership.role[to] = role if ownership.of_module is None else ownership.of_module[role]
    ownership.basis[to], ownership.settled[to] = basis, True


def _work_before(works: Flags, steps: Integers, stream: Integers) -> tuple[Integers, Integers]:
    """The work that was last launched before each place: on its own stream, and on any."""
    by_stream = np.lexsort((stream, steps))
    near = _latest(works[by_stream], steps[by_stream], stream[by_stream])
    on_stream = np.full(len(works), -1)
    on_stream[by_stream] = np.where(near >= 0, by_stream[near], -1)
    return on_stream, _latest(works, steps)


def between_layers(
    bundle: Bundle, rank: int, rows: pd.DataFrame, ownership: Ownership, exchanges: Flags
) -> None:
    """Gives collectives of which nothing tells what they serve the layer around them, in place."""
    step = rows["step"].to_numpy()
    bare = exchanges & (step >= 0) & ~ownership.settled & (ownership.layer < 0)
    if not bare.any():
        return
    at = _launched(bundle, rank, rows, np.isin(step, np.unique(step[bare])))
    row = at.index.to_numpy()
    has_owner, steps = (ownership.settled & ~exchanges)[row], step[row]
    places = np.flatnonzero(bare[row])
    before = _latest(has_owner, steps)[places]
    after = len(row) - 1 - _latest(has_owner[::-1], steps[::-1])[len(row) - 1 - places]
    inside = (before >= 0) & (after < len(row))
    places, before, after = places[inside], ownership.layer[row[before[inside]]], after[inside]
    same = (before == ownership.layer[row[after]]) & (before >= 0)
    ownership.layer = ownership.layer.copy()
    ownership.layer[row[places[same]]] = before[same]
    ownership.basis[row[places[same]]] = BASIS["flow"]


@lru_cache(maxsize=16384)
def hands_on(name: str) -> bool:
    """Whether a kernel only goes on with what was made before it, or prepares what comes after.

    What adds up the parts of a product, changes a format, or fills memory.
    """
    return fills(name) or finishes_gemm(name) or classify(name).conversion is not None


def name_collectives(names: pd.Series, ownership: Ownership, exchanges: Flags) -> None:
    """Makes collectives of those rows, whose roles say what they serve and how, in place.

    Of `mlp.experts` it makes `mlp.experts → all_reduce`, of nothing `all_reduce`; of one that norms
    as well `mlp.experts → all_reduce + input_layernorm`.
    """
    rows = np.flatnonzero(exchanges)
    if not len(rows):
        return
    fused = np.zeros(len(rows), np.int64) if ownership.fused is None else ownership.fused[rows]
    # What it serves is not known: the norm is all that its weight tells.
    alone = ownership.basis[rows] == BASIS["weight"]
    role = np.where(alone, 0, ownership.role[rows]).astype(np.int64)
    fused = np.where(alone, ownership.role[rows], fused)
    kinds = [_kind(str(name)) for name in names.cat.categories]
    distinct = list(dict.fromkeys(kinds))
    kind = NameColumn(names).codes(lambda name: distinct.index(_kind(name)))[rows]
    # Where no module is known the component stands for it.
    part = np.where((role > 0) | alone, -1, ownership.component[rows])
    served = (*COMPONENTS[: CODES["collective"]], "")
    place, first = combined(role, part, kind, fused)
    texts = [
        _role(
            ownership.roles[role[n]] or served[min(part[n], len(served) - 1)],
            distinct[kind[n]],
            ownership.roles[fused[n]],
        )
        for n in first
    ]
    numbers = {text: n for n, text in enumerate(dict.fromkeys((*ownership.roles, *texts)))}
    ownership.roles = tuple(numbers)
    ownership.role = ownership.role.astype(np.int32)
    ownership.role[rows] = np.array([numbers[text] for text in texts], np.int32)[place]
    ownership.component[rows] = CODES["collective"]
    if ownership.reads is not None:
        # The little that one reads of a norm bounds no exchange from below.
        codes = ownership.reads.codes.copy()
        codes[rows] = 0  # nothing
        ownership.reads = pd.Categorical.from_codes(codes, categories=ownership.reads.categories)
    ownership.basis[rows[ownership.basis[rows] == BASIS["none"]]] = BASIS["name"]


def served_by(role: str) -> str:
    """What a collective's role says that it serves, empty where it says nothing.

    served_by("self_attn.o_proj → all_reduce") == "self_attn.o_proj"; served_by("all_reduce") == ""
    """
    served, exchanges, _ = role.partition(EXCHANGES)
    return served if exchanges else ""


def _role(role: str, kind: str, fused: str) -> str:
    if EXCHANGES in role:
        return role
    served = f"{role}{EXCHANGES}" if role else ""
    return f"{served}{kind}{FUSES}{fused}" if fused else f"{served}{kind}"


def _kind(name: str) -> str:
    kind = collective_kind(name)
    return _OTHER_KIND if kind in (None, "unknown") else str(kind)


def _launched(bundle: Bundle, rank: int, rows: pd.DataFrame, chosen: Flags) -> pd.DataFrame:
    """The stream of each chosen row, in launch order; the index is the row's place."""
    where = bundle.frame("kernels", rank, _WHERE)
    where = where.sort_values("start_ns", kind="stable", ignore_index=True)[chosen]
    where = where.assign(step=rows["step"].to_numpy()[chosen])
    host = bundle.frame("host", rank, ["correlation", "start_ns"])
    order = launch_order(where, host, nodes_of(bundle, rank, where["graph_node"].to_numpy()))
    return where if order is None else where.iloc[order]


def _latest(flags: Flags, *groups: Integers) -> Integers:
    """The nearest flagged place at or before each place of its group, -1 for none.

    The places of a group stand together.
    """
    places = np.arange(len(flags))
    begins = np.zeros(len(flags), bool)
    for group in groups:
        begins |= np.diff(group, prepend=group[:1] - 1) != 0
    begin = np.maximum.accumulate(np.where(begins, places, 0))
    nearest = np.maximum.accumulate(np.where(flags, places, -1))
    return np.where(nearest >= begin, nearest, -1)
