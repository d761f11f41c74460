"""Node by node: the owners of a decode step's kernels, against an eager run of the same model.

The eager run has a range around every module, so that the owner of each of its kernels is known
from the recording itself. Four comparisons, of which each can fail:

- the eager run's kernels that read a weight or a KV cache, against the range that was open;
- kernels that occur in both runs, by name and as often: in order, owner against range;
- kernels of the other run that read a weight: their layers ascend, layers of one kind read the same
  in the same order, and each layer's products read what the eager run's do;
- kernels of the other run that share data with those: layers of one kind give one name one owner.

A recording without kernels' arguments, such as one on a CPU, has only something for the second.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.collectives import served_by
from spark_prof.analyzers.attribution.order import launch_order, nodes_of
from spark_prof.analyzers.attribution.placement import kernels_in_order, place_kernels
from spark_prof.analyzers.classify.classifier import is_gemm
from spark_prof.analyzers.windows import timed_windows
from spark_prof.rules.components import role_of
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.host_timeline import MODEL_PATH
from spark_prof.vocabulary import BASIS_CLASSES, COPIES

PROVEN = BASIS_CLASSES["proven"]
DERIVED = BASIS_CLASSES["derived"]
HAS_OWNER = PROVEN + DERIVED
PRODUCTS = frozenset(
    {"qkv", "attention", "o_proj", "router", "experts", "shared_experts", "mlp", "ssm"}
)
"""Components of a layer whose kernels multiply with a weight; norms and rope fuse at will."""

_COLUMNS = (
    *("short", "name", "layer", "component", "role", "basis"),
    *("range_layer", "range_role", "range_component"),
)
"""The column of each field of `Owned` but the last two, in its order."""


@dataclass(frozen=True)
class Owned:
    """One kernel of a decode step.

    Attributes:
        name: without what differs from compilation to compilation.
        full_name: as recorded.
        layer: by the analyzers, -1 for none.
        component: by the analyzers.
        role: by the analyzers, empty where unknown; of a collective what it serves.
        basis: on what these stand, of `vocabulary.BASES`.
        range_layer: layer open at its launch, -1 for none.
        range_role: role of the module open at its launch, empty for none.
        range_component: of that module, empty where its path says none.
        took_ns: median duration over the steps.
        fused: whether it reads weights of several modules, none of which has all of them.
        reads_weight: whether it reads a weight; a table of rope is a buffer.
    """

    name: str
    full_name: str
    layer: int
    component: str
    role: str
    basis: str
    range_layer: int
    range_role: str
    range_component: str
    took_ns: float
    fused: bool = False
    reads_weight: bool = True

    @property
    def product(self) -> bool:
        """Whether the kernel reads a weight of a layer that it multiplies with.

        Attention's sinks are none: its cache, or the open module, may prove the same owner.
        """
        multiplies = self.component != "attention" or is_gemm(self.full_name)
        of_layer = self.layer >= 0 and self.component in PRODUCTS
        return self.basis == "weight" and of_layer and multiplies

    @property
    def range_product(self) -> bool:
        """Whether it is a matrix product by name and a layer's by range."""
        return self.range_layer >= 0 and bool(self.range_role) and is_gemm(self.full_name)


@dataclass(frozen=True)
class Comparison:
    """What came of one architecture.

    Attributes:
        kernels: of a decode step, copies left out.
        weight_kernels: those that read a weight.
        compared: kernels of both runs whose owner was compared.
        not_comparable: kernels with a proven or derived owner that only the second run has.
        wrong: a line for each kernel or layer whose owner is not the eager run's.
        shares: share of the decode kernels' time by class of basis, 0 to 1.
        layers_found: layers of the model that own a kernel by proof or data flow.
        component_difference: share of the compared kernels' time in another component.
        derived: derived owners that were compared and are right, are wrong (and among `wrong`), and
            that only the second run has.
    """

    kernels: int
    weight_kernels: int
    compared: int
    not_comparable: int
    wrong: tuple[str, ...]
    shares: dict[str, float]
    layers_found: int
    component_difference: float
    derived: dict[str, int]


