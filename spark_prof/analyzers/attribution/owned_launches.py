"""Owners of the launches whose arguments are known: by weight or cache, range, then data flow.

A kernel that a CUDA graph replays has the owner of the node that was captured. So owners are found
once for each captured node and for each launch outside graphs, and looked up for millions of rows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.collectives import serve
from spark_prof.analyzers.attribution.dataflow import (
    BETWEEN_MODULES,
    IN_MODULE,
    OUTSIDE,
    LaunchSequence,
    follow,
    use_of,
)
from spark_prof.analyzers.attribution.memory_map import CACHE, MemoryMap, memory_map
from spark_prof.analyzers.attribution.order import CODES, launch_order, nodes_of
from spark_prof.analyzers.attribution.owners import (
    BASIS,
    KnownLaunches,
    Owners,
    Ownership,
    most_exact,
    owners_of,
)
from spark_prof.analyzers.classify.classifier import classify, fills
from spark_prof.analyzers.lookup import Integers, positions
from spark_prof.arrays import Flags
from spark_prof.rules.components import role_of
from spark_prof.traces.bundle import Bundle, table_file
from spark_prof.traces.host_timeline import FIRST_MODULE, MODEL_PATH

_ACTIVATIONS = ("memory", "pool")


def arguments_known(bundle: Bundle, rank: int) -> bool:
    """Whether the bundle tells what kernels of the rank read."""
    return all(bundle.meta.tables.get(table_file(name, rank)) for name in ("tensors", "arguments"))


def own_launches(
    bundle: Bundle,
    rank: int,
    rows: pd.DataFrame,
    ownership: Ownership,
    by_name: Integers,
    exchanges: Flags,
    drafts: Flags | None = None,
) -> bool:
    """Gives rows the owners of their launches, in place; returns whether arguments name any.

    Args:
        rows: name, kind, module, start_ns, step, correlation and graph_node, in order of start.
        ownership: what the module that was open tells of each.
        by_name: code of the component that the name tells, -1 for none.
        exchanges: which rows are collectives; their owner is what they serve.
        drafts: which rows a drafter runs: what they share with the model's tells no owner.
    """
    if not arguments_known(bundle, rank):
        return False
    tensors, arguments = bundle.frame("tensors", rank), bundle.frame("arguments", rank)
    of = _launches(bundle, rank, rows, by_name, arguments)
    launches, first, launch_rows, own_launch = of.launches, of.first, of.rows, of.launch
    memory = memory_map(tensors, ownership.roles)
    owners = owners_of(memory, of.arguments, of.owner, launches)
    if not owners.rank.any():
        return False
    of_launch = _decided(owners, ownership, by_name, first, memory.roles)
    _hand_over(of_launch, own_launch, ownership, launch_rows)
    ownership.of_module = memory.of_module
    # Before data is followed: what a collective serves no address tells, and it hands that on.
    serve(bundle, rank, rows, ownership, exchanges)
    served = launch_rows[exchanges[launch_rows]][::-1]
    _hand_over(ownership, served, of_launch, own_launch[exchanges[launch_rows]][::-1])
    step = rows["step"].to_numpy()
    # Data flows through the first step that runs each launch.
    in_flow = positions(np.unique(step[first]), step[launch_rows]) >= 0
    in_flow &= step[launch_rows] >= 0
    links = _links(tensors, of.arguments, of.owner, launches)
    entries = rows[["start_ns", "step", "correlation", "name"]].iloc[launch_rows[in_flow]]
    host = bundle.frame("host", rank, ["correlation", "start_ns"])
    order = launch_order(entries, host, of.captured[launch_rows[in_flow]])
    order = np.arange(len(entries)) if order is None else order
    named, launch = by_name[launch_rows[in_flow]][order], own_launch[in_flow][order]
    _finish_products(launches, launch, of_launch, memory)
    if drafts is not None and drafts.any():
        apart = 2 * entries["step"].to_numpy(np.int64) + drafts[launch_rows[in_flow]]
        entries = entries.assign(step=apart)
    entries = entries.assign(place=_launched_in(bundle, rank, rows)[launch_rows[in_flow]])
    _by_flow(entries.iloc[order], named, launches, launch, of_launch, links, memory.of_module)
    _hand_over(of_launch, own_launch, ownership, launch_rows)
    of_row = np.full(len(rows), -1)
    of_row[launch_rows] = own_launch
    ownership.reads = _weights_read(memory, owners, of_row)
    return True


@dataclass(frozen=True)
class _Launches:
    """The launches whose arguments are known, and the rows of which they are."""

    launches: KnownLaunches
    first: Integers  # of each launch its first row
    rows: Integers  # the rows that have a launch
    launch: Integers  # the launch of each of these
    captured: Integers  # of each row its node as it was captured
    arguments: pd.DataFrame
    owner: Integers  # of each argument its launch


def _launches(
    bundle: Bundle, rank: int, rows: pd.DataFrame, by_name: Integers, arguments: pd.DataFrame
) -> _Launches:
    """Finds the rows of each launch: by its node, else by its correlation."""
    node = rows["graph_node"].to_numpy()
    captured, outside = nodes_of(bundle, rank, node), node == 0
    key = _keys(captured, np.where(outside, rows["correlation"].to_numpy(), -1))
    argument_keys = _keys(arguments["node"].to_numpy(), arguments["correlation"].to_numpy())
    launch_keys = np.unique(argument_keys[argument_keys != 0])
    launch = positions(launch_keys, _as_read(key, launch_keys, rows, np.flatnonzero(outside)))
    # Of several rows of a launch the first one is written last, and stays.
    first = np.full(len(launch_keys), -1)
    launch_rows = np.flatnonzero(launch >= 0)
    first[launch[launch_rows[::-1]]] = launch_rows[::-1]
    has_row = first >= 0
    launch_keys, first = launch_keys[has_row], first[has_row]
    own_launch = (np.cumsum(has_row) - 1)[launch[launch_rows]]
    owner = positions(launch_keys, argument_keys)
    arguments, owner = arguments[owner >= 0], owner[owner >= 0]
    names = rows["name"].cat
    launches = KnownLaunches(
        name=names.codes.to_numpy()[first].astype(np.int64),
        step=rows["step"].to_numpy()[first],
        named=by_name[first],
        names=tuple(names.categories),
    )
    return _Launches(launches, first, launch_rows, own_launch, captured, arguments, owner)


def _hand_over(of: Ownership, source: Integers, to: Ownership, target: Integers) -> None:
    """Copies what is known of some to others, in place."""
    to.layer, to.role, to.roles = to.layer.copy(), to.role.astype(np.int32), of.roles
    for name in ("component", "layer", "role", "basis", "settled"):
        getattr(to, name)[target] = getattr(of, name)[source]


def _keys(nodes: Integers, correlations: Integers) -> Integers:
    """One number for a node or, where it is 0, for a correlation; 0 for none."""
    outside = np.where(correlations >= 0, -1 - correlations.astype(np.int64), 0)
    keys: Integers = np.where(nodes != 0, nodes, outside)
    return keys


def _as_read(
    key: Integers, launch_keys: Integers, rows: pd.DataFrame, outside: Integers
) -> Integers:
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
    columns = [rows["name"].cat.codes.to_numpy(), rows["module"].to_numpy()]
    names = np.stack([one[order].astype(np.int32) for one in columns], axis=1)
    begin = np.flatnonzero(np.diff(step[order], prepend=-1))
    end = np.append(begin[1:], len(order))
    was_read = np.logical_or.reduceat(positions(launch_keys, key[order]) >= 0, begin)
    like: dict[bytes, int] = {}
    keys = key.copy()
    for one in np.argsort(~was_read, kind="stable").tolist():
        first, last = int(begin[one]), int(end[one])
        launched = names[first:last].tobytes()
        if was_read[one]:
            like.setdefault(launched, first)
        elif launched in like:
            other = like[launched]
            keys[order[first:last]] = key[order[other : other + last - first]]
    return keys


def _weights_read(memory: MemoryMap, owners: Owners, launch: Integers) -> pd.Categorical:
    """The rows of the `tensors` table that the launch of each row reads as weights."""
    weight = memory.weight[owners.words[1]]
    weights_of: dict[int, set[int]] = defaultdict(set)
    for one, number in zip(owners.words[0][weight >= 0], weight[weight >= 0], strict=True):
        weights_of[one].update(memory.weights[number])
    sets = {one: tuple(sorted(weights)) for one, weights in weights_of.items()}
    distinct = {(): 0} | {read: n for n, read in enumerate(dict.fromkeys(sets.values()), 1)}
    codes = np.zeros(len(owners.rank) + 1, np.int32)
    codes[list(sets)] = [distinct[read] for read in sets.values()]
    categories = pd.Index(list(distinct), tupleize_cols=False)
    return pd.Categorical.from_codes(codes[launch], categories=categories)


def _links(
    tensors: pd.DataFrame, arguments: pd.DataFrame, owner: Integers, launches: KnownLaunches
) -> pd.DataFrame:
    """Which `launch` holds which `address` of an activation, and its `use`."""
    address = arguments["address"].to_numpy(np.int64)
    activations = tensors["kind"].astype(str).isin(_ACTIVATIONS)
    inside = _covered(tensors[activations], address) & ~_covered(tensors[~activations], address)
    use = use_of(arguments[inside], launches.name[owner[inside]], launches.names)
    return pd.DataFrame({"launch": owner[inside], "address": address[inside], "use": use})


def _covered(tensors: pd.DataFrame, address: Integers) -> Flags:
    """Whether each address lies in one of the tensors, which may overlap."""
    begin, size = tensors.sort_values("address")[["address", "bytes"]].to_numpy(np.int64).T
    end = np.maximum.accumulate(begin + size)
    near = np.searchsorted(begin, address, side="right") - 1
    covered: Flags = (near >= 0) & (address < np.append(end, 0)[near])
    return covered


def _decided(
    owners: Owners, ownership: Ownership, by_name: Integers, first: Integers, roles: tuple[str, ...]
) -> Ownership:
    """What the tensors of each launch and the range at its first row tell together."""
    range_part, range_layer = ownership.component[first], ownership.layer[first]
    in_range = ownership.basis[first] == BASIS["range"]
    # A word in a struct that names another layer than the open module was left there.
    stale = ~owners.pointer & in_range & (owners.layer >= 0) & (range_layer >= 0)
    reads = (owners.rank > 0) & ~(stale & (owners.layer != range_layer))
    # Of the modules that hold the tensor, the one that is open reads it.
    open_one = np.maximum(range_part, 0).astype(np.int64)
    holds = reads & in_range & ((owners.components >> open_one & 1) > 0)
    part = np.where(reads, np.where(holds, range_part, owners.component), -1).astype(np.int8)
    component = most_exact(part, range_part)
    component = np.where(reads & (component >= 0), component, range_part)
    component = most_exact(component, by_name[first])
    unnamed = reads & ~owners.open & (component < 0)
    layer = np.where(reads & ((owners.layer >= 0) | ~owners.open), owners.layer, range_layer)
    own_role = reads & (owners.role > 0) & ~(holds & (part != owners.component))
    by_tensor = np.where(owners.rank == CACHE, BASIS["kv"], BASIS["weight"])
    return Ownership(
        component=np.where(unnamed, np.int8(CODES["other"]), component),
        layer=layer,
        role=np.where(own_role, owners.role, ownership.role[first]),
        basis=np.where(reads, by_tensor, ownership.basis[first]),
        settled=np.where(reads, ~owners.open | (layer >= 0), in_range),
        roles=roles,
    )


def _finish_products(
    launches: KnownLaunches, launch: Integers, ownership: Ownership, memory: MemoryMap
) -> None:
    """Gives what adds up the parts of a product that product's owner, in place.

    It reads no weight, and is launched right behind the product, by the same call. The module that
    was open is believed where it is of the same component and layer; experts may run shared ones.
    """
    before, after = launch[:-1], launch[1:]
    proven = launches.product[before] & (ownership.basis[before] == BASIS["weight"])
    read = np.isin(ownership.basis[after], (BASIS["weight"], BASIS["kv"]))
    at = np.flatnonzero(launches.finishes[after] & proven & ~read)
    before, after = before[at], after[at]
    role = memory.of_module[ownership.role[before]]
    changed = ownership.component[after] != ownership.component[before]
    changed |= ownership.layer[after] != ownership.layer[before]
    before, after, role = before[changed], after[changed], role[changed]
    ownership.layer, ownership.role = ownership.layer.copy(), ownership.role.copy()
    ownership.component[after], ownership.layer[after] = (
        ownership.component[before],
        ownership.layer[before],
    )
    ownership.role[after], ownership.basis[after], ownership.settled[after] = (
        role,
        BASIS["flow"],
        True,
    )


def _by_flow(
    rows: pd.DataFrame, named: Integers, launches: KnownLaunches, launch: Integers,
        ownership: Ownership,
    links: pd.DataFrame, of_module: Integers,
) -> None:  # fmt: skip
    """Settles launches by what they share with others, in place."""
    if ownership.settled.all() or rows.empty:
        return
    names = rows["name"].cat
    writes = np.array([_only_writes(name) for name in names.categories] + [False])
    sequence = LaunchSequence(
        step=rows["step"].to_numpy(),
        component=ownership.component[launch],
        named=named,
        layer=ownership.layer[launch],
        role=of_module[ownership.role[launch]],
        settled=ownership.settled[launch],
        to_consumer=writes[names.codes.to_numpy()],
        product=launches.product[launch],
        exchanges=launches.exchanges[launch],
        place=rows["place"].to_numpy(),
    )
    holders = pd.DataFrame({"launch": launch, "holder": np.arange(len(launch))})
    hits = np.flatnonzero(follow(sequence, holders.merge(links, on="launch")))
    # Of several rows of a launch the first one is written last, and stays.
    for name in ("component", "layer", "role"):
        getattr(ownership, name)[launch[hits[::-1]]] = getattr(sequence, name)[hits[::-1]]
    ownership.basis[launch[hits]] = BASIS["flow"]
    ownership.settled[launch[hits]] = True


def _launched_in(bundle: Bundle, rank: int, rows: pd.DataFrame) -> Integers:
    """Where each row was launched, of the places that dataflow.py knows.

    Only where the calls of its layers are marked are those of the model itself none of theirs.
    """
    modules, module = bundle.frame("modules", rank), rows["module"].to_numpy(np.int64)
    layers = modules.loc[modules["layer"] >= 0, "path"].astype(str)
    place = np.where((module >= 0) & (module < FIRST_MODULE), OUTSIDE, IN_MODULE)
    if any(path.rpartition(".")[2].isdigit() and not role_of(path) for path in layers):
        whole = modules.loc[modules["path"] == MODEL_PATH, "module"]
        place[np.isin(module, whole.to_numpy())] = BETWEEN_MODULES
    return place


def _only_writes(name: str) -> bool:
    return fills(name) or classify(name).conversion is not None
