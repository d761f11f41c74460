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

from spark_prof.analyzers.attribution.evidence import BASIS, PROOFS, Evidence
from spark_prof.analyzers.attribution.order import CODES, launch_order, nodes_of
from spark_prof.analyzers.classify.classifier import classify, fills, finishes_gemm
from spark_prof.analyzers.classify.collectives import collective_kind
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
    found: Evidence,
    exchanges: Flags,
    *,
    fused: bool = False,
) -> None:
    """Gives collectives that no module owns the owner of what they serve, in place.

    Args:
        rows: name, kind, start_ns and step, in order of start.
        found: what is known of each row; of a collective it is what it serves.
        exchanges: which rows are collectives.
        fused: also those whose weight told the norm that is fused with them.
    """
    step = rows["step"].to_numpy()
    by_weight = exchanges & (found.basis == BASIS["weight"]) & fused
    bare = ~found.settled | (found.basis == BASIS["order"]) | by_weight
    bare &= exchanges & (step >= 0)
    if not bare.any():
        return
    at = _launched(bundle, rank, rows, np.isin(step, np.unique(step[bare])))
    row, stream = at.index.to_numpy(), at["stream"].to_numpy()
    passed = exchanges | copies_in(rows) | NameColumn(rows["name"]).flags(hands_on)
    # In a model's order the next layer's norm begins right behind the last product of one.
    passed |= (found.basis == BASIS["order"]) & (found.component == CODES["norm"])
    works, steps = ~passed[row], step[row]
    by_stream = np.lexsort((stream, steps))
    near = _latest(works[by_stream], steps[by_stream], stream[by_stream])
    own, latest = np.full(len(row), -1), _latest(works, steps)
    own[by_stream] = np.where(near >= 0, by_stream[near], -1)
    known = found.settled & (found.component >= 0)
    wanted = np.flatnonzero(bare[row] & (latest >= 0))
    mine, last = row[own[wanted]], row[latest[wanted]]
    # A stream that rarely runs anything else may last have worked for another layer.
    apart = known[last] & known[mine] & (found.layer[last] != found.layer[mine])
    alone = (own[wanted] < 0) | apart
    source, to = np.where(alone, last, mine), row[wanted]
    guesses = ~np.isin(found.basis[source], [*PROOFS, BASIS["flow"]])
    found.layer = found.layer.copy()
    by_order = (found.basis[to] == BASIS["order"]) & ~known[source] & (found.layer[source] >= 0)
    found.layer[to[by_order]] = found.layer[source[by_order]]
    found.component[to[by_order]] = -1
    told = known[source] & ~(guesses & by_weight[to])
    # What prepares the norm that is fused with it is not what it serves.
    told &= ~(by_weight[to] & (found.role[source] == found.role[to]))
    source, to, alone = source[told], to[told], alone[told]
    proven = np.isin(found.basis[source], PROOFS)
    basis = np.where(proven, BASIS["flow"], found.basis[source])
    basis[proven & ~alone] = BASIS["stream"]
    found.fused = np.where(by_weight, found.role, 0)
    found.fused[np.setdiff1d(np.flatnonzero(by_weight), to)] = 0
    # A layer that was open at the launch is believed before that of what ran before.
    fixed = (found.layer[to] >= 0) & ~found.settled[to]
    found.layer[to] = np.where(fixed, found.layer[to], found.layer[source])
    found.component[to], role = found.component[source], found.role[source]
    found.role[to] = role if found.of_module is None else found.of_module[role]
    found.basis[to], found.settled[to] = basis, True


def between_layers(
    bundle: Bundle, rank: int, rows: pd.DataFrame, found: Evidence, exchanges: Flags
) -> None:
    """Gives collectives of which nothing tells what they serve the layer around them, in place."""
    step = rows["step"].to_numpy()
    bare = exchanges & (step >= 0) & ~found.settled & (found.layer < 0)
    if not bare.any():
        return
    at = _launched(bundle, rank, rows, np.isin(step, np.unique(step[bare])))
    row = at.index.to_numpy()
    known, steps = (found.settled & ~exchanges)[row], step[row]
    wanted = np.flatnonzero(bare[row])
    before = _latest(known, steps)[wanted]
    after = len(row) - 1 - _latest(known[::-1], steps[::-1])[len(row) - 1 - wanted]
    inside = (before >= 0) & (after < len(row))
    wanted, before, after = wanted[inside], found.layer[row[before[inside]]], after[inside]
    same = (before == found.layer[row[after]]) & (before >= 0)
    found.layer = found.layer.copy()
    found.layer[row[wanted[same]]] = before[same]
    found.basis[row[wanted[same]]] = BASIS["flow"]


@lru_cache(maxsize=16384)
def hands_on(name: str) -> bool:
    """Whether a kernel only goes on with what was made before it, or prepares what comes after.

    What adds up the parts of a product, changes a format, or fills memory.
    """
    return fills(name) or finishes_gemm(name) or classify(name).conversion is not None


def name_collectives(names: pd.Series, found: Evidence, exchanges: Flags) -> None:
    """Makes collectives of those rows, whose roles say what they serve and how, in place.

    Of `mlp.experts` it makes `mlp.experts → all_reduce`, of nothing `all_reduce`; of one that norms
    as well `mlp.experts → all_reduce + input_layernorm`.
    """
    rows = np.flatnonzero(exchanges)
    if not len(rows):
        return
    fused = np.zeros(len(rows), np.int64) if found.fused is None else found.fused[rows]
    # What it serves is not known: the norm is all that its weight tells.
    alone = found.basis[rows] == BASIS["weight"]
    role = np.where(alone, 0, found.role[rows]).astype(np.int64)
    fused = np.where(alone, found.role[rows], fused)
    kinds = [_kind(str(name)) for name in names.cat.categories]
    distinct = list(dict.fromkeys(kinds))
    kind = NameColumn(names).codes(lambda name: distinct.index(_kind(name)))[rows]
    # Where no module is known the component stands for it.
    part = np.where((role > 0) | alone, -1, found.component[rows])
    served = (*COMPONENTS[: CODES["collective"]], "")
    place, first = combined(role, part, kind, fused)
    texts = [
        _role(
            found.roles[role[n]] or served[min(part[n], len(served) - 1)],
            distinct[kind[n]],
            found.roles[fused[n]],
        )
        for n in first
    ]
    numbers = {text: n for n, text in enumerate(dict.fromkeys((*found.roles, *texts)))}
    found.roles = tuple(numbers)
    found.role = found.role.astype(np.int32)
    found.role[rows] = np.array([numbers[text] for text in texts], np.int32)[place]
    found.component[rows] = CODES["collective"]
    if found.reads is not None:
        # The little that one reads of a norm bounds no exchange from below.
        codes = found.reads.codes.copy()
        codes[rows] = 0  # nothing
        found.reads = pd.Categorical.from_codes(codes, categories=found.reads.categories)
    found.basis[rows[found.basis[rows] == BASIS["none"]]] = BASIS["name"]


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
    found = np.maximum.accumulate(np.where(flags, places, -1))
    return np.where(found >= begin, found, -1)