def compare(eager: Sequence[Owned], other: Sequence[Owned], layers: int) -> Comparison:
    """Compares the two runs' decode steps.

    Args:
        eager: the step of the run with ranges.
        other: the step of the run in question.
        layers: decoder layers of the model, drafters left out.

    Example:
        >>> one = Owned("gemm", "gemm", 0, "mlp", "mlp.up", "weight", 0, "mlp.up", "mlp", 1.0)
        >>> compare([one], [one], 1).wrong
        ()
    """
    pairs, alone = _pairs(eager, other)
    wrong = [
        f"eager: {_owner(k)} by {k.basis}, but in the range of {_range(k)}: {k.name}"
        for k in eager
        if k.basis in ("weight", "kv") and k.range_role and not within(k, k)
    ]
    unlike = [(truth, k) for truth, k in pairs if not within(k, truth)]
    wrong += [
        f"{_owner(k)} by {k.basis}, eager in the range of {_range(truth)}: {k.name}"
        for truth, k in unlike
    ]
    kinds = _kinds(_eager_products(eager, other))
    wrong += _weights_out_of_place(eager, other)
    apart = _derived_apart(other, kinds)
    wrong += apart
    derived = [k for k in other if k.basis in DERIVED]
    derived_wrong = sum(k.basis in DERIVED for _, k in unlike) + len(apart)
    derived_right = sum(k.basis in DERIVED and within(k, truth) for truth, k in pairs)
    time = sum(k.took_ns for k in other)
    same_time = sum(k.took_ns for _, k in pairs)
    elsewhere = sum(k.took_ns for truth, k in pairs if k.component != truth.component)
    return Comparison(
        kernels=len(other),
        weight_kernels=sum(k.basis == "weight" for k in other),
        compared=len(pairs),
        not_comparable=sum(k.basis in HAS_OWNER and not k.product for k in alone),
        wrong=tuple(wrong),
        shares={
            name: sum(k.took_ns for k in other if k.basis in bases) / max(time, 1.0)
            for name, bases in BASIS_CLASSES.items()
        },
        layers_found=len(
            {k.layer for k in other if k.basis in HAS_OWNER and 0 <= k.layer < layers}
        ),
        component_difference=elsewhere / max(same_time, 1.0),
        derived={
            "right": derived_right,
            "wrong": derived_wrong,
            "not_comparable": len(derived) - derived_right - derived_wrong,
        },
    )


def _pairs(
    eager: Sequence[Owned], other: Sequence[Owned]
) -> tuple[list[tuple[Owned, Owned]], list[Owned]]:
    """Kernels of both runs, in order within a name, and those without a partner.

    Only names that occur as often in both, and owners that are more than a guess; a lookup in the
    embedding is no partner of one of that name in the table of rope. Modules that do not wait for
    one another, such as parallel attention and MLP, the compiler may turn around: of kernels that
    read a weight, those of a layer that are only in another order are paired anew.
    """
    times = Counter(k.name for k in eager)
    common = {n for n, count in Counter(k.name for k in other).items() if times.get(n) == count}
    theirs: dict[str, list[Owned]] = {name: [] for name in common}
    for kernel in eager:
        if kernel.name in common:
            theirs[kernel.name].append(kernel)
    waiting = {name: iter(kernels) for name, kernels in theirs.items()}
    pairs, alone = [], []
    for kernel in other:
        if kernel.name not in common:
            alone.append(kernel)
        else:
            truth = next(waiting[kernel.name])
            both = kernel.basis == truth.basis == "weight"
            if both and kernel.reads_weight != truth.reads_weight:
                alone.append(kernel)
            elif kernel.basis in HAS_OWNER and (truth.range_role or truth.range_layer >= 0):
                pairs.append((truth, kernel))
    return _turned(pairs), alone


def _turned(pairs: Sequence[tuple[Owned, Owned]]) -> list[tuple[Owned, Owned]]:
    """The pairs, with the truths of a name and layer exchanged where each then fits another."""
    matched = list(pairs)
    apart = [
        i for i, (truth, kernel) in enumerate(matched)
        if kernel.basis == "weight" and not within(kernel, truth)
    ]  # fmt: skip
    for i, j in itertools.combinations(apart, 2):
        (one, ours), (other, theirs) = matched[i], matched[j]
        same = ours.name == theirs.name and one.range_layer == other.range_layer
        if same and within(ours, other) and within(theirs, one):
            matched[i], matched[j] = (other, ours), (one, theirs)
    return matched


def within(kernel: Owned, truth: Owned) -> bool:
    """Whether the owner is that of the range: same layer, and one module inside the other.

    An owner without a layer or role is no wrong one: it abstains. What is no product of a layer may
    read another module's weight of the same component: a top-k the bias of the router's gate, and
    the logits lm_head's or the embedding's matrix. What is fused over several modules, the model
    that has them all launches; there the two runs must agree.
    """
    if truth.fused and truth.range_role == MODEL_PATH:
        return (kernel.layer, kernel.role) == (truth.layer, truth.role)
    if kernel.layer >= 0 and kernel.layer != truth.range_layer:
        return False
    if not kernel.role or not truth.range_role or _nested(kernel.role, truth.range_role):
        return True
    if kernel.component == "collective":
        # What is reduced is the sum of routed and shared experts, in one order or the other; where
        # no module is known the component stands for it.
        both = all("experts" in role for role in (kernel.role, truth.range_role))
        return both or kernel.role == truth.range_component
    strict = kernel.layer >= 0 and is_gemm(kernel.full_name)
    # Inside a range, a kernel's name may be more exact; of the kernel itself it proves nothing.
    components = {truth.range_component, "" if truth is kernel else truth.component}
    return not strict and kernel.component in components


