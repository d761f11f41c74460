"""Whose data a kernel works on that reads no weight: that of a neighbour whose owner is known.

Two launches are neighbours where both hold an address of an activation, and none in between does.
What a kernel reads was written before it, so its owner is that of the nearest neighbour before
(the parts of a split product are added up for the product); only conversions and fills, whose
result alone counts, work for the nearest one after.

A matrix product has a weight of its own; products that share their input belong to several modules.
So a product takes no owner over from a neighbour. Nor does a collective: what it serves is found
without data, and handed on to who reads its result.

Memory is used again: what a kernel only writes held another kernel's data before. So a neighbour
counts only if its layer fits between those of the proven launches before and after, and an address
only as far as the kernel may read what the other left there. Two families of kernels tell:

- Inductor gives its Triton kernels what they read before what they write, so that the first
  argument is read, but of those that only fill memory. It decides whose data it is.
- PyTorch's elementwise kernels have their pointers in one array: the result, then what they read.

What the model itself launches between its modules, such as a last residual add, belongs to no
layer: it takes an owner over only from modules of the model that have none either.

Addresses that more than a third of a step's launches hold are workspaces, and tell nothing but to
kernels that are known to read them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Names
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.owners import in_array
from spark_prof.analyzers.classify.classifier import fills
from spark_prof.analyzers.lookup import Integers
from spark_prof.arrays import Flags, Int64s

IN_MODULE, BETWEEN_MODULES, OUTSIDE = 0, 1, 2
"""Where a kernel was launched: by a module, or by the model itself between its marked modules, so
that it is of none of its layers; outside of the model."""

_READ, _EITHER, _WRITES = 1, 0, -1
_READS_FIRST = re.compile(r"triton_(?:poi|red|per)_fused")

_ROUNDS = 16  # an owner is handed on over so many launches that read no weight, in each direction
_WORKSPACE = 3  # the share of launches that hold a workspace, as a divisor
_FEW = 6  # in steps with fewer launches no address counts as a workspace
_FAR = np.iinfo(np.int64).max


@dataclass(frozen=True)
class LaunchSequence:
    """Launches in launch order, one step after the other; arrays have one entry each."""

    step: Integers
    component: Integers  # code of the component, -1 for none yet
    # Code of the component that the kernel's name tells, -1 for none; among kernels that share data
    # it is the more exact one.
    named: Integers
    layer: Integers  # decoder layer, -1 for none yet, or for none at all
    role: Integers  # number of the role
    settled: Flags  # whether component and layer are proven
    to_consumer: Flags  # whether it works for what comes after it
    product: Flags  # whether it is a matrix product by name
    # Whether it is a collective, which takes no owner over and whose layer bounds nobody's; None
    # for none.
    exchanges: Flags | None = None
    # Where it was launched: IN_MODULE, BETWEEN_MODULES or OUTSIDE; None where nothing tells.
    place: Integers | None = None


def use_of(arguments: pd.DataFrame, name: Integers, names: Names[str]) -> Integers:
    """Whether words among kernels' arguments are read (1), only written (-1) or either (0)."""
    reads = np.array([bool(_READS_FIRST.match(one)) and not fills(one) for one in names] + [False])
    only_writes = np.array([bool(fills(one)) for one in names] + [False])
    use = np.where(reads[name] & (arguments["argument"] == 0).to_numpy(), _READ, _EITHER)
    use[only_writes[name]] = _WRITES
    array = in_array(arguments, name, names)
    use[array] = np.where(arguments["offset"].to_numpy()[array] == 0, _WRITES, _READ)
    return use


def follow(rows: LaunchSequence, addresses: pd.DataFrame) -> Flags:
    """Gives owners to launches without one, in place, and returns which got one.

    A component or a layer that one has already is kept: what serves all layers, such as rope, takes
    the layer alone.

    Args:
        addresses: of activations: `holder` (place of the launch), `address`, and `use` as `use_of`
            has it.
    """
    before = _neighbours(rows, addresses)
    after = before[::-1]
    around = _proven_around(rows)
    proven = rows.settled.copy()
    # Each waits for its nearest neighbour's owner; only where nobody finds one, it looks beyond.
    late, early = rows.to_consumer, ~rows.to_consumer
    for beyond in (False, True):
        for forward, of in ((True, late), (False, early), (True, early), (False, late)):
            _spread(rows, after if forward else before, of, around, forward=forward, beyond=beyond)
    return rows.settled & ~proven


