"""Gives every kernel its component, layer and role, and says on what they stand.

In this order: the weight, or the KV cache or state, that it reads; the module whose call launched
it; of a collective, what ran before it on its stream; the data that it shares with kernels whose
owner is proven; where nothing tells what kernels read, their order in a compiled model; the name
alone; else the component `other`. A name may be more exact than the module (a KV write inside
attention, a top-k inside experts).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.attribution.collectives import (
    between_layers,
    name_collectives,
    serve,
)
from spark_prof.analyzers.attribution.order import (
    CODES,
    Launched,
    launch_order,
    nodes_of,
    place_by_order,
    products_of,
)
from spark_prof.analyzers.attribution.owned_launches import arguments_known, own_launches
from spark_prof.analyzers.attribution.owners import BASIS, Ownership, most_exact
from spark_prof.analyzers.classify.classifier import classify, finishes_gemm, is_gemm
from spark_prof.analyzers.graph_use import in_graphs_of
from spark_prof.analyzers.lookup import Integers, NameColumn, ascends, copies_in, positions
from spark_prof.arrays import Flags
from spark_prof.rules.components import DRAFTER, DRAFTING, LM_HEAD, part_of, role_of
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.execution import Execution
from spark_prof.traces.host_timeline import FINISH, MODEL_PATH, stretch_at
from spark_prof.vocabulary import BASES, COMPONENTS, COMPONENTS_WITHOUT_LAYER

Codes = npt.NDArray[np.int8]

_SWAPPED = ".spark_prof_body.run"
"""How the marked call of a layer ends whose kernel is swapped in a compiled model."""

_NO_PRODUCTS = ("norm", "attention", "experts")
"""Components of swapped layers that are not one product of a matrix."""

_COPY_OPERATORS = ("aten::copy_", "aten::_to_copy", "aten::fill_", "aten::zero_")

_COLUMNS = ("name", "kind", "start_ns", "end_ns", "part", "step", "layer", "bytes", "placed_by")
_LAUNCH = ("correlation", "graph_node")

_OF_IMPORT = {"aligned": BASIS["order"], "guess": BASIS["name"]}
"""The bases of what an importer placed, by its word in `placed_by`."""


def place_kernels(bundle: Bundle, rank: int, extra: Sequence[str] = ()) -> pd.DataFrame:
    """The kernels of a rank, in order of start.

    Args:
        extra: further columns of the `kernels` table.

    Returns:
        name, kind, start_ns, end_ns, part, step, layer (-1 for none), bytes, placed_by, component,
        `placed`: whether the row has a layer or a component that has none by its nature,
        `basis`: on what the owner stands (vocabulary.BASES), and `role`: the path of the owning
        module without its layer, such as `self_attn.qkv_proj`, empty where unknown. Where
        arguments of kernels are known, also `reads`: as in Ownership.
    """
    compiled = not Execution.read(str(bundle.facts(rank).get("execution", "eager"))).eager
    # An import has placed what order can place.
    by_order = compiled and not bundle.imported
    launches = by_order or arguments_known(bundle, rank)
    columns = dict.fromkeys((*_COLUMNS, "module", *(_LAUNCH if launches else ()), *extra))
    rows = kernels_in_order(bundle, rank, list(columns))
    modules = bundle.frame("modules", rank)
    names = NameColumn(rows["name"])
    by_name = names.codes(lambda name: _code(classify(name).component))
    # Whatever exchanges data is a collective; what it serves is found as if its name said nothing.
    exchanges = by_name == CODES["collective"]
    by_name[exchanges] = -1
    ownership = _by_range(rows, modules, by_name)
    drafts = _of_drafter(bundle, rank, rows, ownership) | _while_drafting(bundle, rank, modules)
    owned = own_launches(bundle, rank, rows, ownership, by_name, exchanges, drafts)
    copies = names.flags(lambda name: name in _COPY_OPERATORS)
    copies |= copies_in(rows)
    copied = np.flatnonzero(copies)
    ownership.component[copied[rows["module"].to_numpy()[copied] <= FINISH]] = CODES["memcpy"]
    if by_order and not owned:
        _by_order(bundle, rank, rows, by_name, ownership)
    if not bundle.imported:
        serve(bundle, rank, rows, ownership, exchanges, fused=True)
        between_layers(bundle, rank, rows, ownership, exchanges)
    _give_to_drafter(ownership, drafts)
    name_collectives(rows["name"], ownership, exchanges)
    component, basis = ownership.component, ownership.basis
    bare = np.flatnonzero(component < 0)
    component[bare], basis[bare] = by_name[bare], BASIS["none"]
    basis[basis == BASIS["none"]] = BASIS["name"]
    nothing = bare[component[bare] < 0]
    component[nothing], basis[nothing] = CODES["other"], BASIS["none"]
    without_layer = np.array([name in COMPONENTS_WITHOUT_LAYER for name in COMPONENTS])
    natural = without_layer[component] | ownership.settled
    rows = rows.drop(columns=[name for name in columns if name not in (*_COLUMNS, *extra)])
    return rows.assign(
        component=pd.Categorical.from_codes(component, categories=pd.Index(COMPONENTS)),
        layer=ownership.layer,
        placed=(ownership.layer >= 0) | (natural & (component != CODES["other"])),
        basis=pd.Categorical.from_codes(basis, categories=pd.Index(BASES)),
        role=pd.Categorical.from_codes(ownership.role, categories=pd.Index(ownership.roles)),
        **({} if ownership.reads is None else {"reads": ownership.reads}),
    )


def _by_range(rows: pd.DataFrame, modules: pd.DataFrame, by_name: Codes) -> Ownership:
    """What the modules that were open tell, or what an importer found in their place."""
    modules = modules.sort_values("module").drop_duplicates("module")
    at = positions(modules["module"].to_numpy(), rows["module"].to_numpy())
    parts = np.array([*map(_code, modules["component"]), -1], np.int8)
    # Of what has no component an encoder or a drafter is told still.
    paths = [
        role if name or part_of(role) else ""
        for role, name in zip(map(role_of, modules["path"]), modules["component"], strict=True)
    ]
    roles = {role: number for number, role in enumerate(dict.fromkeys(("", LM_HEAD, *paths)))}
    role = np.array([*map(roles.__getitem__, paths), 0], np.min_scalar_type(-len(roles)))
    basis = np.where(parts >= 0, BASIS["range"], BASIS["none"]).astype(np.int8)[at]
    by_module = parts[at]
    for mark in _OF_IMPORT.keys() & set(rows["placed_by"].cat.categories):
        basis[(rows["placed_by"] == mark).to_numpy() & (by_module >= 0)] = _OF_IMPORT[mark]
    return Ownership(
        component=most_exact(by_module, by_name),
        layer=rows["layer"].to_numpy(),
        role=role[at],
        basis=basis,
        settled=by_module >= 0,
        roles=tuple(roles),
    )


def _of_drafter(bundle: Bundle, rank: int, rows: pd.DataFrame, ownership: Ownership) -> Flags:
    """The rows that a module of the drafter launched, or a CUDA graph that was captured for it."""
    of_role = np.array([part_of(role) == DRAFTER for role in ownership.roles])
    drafts: Flags = of_role[ownership.role]
    if "graph_node" in rows:
        drafts |= in_graphs_of(bundle, rank, DRAFTER, rows["graph_node"].to_numpy(np.int64))
    return drafts


def _while_drafting(bundle: Bundle, rank: int, modules: pd.DataFrame) -> Flags:
    """The rows that were launched while the call that drafts was open, in order of start.

    Also what a drafter shares with the model, such as a rotary embedding or lm_head.
    """
    numbers = modules.loc[modules["path"] == DRAFTING, "module"]
    if numbers.empty:
        return np.zeros(1, bool)  # which goes with any number of rows
    rows = kernels_in_order(bundle, rank, ["kind", "start_ns", "correlation"])
    ranges = bundle.frame("ranges", rank, ["module", "start_ns", "end_ns"])
    ranges = ranges[ranges["module"].isin(numbers).to_numpy()].sort_values("start_ns")
    host = bundle.frame("host", rank, ["correlation", "start_ns"])
    correlations, first = np.unique(host["correlation"].to_numpy(np.int64), return_index=True)
    at = positions(correlations, rows["correlation"].to_numpy(np.int64))
    called = np.append(host["start_ns"].to_numpy(np.int64)[first], -1)[at]
    # An operator is its own launch.
    launched = np.where(rows["kind"] == "op", rows["start_ns"].to_numpy(np.int64), called)
    begin, end = (ranges[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    drafting: Flags = stretch_at(launched, begin, end) >= 0
    return drafting


def _give_to_drafter(ownership: Ownership, drafts: Flags) -> None:
    """Makes what a drafter runs its own, in place: also where it reads what the model holds.

    A drafter's `lm_head` may be the model's module; its product is `drafter.lm_head` all the same.
    """
    rows = np.flatnonzero(drafts)
    if not len(rows):
        return
    theirs = [
        role if part_of(role) == DRAFTER else f"{DRAFTER}.{role}".rstrip(".")
        for role in ownership.roles
    ]
    numbers = {text: n for n, text in enumerate(dict.fromkeys((*ownership.roles, *theirs)))}
    of_role = np.array([numbers[role] for role in theirs], np.int32)
    ownership.roles, ownership.role = tuple(numbers), ownership.role.astype(np.int32)
    ownership.role[rows] = of_role[ownership.role[rows]]
    # Its layers are none of the decoder's.
    ownership.layer = ownership.layer.copy()
    ownership.layer[rows] = -1


def _by_order(
    bundle: Bundle, rank: int, rows: pd.DataFrame, by_name: Codes, ownership: Ownership
) -> None:
    """Places the kernels of a compiled model between attention and experts, in place."""
    names, module = NameColumn(rows["name"]), rows["module"].to_numpy()
    modules = bundle.frame("modules", rank)
    nodes = nodes_of(bundle, rank, rows["graph_node"].to_numpy())
    root = modules.loc[modules["path"] == MODEL_PATH, "module"]
    host = bundle.frame("host", rank, ["name", "correlation", "start_ns"])
    in_model = _replayed(host, rows, nodes)
    in_model |= module == (int(root.iloc[0]) if len(root) else -2)
    experts = by_name == CODES["experts"]
    # Products that run in a marked call of their own, whatever they are called.
    marked = modules[
        modules["path"].str.endswith(_SWAPPED) & ~modules["component"].isin(_NO_PRODUCTS)
    ]
    swapped = np.isin(module, marked["module"].to_numpy())
    # What adds up the parts of a split product is one more stretch of it.
    rest = names.flags(finishes_gemm)
    launched = Launched(
        step=rows["step"].to_numpy(),
        layer=ownership.layer,
        component=np.where(
            in_model | swapped, np.where(experts, by_name, np.int8(-1)), ownership.component
        ),
        # Swapped matrices are placed already, but what is beside them counts products.
        loose=(in_model | swapped) & ~experts,
        gemm=names.flags(is_gemm) | rest | swapped,
        begins=_begins(rows, swapped, rest),
        opens=names.flags(lambda name: classify(name).component in ("embedding", "collective")),
    )
    config = bundle.facts(rank).get("model_config")
    products = products_of(bundle.frame("layers", rank), config)
    order = launch_order(rows, host, nodes)
    at = slice(None) if order is None else order
    ordered, layer = np.empty_like(launched.component), np.empty_like(launched.layer)
    ordered[at], layer[at] = place_by_order(launched.reordered(at), products)
    placed = in_model & (ordered >= 0)
    named = (by_name >= 0) & (by_name != CODES["memcpy"])
    ownership.component = np.where(placed, np.where(named, by_name, ordered), ownership.component)
    ownership.layer = np.where(in_model, layer, ownership.layer)
    ownership.settled |= placed
    ownership.basis[placed] = BASIS["order"]


def _begins(rows: pd.DataFrame, swapped: Flags, rest: Flags) -> Flags:
    """Which rows begin a product, as far as they are of one."""
    begins: Flags = (rows["part"].to_numpy() == 0) & ~rest
    if swapped.any():
        first = ~rows.duplicated(["step", "module"]).to_numpy()
        begins = np.where(swapped, first, begins)
    return begins


def kernels_in_order(bundle: Bundle, rank: int, columns: Sequence[str]) -> pd.DataFrame:
    """Columns of the `kernels` table, `start_ns` among them, in order of start."""
    rows = bundle.frame("kernels", rank, columns)
    if not ascends(rows["start_ns"].to_numpy()):
        rows = rows.sort_values("start_ns", kind="stable", ignore_index=True)
    return rows


def unseen_captures(bundle: Bundle, rank: int) -> float | None:
    """The share of the kernel time in CUDA graphs whose capture nobody saw, 0 to 1; None if none.

    Of graphs whose nodes were seen and whose kernels took 90 us, and others of 10 us: 0.1.
    """
    rows = bundle.frame("kernels", rank, ("start_ns", "end_ns", "step", *_LAUNCH))
    host = bundle.frame("host", rank, ["name", "correlation"])
    took = (rows["end_ns"] - rows["start_ns"]).to_numpy()
    nodes = nodes_of(bundle, rank, rows["graph_node"].to_numpy())
    unseen = int(took[_replayed(host, rows, nodes)].sum())
    every = unseen + int(took[nodes != 0].sum())
    return unseen / every if every else None


def _code(component: str | None) -> int:
    return CODES.get(component or "", -1)


def _replayed(host: pd.DataFrame, rows: pd.DataFrame, nodes: Integers) -> Flags:
    """The kernels of a step's CUDA graphs whose capture nobody saw."""
    launches = host.loc[NameColumn(host["name"]).flags(lambda name: "GraphLaunch" in name)]
    graphs = np.unique(launches["correlation"].to_numpy())
    graphs = graphs[graphs >= 0]
    if not len(graphs):
        return np.zeros(len(rows), bool)
    inside: Flags = positions(graphs, rows["correlation"].to_numpy()) >= 0
    unseen: Flags = inside & (rows["step"].to_numpy() >= 0) & (nodes == 0)
    return unseen
