"""Owners of the launches whose arguments are known: by weight or cache, range, then data flow.

A kernel that a CUDA graph replays has the owner of the node that was captured. So owners are found
once for each captured node and for each launch outside graphs, and looked up for millions of rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.attribution.dataflow import Held, Sequence, follow, use_of
from spark_prof.analyzers.attribution.memory_map import CACHE, MemoryMap, memory_map
from spark_prof.analyzers.attribution.owners import Launches, Owners, owners_of
from spark_prof.analyzers.classify.classifier import classify, is_gemm
from spark_prof.analyzers.launch_order import launch_order, nodes_of
from spark_prof.analyzers.lookup import Integers, positions
from spark_prof.analyzers.order import CODES
from spark_prof.traces.bundle import Bundle, table_file
from spark_prof.vocabulary import BASES

__all__ = ["BASIS", "Evidence", "Ranged", "arguments_known", "owned_launches"]

Flags = npt.NDArray[np.bool_]
_Array = TypeVar("_Array", Integers, Flags)

BASIS = {name: code for code, name in enumerate(BASES)}
"""The bases as numbers."""

_ACTIVATIONS = ("memory", "pool")
_FILLS = "FillFunctor"


@dataclass
class Evidence:
    """What is known of kernels or launches so far; arrays have one entry each.

    Attributes:
        component: code, -1 for none.
        layer: decoder layer, -1 for none.
        role: number of the role in `roles`.
        basis: number of the basis.
        settled: whether component and layer are known, as far as there is a layer.
        roles: texts; the first is empty.
        reads: for each kernel the rows of the `tensors` table that hold the weights that it reads,
            as tuples; None where no arguments tell.
    """

    component: Integers
    layer: Integers
    role: Integers
    basis: Integers
    settled: Flags
    roles: tuple[str, ...]
    reads: pd.Categorical | None = None

    def taken(self, rows: Integers) -> Evidence:
        """Those rows."""
        return Evidence(
            self.component[rows], self.layer[rows], self.role[rows], self.basis[rows],
            self.settled[rows], self.roles,
        )  # fmt: skip


@dataclass(frozen=True)
class Ranged:
    """The rows of a rank in order of start, with what ranges and names tell of them.

    Attributes:
        rows: name, module, start_ns, step, correlation and graph_node.
        by_range: what the module that was open tells.
        by_name: code of the component that the name tells, -1 for none.
        more_exact: of two codes of components the more exact one, else the first.
    """

    rows: pd.DataFrame
    by_range: Evidence
    by_name: Integers
    more_exact: Callable[[Integers, Integers], Integers]


def owned_launches(bundle: Bundle, rank: int, ranged: Ranged) -> Evidence | None:
    """The evidence of all rows, with the owners of launches; None where no argument names any.

    Args:
        bundle: the bundle.
        rank: the rank.
        ranged: its rows.
    """
    if not arguments_known(bundle, rank):
        return None
    tensors, arguments = bundle.frame("tensors", rank), bundle.frame("arguments", rank)
    rows = ranged.rows
    nodes = nodes_of(bundle, rank, rows["graph_node"].to_numpy())
    in_graph = rows["graph_node"].to_numpy() != 0
    key = _keys(nodes, np.where(in_graph, -1, rows["correlation"].to_numpy()))
    held = _keys(arguments["node"].to_numpy(), arguments["correlation"].to_numpy())
    known = np.unique(held[held != 0])
    launch = positions(known, _as_read(key, known, rows, np.flatnonzero(~in_graph)))
    first = _first_row(launch, len(known))
    ran = first >= 0
    known, first = known[ran], first[ran]
    launch = np.append(np.where(ran, np.cumsum(ran) - 1, -1), -1)[launch]
    owner = positions(known, held)
    arguments, owner = arguments[owner >= 0], owner[owner >= 0]
    launches = Launches(
        name=rows["name"].cat.codes.to_numpy()[first].astype(np.int64),
        step=rows["step"].to_numpy()[first],
        named=ranged.by_name[first],
        names=tuple(rows["name"].cat.categories),
    )
    memory = memory_map(tensors)
    owners = owners_of(memory, arguments, owner, launches, ranged.more_exact)
    if not owners.rank.any():
        return None
    found = _decided(owners, memory.roles, ranged, first)
    links = _links(tensors, arguments, owner, launches)
    _by_flow(bundle, rank, ranged, found, first, launch, nodes, links)
    over = _over(ranged.by_range, found, launch)
    return replace(over, reads=_weights_read(memory, owners, launch))


def arguments_known(bundle: Bundle, rank: int) -> bool:
    """Whether the bundle tells what kernels of the rank read."""
    return all(bundle.meta.tables.get(table_file(name, rank)) for name in ("tensors", "arguments"))


def _keys(nodes: Integers, correlations: Integers) -> Integers:
    """One number for a node or, where it is 0, for a correlation; 0 for none."""
    outside = np.where(correlations >= 0, -1 - correlations.astype(np.int64), 0)
    found: Integers = np.where(nodes != 0, nodes, outside)
    return found


def _as_read(key: Integers, known: Integers, rows: pd.DataFrame, outside: Integers) -> Integers:
    """The keys, with those of launches outside graphs that nobody read exchanged for their like's.

    Arguments are read in the first steps of each kind. Another step that launches kernels of the
    same names in the same order, with the same modules open, runs the same code on the same
    weights.
    """
    step = rows["step"].to_numpy()
    outside = outside[(step[outside] >= 0) & (key[outside] != 0)]
    if not len(outside):
        return key
    order = outside[np.lexsort((-key[outside], step[outside]))]
    what = [rows["name"].cat.codes.to_numpy(), rows["module"].to_numpy()]
    names = np.stack([one[order].astype(np.int32) for one in what], axis=1)
    begin = np.flatnonzero(np.append(True, np.diff(step[order]) != 0))
    spans = list(zip(begin.tolist(), [*begin[1:].tolist(), len(order)], strict=True))
    read = positions(known, key[order]) >= 0
    was_read = np.logical_or.reduceat(read, begin)
    like: dict[bytes, int] = {}
    for (first, last), one in zip(spans, was_read, strict=True):
        if one:
            like.setdefault(names[first:last].tobytes(), first)
    found = key.copy()
    for (first, last), one in zip(spans, was_read, strict=True):
        other = None if one else like.get(names[first:last].tobytes())
        if other is not None:
            found[order[first:last]] = key[order[other : other + last - first]]
    return found


def _first_row(launch: Integers, count: int) -> Integers:
    """The first row of each launch, -1 for none."""
    rows = np.flatnonzero(launch >= 0)[::-1]
    first = np.full(count, -1)
    # Of several rows of a launch the last one that is written stays.
    first[launch[rows]] = rows
    return first


def _weights_read(memory: MemoryMap, owners: Owners, launch: Integers) -> pd.Categorical:
    """The rows of the `tensors` table that the launch of each row reads as weights."""
    weight = memory.weight[owners.words[1]]
    held: dict[int, set[int]] = defaultdict(set)
    for one, number in zip(owners.words[0][weight >= 0], weight[weight >= 0], strict=True):
        held[one].update(memory.weights[number])
    sets = {one: tuple(sorted(found)) for one, found in held.items()}
    distinct = {(): 0} | {read: n for n, read in enumerate(dict.fromkeys(sets.values()), 1)}
    codes = np.zeros(len(owners.rank) + 1, np.int32)
    codes[list(sets)] = [distinct[read] for read in sets.values()]
    categories = pd.Index(list(distinct), tupleize_cols=False)
    return pd.Categorical.from_codes(codes[launch], categories=categories)


def _links(
    tensors: pd.DataFrame, arguments: pd.DataFrame, owner: Integers, launches: Launches
) -> Held:
    """Which launch holds which address of an activation, and for what."""
    kinds = tensors["kind"].astype(str)
    address = arguments["address"].to_numpy(np.int64)
    inside = np.zeros(len(address), bool)
    for of_model in (False, True):
        some = tensors[~kinds.isin(_ACTIVATIONS) if of_model else kinds.isin(_ACTIVATIONS)]
        some = some.sort_values("address")
        begin = some["address"].to_numpy(np.int64)
        # Tensors may overlap: the furthest end of those that begin before.
        end = np.maximum.accumulate(begin + some["bytes"].to_numpy(np.int64))
        near = np.searchsorted(begin, address, side="right") - 1
        within = (near >= 0) & (address < np.append(end, 0)[near])
        inside = inside & ~within if of_model else within
    use = use_of(arguments[inside], launches.name[owner[inside]], launches.names)
    return Held(owner[inside], address[inside], use)


def _decided(owners: Owners, roles: tuple[str, ...], ranged: Ranged, first: Integers) -> Evidence:
    """What the tensors of each launch and the range at its first row tell together."""
    by_range = ranged.by_range.taken(first)
    in_range = by_range.basis == BASIS["range"]
    # A word in a struct that names another layer than the open module was left there.
    stale = ~owners.pointer & in_range & (owners.layer >= 0) & (by_range.layer >= 0)
    stale &= owners.layer != by_range.layer
    reads = (owners.rank > 0) & ~stale
    # Of the modules that hold the tensor, the one that is open reads it.
    open_one = np.maximum(by_range.component, 0).astype(np.int64)
    holds = reads & in_range & ((owners.components >> open_one & 1) > 0)
    part = np.where(holds, by_range.component, owners.component)
    part = np.where(reads, part, -1).astype(np.int8)
    component = ranged.more_exact(part, by_range.component)
    component = np.where(reads & (component >= 0), component, by_range.component)
    component = ranged.more_exact(component, ranged.by_name[first])
    unnamed = reads & ~owners.open & (component < 0)
    component = np.where(unnamed, np.int8(CODES["other"]), component)
    layer = np.where(reads & ((owners.layer >= 0) | ~owners.open), owners.layer, by_range.layer)
    merged = {role: number for number, role in enumerate(dict.fromkeys((*roles, *by_range.roles)))}
    range_role = np.array([merged[role] for role in by_range.roles])[by_range.role]
    own_role = reads & (owners.role > 0) & ~(holds & (part != owners.component))
    basis = np.where(owners.rank == CACHE, BASIS["kv"], BASIS["weight"])
    return Evidence(
        component=component,
        layer=layer,
        role=np.where(own_role, owners.role, range_role),
        basis=np.where(reads, basis, by_range.basis),
        settled=np.where(reads, ~owners.open | (layer >= 0), in_range),
        roles=tuple(merged),
    )


def _by_flow(
    bundle: Bundle,
    rank: int,
    ranged: Ranged,
    found: Evidence,
    first: Integers,
    launch: Integers,
    nodes: Integers,
    links: Held,
) -> None:
    """Settles launches by what they share with others, in the first step that runs each."""
    rows = ranged.rows
    step = rows["step"].to_numpy()
    steps = np.unique(step[first])
    at = np.flatnonzero((launch >= 0) & (positions(steps[steps >= 0], step) >= 0))
    if found.settled.all() or not len(at):
        return
    host = bundle.frame("host", rank, ["correlation", "start_ns"])
    columns = rows[["start_ns", "step", "correlation"]]
    order = launch_order(columns.iloc[at].reset_index(drop=True), host, nodes[at])
    at = at if order is None else at[order]
    own = launch[at]
    names = rows["name"].cat
    writes = np.array([_only_writes(name) for name in names.categories] + [False])
    products = np.array([is_gemm(name) for name in names.categories] + [False])
    sequence = Sequence(
        step=step[at],
        component=found.component[own],
        named=ranged.by_name[at],
        layer=found.layer[own],
        role=found.role[own],
        known=found.settled[own],
        to_consumer=writes[names.codes.to_numpy()[at]],
        product=products[names.codes.to_numpy()[at]],
    )
    hits = np.flatnonzero(follow(sequence, _of_entries(own, links)))[::-1]
    # Of several entries of a launch the first one is written last, and stays.
    for name in ("component", "layer", "role"):
        getattr(found, name)[own[hits]] = getattr(sequence, name)[hits]
    found.basis[own[hits]] = BASIS["flow"]
    found.settled[own[hits]] = True


def _only_writes(name: str) -> bool:
    return _FILLS in name or classify(name).conversion is not None


def _of_entries(own: Integers, links: Held) -> Held:
    """The addresses that the launch of each entry holds, with the entry's number."""
    order = np.argsort(links.holder, kind="stable")
    launch = links.holder[order]
    begin = np.searchsorted(launch, own)
    count = np.searchsorted(launch, own, side="right") - begin
    entry = np.repeat(np.arange(len(own)), count)
    within = np.arange(len(entry)) - np.repeat(np.cumsum(count) - count, count)
    place = order[begin[entry] + within]
    return Held(entry, links.address[place], links.use[place])


def _over(by_range: Evidence, found: Evidence, launch: Integers) -> Evidence:
    """The rows' evidence, with that of its launch where a row has one."""
    number = np.array([found.roles.index(role) for role in by_range.roles])
    own = launch >= 0

    def chosen(of_launch: _Array, of_row: _Array) -> _Array:
        array: _Array = np.where(own, of_launch.astype(of_row.dtype)[launch], of_row)
        return array

    return Evidence(
        component=chosen(found.component, by_range.component),
        layer=chosen(found.layer, by_range.layer),
        role=chosen(found.role, number[by_range.role]),
        basis=chosen(found.basis, by_range.basis),
        settled=chosen(found.settled, by_range.settled),
        roles=found.roles,
    )