def _neighbours(rows: LaunchSequence, addresses: pd.DataFrame) -> Int64s:
    """Pairs of launches, the later one first, that hold an address with none in between."""
    words = addresses.assign(step=rows.step[addresses["holder"]])
    # What is written in place is read, too: its first entry says so.
    order = np.lexsort((-words["use"], words["holder"], words["address"], words["step"]))
    words = words.iloc[order].drop_duplicates(["step", "address", "holder"])
    holders = words.groupby(["step", "address"], sort=False)["holder"]
    words = words.assign(before=holders.shift(fill_value=-1), holders=holders.transform("size"))
    in_step = words["step"].map(pd.Series(rows.step).value_counts())
    workspace = (words["holders"] * _WORKSPACE > in_step) & (in_step >= _FEW)
    may_read = np.where(workspace, words["use"] == _READ, words["use"] != _WRITES)
    pairs = words[may_read & (words["before"] >= 0)]
    holder, reads = pairs["holder"].to_numpy(), (pairs["use"] == _READ).to_numpy()
    # What has a component already lacks a layer, which any neighbour that fits may tell.
    decided = np.zeros(len(rows.step), bool)
    decided[holder[reads]] = True
    chosen = reads | ~(decided & (rows.component < 0))[holder]
    neighbours: Int64s = pairs[["holder", "before"]].to_numpy(np.int64)[chosen].T
    return neighbours


def _proven_around(rows: LaunchSequence) -> tuple[Integers, Integers]:
    """The layers of the nearest proven launches of the step before and after each, -2 for none."""
    proven = rows.settled if rows.exchanges is None else rows.settled & ~rows.exchanges
    layers = pd.Series(np.where(proven, rows.layer, np.nan)).groupby(rows.step)
    before, after = layers.ffill().fillna(-2), layers.bfill().fillna(-2)
    return before.to_numpy().astype(np.int64), after.to_numpy().astype(np.int64)


def _spread(
    rows: LaunchSequence,
    pairs: Int64s,
    of: Flags,
    around: tuple[Integers, Integers],
    *,
    forward: bool,
    beyond: bool,
) -> None:
    """Takes owners over from neighbours on one side until nothing changes."""
    open_ones = of & ~rows.settled & ~rows.product
    if rows.exchanges is not None:
        open_ones &= ~rows.exchanges
    launch, other = pairs[:, open_ones[pairs[0]]]
    for _ in range(_ROUNDS):
        has_owner = rows.settled[other]
        usable = np.where(has_owner, _fits(rows, launch, other, around), not beyond)
        nearest = np.full(len(rows.step), _FAR if forward else -1)
        pick = np.minimum if forward else np.maximum
        pick.at(nearest, launch[usable], other[usable])
        receivers = np.flatnonzero((nearest >= 0) & (nearest < _FAR) & ~rows.settled)
        source = nearest[receivers]
        owned = rows.settled[source]
        receivers, source = receivers[owned], source[owned]
        if not len(receivers):
            return
        bare = rows.component[receivers] < 0
        named = rows.named[receivers[bare]]
        rows.component[receivers[bare]] = np.where(named < 0, rows.component[source[bare]], named)
        rows.role[receivers[bare]] = rows.role[source[bare]]
        rows.layer[receivers] = np.where(
            rows.layer[receivers] < 0, rows.layer[source], rows.layer[receivers]
        )
        rows.settled[receivers] = True


def _fits(
    rows: LaunchSequence, launch: Integers, other: Integers, around: tuple[Integers, Integers]
) -> Flags:
    layer, fixed = rows.layer[other], rows.layer[launch]
    before, after = around[0][launch], around[1][launch]
    between = (before >= 0) & (before <= layer) & (layer <= after)
    fits = between | (layer == before) | (layer == after) | ((before == -2) & (after == -2))
    # What has a component already lacks a layer.
    fits &= (rows.component[launch] < 0) | (layer >= 0)
    if rows.place is not None:
        between_modules = rows.place[launch] == BETWEEN_MODULES
        fits &= ~between_modules | ((layer < 0) & (rows.place[other] != OUTSIDE))
    matches: Flags = fits & ((fixed < 0) | (fixed == layer))
    return matches