def _nested(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _weights_out_of_place(eager: Sequence[Owned], other: Sequence[Owned]) -> list[str]:
    """What kernels that read weights say against one another and against the eager run."""
    wrong = []
    last = -1
    readers = Counter((k.layer, k.role) for k in other if k.basis == "weight")
    for kernel in other:
        if kernel.basis == "weight" and kernel.layer >= 0:
            if kernel.layer < last:
                wrong.append(f"layer {kernel.layer} after layer {last}: {_owner(kernel)}")
            # Work on a weight alone, such as 1 + a norm's, the compiler may do layers ahead.
            if kernel.product or readers[kernel.layer, kernel.role] > 1:
                last = max(last, kernel.layer)
    theirs = _eager_products(eager, other)
    # A range says no more than the module whose parts the other run's weights name.
    modules = set(itertools.chain.from_iterable(theirs.values()))
    products = [(k, _enclosing(k.role, modules)) for k in other if k.product]
    ours = _in_runs([(k.layer, role) for k, role in products])
    if not ours:
        return wrong
    gemms = _in_runs([(k.layer, role) for k, role in products if is_gemm(k.full_name)])
    called = {(k.range_layer, k.range_role) for k in eager}
    for layers in _kinds(theirs):
        first = ours.get(layers[0], [])
        for layer in layers:
            truth = Counter(theirs[layer])
            if (missing := truth - Counter(ours.get(layer, []))).total():
                wrong.append(f"layer {layer} does not read {_counted(missing)}")
            extra = Counter(gemms.get(layer, [])) - truth
            # The eager run may call another kernel for it, that is no product by its name.
            extra = Counter(
                {r: n for r, n in extra.items() if truth[r] or (layer, r) not in called}
            )
            if extra.total():
                wrong.append(f"layer {layer} reads {_counted(extra)}, eager it does not")
            if ours.get(layer, []) != first:
                wrong.append(f"layer {layer} reads otherwise than layer {layers[0]}, of its kind")
    wrong += [
        f"layer {layer} has products, eager it has none" for layer in gemms if layer not in theirs
    ]
    return wrong


def _eager_products(eager: Sequence[Owned], other: Sequence[Owned]) -> dict[int, list[str]]:
    """The roles of the products of each layer of the eager run, in order, as the other names them.

    What only the range tells may enclose what the other's weight names, or lie inside it.
    """
    named = {k.role for k in other if k.product}
    return _in_runs(
        [
            (k.layer, k.role) if k.product else (k.range_layer, _as_named(k.range_role, named))
            for k in eager
            if k.range_product
        ]
    )


def _kinds(products: Mapping[int, Sequence[str]]) -> list[list[int]]:
    """The layers with the same products."""
    kinds: dict[tuple[str, ...], list[int]] = {}
    for layer, roles in products.items():
        kinds.setdefault(tuple(sorted(roles)), []).append(layer)
    return list(kinds.values())


def _derived_apart(other: Sequence[Owned], kinds: Sequence[Sequence[int]]) -> list[str]:
    """Derived owners that are others in one layer than in the first one of its kind.

    Compared are names that both layers run as often: the compiler fuses otherwise at their borders.
    """
    kernels_of: dict[tuple[int, str], list[Owned]] = {}
    for kernel in other:
        if kernel.basis in (*DERIVED, "stream"):
            kernels_of.setdefault((kernel.layer, kernel.name), []).append(kernel)
    wrong = []
    for first, *layers in kinds:
        for layer, (of, name) in itertools.product(layers, kernels_of):
            mine, theirs = kernels_of.get((layer, name), []), kernels_of[of, name]
            if of == first and len(mine) == len(theirs):
                wrong += [
                    f"{_owner(k)} by {k.basis}, but {_owner(one)}: {name}"
                    for k, one in zip(mine, theirs, strict=True)
                    if (k.component, k.role) != (one.component, one.role)
                ]
    return wrong


def _enclosing(role: str, roles: Collection[str]) -> str:
    """The role, or the one of these that it lies in where it is none of them itself."""
    around = [one for one in roles if role.startswith(f"{one}.")]
    return role if role in roles or len(around) != 1 else around[0]


def _as_named(role: str, roles: Collection[str]) -> str:
    """The one of these roles that stands for a range, which may enclose it or lie inside it."""
    near = [one for one in roles if _nested(one, role)]
    return role if role in near or len(near) != 1 else near[0]


def _in_runs(products: Sequence[tuple[int, str]]) -> dict[int, list[str]]:
    """The roles of each layer's products, in order; one for a run of kernels of one role.

    How many kernels one module's product takes is the engine's choice: split, or w13 and w2.

    Example:
        >>> _in_runs([(0, "qkv"), (0, "mlp"), (0, "mlp"), (1, "qkv")])
        {0: ['qkv', 'mlp'], 1: ['qkv']}
    """
    roles_of: dict[int, list[str]] = {}
    for layer, role in products:
        roles = roles_of.setdefault(layer, [])
        if not roles or roles[-1] != role:
            roles.append(role)
    return roles_of


def _owner(kernel: Owned) -> str:
    return f"layer {kernel.layer} {kernel.role or kernel.component}"


def _range(kernel: Owned) -> str:
    return f"layer {kernel.range_layer} {kernel.range_role or '(none)'}"


def _counted(roles: Counter[str]) -> str:
    return ", ".join(f"{count} x {role}" for role, count in sorted(roles.items()))


def decode_step(bundle: Bundle, batch: int = 1, rank: int | None = None) -> list[Owned]:
    """The kernels of the usual decode step of that batch size, in launch order.

    Usual is the sequence of kernels that most decode steps have; durations are medians over them.

    Args:
        bundle: the recording.
        batch: decoding requests of the step.
        rank: whose step, the first one's if None.

    Raises:
        ValueError: no such step was recorded.
    """
    rank = bundle.ranks[0] if rank is None else rank
    rows = place_kernels(bundle, rank, ["correlation", "graph_node"])
    raw = kernels_in_order(bundle, rank, ["start_ns", "module", "layer"])
    modules = bundle.frame("modules", rank).set_index("module")
    roles = raw["module"].map(modules["path"].map(role_of)).fillna("")
    components = raw["module"].map(modules["component"].astype(str)).fillna("")
    rows = rows.assign(
        short=rows["name"].astype(str).map(_short),
        took=rows["end_ns"] - rows["start_ns"],
        range_layer=raw["layer"].to_numpy(),
        range_role=roles.to_numpy(),
        range_component=components.to_numpy(),
    )
    for name, otherwise in (("basis", "range"), ("role", "")):
        if name not in rows:
            rows[name] = otherwise
    host = bundle.frame("host", rank, ["correlation", "start_ns"])
    order = launch_order(rows, host, nodes_of(bundle, rank, rows["graph_node"].to_numpy()))
    windows = timed_windows(bundle, rank, rows).steps
    rows = rows if order is None else rows.iloc[order]
    decode_steps = windows[(windows["phase"] == "decode") & (windows["decode_requests"] == batch)]
    rows = rows[rows["step"].isin(decode_steps.index) & ~rows["kind"].astype(str).isin(COPIES)]
    steps = dict(list(rows.groupby("step")))
    if not steps:
        raise ValueError(f"no decode step of {batch} request(s) was recorded")
    sequences = {step: tuple(group["short"]) for step, group in steps.items()}
    [(usual, _)] = Counter(sequences.values()).most_common(1)
    usual_steps = [steps[step] for step, names in sequences.items() if names == usual]
    # Of steps without graphs, only some were recorded with their kernels' arguments.
    kernels = max(usual_steps, key=lambda group: (group["basis"] == "weight").sum())
    collective = (kernels["component"] == "collective").to_numpy()
    served = (
        kernels["role"].astype(str).where(~collective, kernels["role"].map(served_by).astype(str))
    )
    kernels = kernels.assign(role=served)
    took = np.median([group["took"].to_numpy() for group in usual_steps], axis=0)
    columns = (kernels[column].tolist() for column in _COLUMNS)
    weights = kernels["reads"].map(bool) if "reads" in kernels else kernels["basis"] == "weight"
    facts = (took.tolist(), _fused(kernels, bundle.frame("tensors", rank)), weights.tolist())
    return [Owned(*values) for values in zip(*columns, *facts, strict=True)]


def _fused(rows: pd.DataFrame, tensors: pd.DataFrame) -> list[bool]:
    """Whether each kernel reads weights of several modules, none of which has all of them."""
    if "reads" not in rows:
        return [False] * len(rows)
    fused = []
    for read in rows["reads"].tolist():
        weights = tensors.loc[list(read), ["address", "module"]].groupby("address")["module"]
        having = [set(modules) for _, modules in weights]
        fused.append(bool(having) and not set.intersection(*having))
    return fused


def _short(name: str) -> str:
    """A kernel's name without numbers that differ from compilation to compilation."""
    name = name.replace("(anonymous namespace)", "anonymous").partition("(")[0]
    return re.sub(r"(?<=[a-z_])\d+$", "", name)
