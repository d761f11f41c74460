"""Which kernel does which piece of work, in one step that stands for a group of those like it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from spark_prof.analyzers.classify.classifier import is_gemm
from spark_prof.analyzers.lookup import positions
from spark_prof.analyzers.roofline.needs import LayerWork, ModelShape, StepLoad, reading
from spark_prof.analyzers.roofline.roofline_rows import Place
from spark_prof.analyzers.roofline.weight_bytes import Weights
from spark_prof.rules.components import DRAFTER, LM_HEAD, part_of
from spark_prof.traces.host_timeline import MODEL_PATH
from spark_prof.vocabulary import BASIS_CLASSES, COPIES

BY_TENSOR = "the tensors that its arguments point to"
BY_ORDER = "the products in launch order"
ONLY = "the component's only product"
BY_TIME = "split by time among the component's products"
LONGEST = "the component's longest kernel"
SMALL = "split by time among the component's small kernels"


@dataclass(frozen=True)
class Launch:
    """One kernel of a step."""

    name: str
    component: str  # what it works for
    layer: int  # its decoder layer, -1 for none
    ns: int
    basis: str = "range"  # on what its owner stands, of the vocabulary
    role: str = ""  # of the module that it works for; empty where that is not known
    # Of the module that was open when it was launched; empty where that is not known.
    path: str = ""
    reads: tuple[int, ...] = ()  # rows of the `tensors` table that its arguments point to

    @property
    def proven(self) -> bool:
        """Whether its owner is known and no guess, such as one by order or name."""
        return self.basis in BASIS_CLASSES["proven"]

    @property
    def drafts(self) -> bool:
        """Whether a drafter computes logits with it."""
        return self.component == LM_HEAD and part_of(self.role) == DRAFTER

    @property
    def place(self) -> Place:
        """Where its time and its needs count."""
        return Place(self.component, self.role, self.name)


class AttributedWork(NamedTuple):
    """A share of a piece of work that falls to the kernels of one place."""

    place: Place
    work: LayerWork  # what it does
    share: float  # how much of it, 1 for all
    basis: str  # how it was found to do it


def attributed_work(launches: Iterable[Launch], works: Iterable[LayerWork]) -> list[AttributedWork]:
    """Gives every piece of work to the kernels, in launch order, that are known to do it.

    A weight goes to the kernels that point to it. One that no kernel points to, and all else, goes
    to kernels of its layer and component whose owner is proven: those of its own module first, and
    if none ran in that layer, those that have no layer. Work without any is attributed to none.
    """
    reading: dict[int, list[Launch]] = defaultdict(list)
    proven: dict[tuple[str, int], list[Launch]] = defaultdict(list)
    for launch in launches:
        for tensor in launch.reads:
            reading[tensor].append(launch)
        if launch.proven:
            proven[launch.component, launch.layer].append(launch)
    attributed: list[AttributedWork] = []
    works_of_place: dict[tuple[str, int], list[LayerWork]] = defaultdict(list)
    for work in works:
        if mine := reading.get(work.weights.tensor) if work.weights else None:
            # Of a head that is tied to the embedding, the lookup reads some rows.
            mine = [launch for launch in mine if launch.component == work.component] or mine
            attributed += _by_time(mine, work, BY_TENSOR)
            continue
        place = (work.component, work.layer)
        works_of_place[place if place in proven else (work.component, -1)].append(work)
    for place, members in works_of_place.items():
        for some, theirs in _by_module(proven.get(place, []), members):
            attributed += _in_one_place(some, theirs)
    return attributed


def drafted_work(
    launches: Iterable[Launch], weights: Iterable[Weights], load: StepLoad, shape: ModelShape
) -> list[AttributedWork]:
    """What a drafter reads of a head, its own or the model's that it shares.

    It reads it once in each of its passes, with a token for each request: a matrix that kernels of
    one name point to twice in a step counts twice. Of what no argument tells nothing counts.
    """
    heads = {
        w.tensor: w for w in weights if w.tensor >= 0 and w.component == LM_HEAD and w.elements
    }
    reads: dict[int, list[Launch]] = defaultdict(list)
    for launch in launches:
        for tensor in heads.keys() & set(launch.reads):
            reads[tensor].append(launch)
    a_pass = replace(load, tokens=load.requests, sampled=load.requests)
    attributed: list[AttributedWork] = []
    for tensor, readers in reads.items():
        work = reading(heads[tensor], a_pass, shape)
        mine = [launch for launch in readers if launch.component == work.component]
        passes = min(Counter(launch.name for launch in mine).values(), default=0)
        if passes:
            need = work.need
            need = replace(
                need,
                streamed=passes * need.streamed,
                other=passes * need.other,
                operations=passes * need.operations,
            )
            attributed += _by_time(mine, replace(work, need=need), BY_TENSOR)
    return attributed


def _by_module(
    launches: Sequence[Launch], works: Sequence[LayerWork]
) -> Iterable[tuple[list[Launch], list[LayerWork]]]:
    """Splits what is in one layer and component by the modules that were open."""
    idle = [number for number, launch in enumerate(launches) if not launch.reads]
    owners: dict[tuple[int, ...], list[LayerWork]] = defaultdict(list)
    rest: list[LayerWork] = []
    for work in works:
        if work.weights is None:
            continue
        path = work.weights.path
        inside = [n for n in idle if path and _within(launches[n].path, path)]
        inside = inside or [n for n in idle if launches[n].path and _within(path, launches[n].path)]
        if inside:
            owners[tuple(inside)].append(work)
        else:
            rest.append(work)
    claimed = {number for numbers in owners for number in numbers}
    yield from (([launches[n] for n in numbers], members) for numbers, members in owners.items())
    # Whose module is not known reads no factor unless it is a product itself.
    products = [n for n in idle if n not in claimed and is_gemm(launches[n].name)]
    yield [launches[n] for n in products], rest
    yield list(launches), [work for work in works if work.weights is None]


def _within(path: str, whole: str) -> bool:
    return path == whole or path.startswith(f"{whole}.")


def _in_one_place(launches: Sequence[Launch], works: Sequence[LayerWork]) -> list[AttributedWork]:
    if not launches:
        return []
    gemms = [launch for launch in launches if is_gemm(launch.name)]
    rest = [launch for launch in launches if not is_gemm(launch.name)]
    products = [w for w in works if w.kind == "product"]
    products.sort(key=lambda work: work.weights.order if work.weights else 0)
    attributed = _products(gemms, products, launches)
    for work in works:
        if work.kind in ("attention", "kv_write", "state", "small"):
            # A product among attention's kernels is rather a projection of its latents.
            attributed.append(AttributedWork(_longest(rest or launches), work, 1.0, LONGEST))
        elif work.kind != "product":
            attributed += _by_time(rest or launches, work, SMALL)
    return attributed


def _products(
    gemms: Sequence[Launch], works: Sequence[LayerWork], launches: Sequence[Launch]
) -> list[AttributedWork]:
    if not works:
        return []
    if len(gemms) <= 1:
        place, basis = (gemms[0].place, ONLY) if gemms else (_longest(launches), LONGEST)
        return [AttributedWork(place, work, 1.0, basis) for work in works]
    if len(gemms) == len(works):
        # Both products of a mixture of experts run in one module, the first one first.
        pairs = zip(gemms, works, strict=True)
        return [AttributedWork(launch.place, work, 1.0, BY_ORDER) for launch, work in pairs]
    return [charge for work in works for charge in _by_time(gemms, work, BY_TIME)]


def _longest(launches: Sequence[Launch]) -> Place:
    return max(launches, key=lambda launch: launch.ns).place


def _by_time(launches: Sequence[Launch], work: LayerWork, basis: str) -> list[AttributedWork]:
    times: Counter[Place] = Counter()
    for launch in launches:
        # A kernel of no length still ran.
        times[launch.place] += max(launch.ns, 1)
    total = times.total()
    return [AttributedWork(place, work, ns / total, basis) for place, ns in times.most_common()]


_MOST_GROUPS = 8
_MOST_LAUNCHES = 100_000


class StepGroup(NamedTuple):
    """Steps of one phase with about as many tokens."""

    step: int  # the one that stands for them, a step from their middle
    load: StepLoad
    share: float  # of the phase's steps


def groups_of(steps: pd.DataFrame, phase: str) -> list[StepGroup]:
    """The steps of a phase in at most 8 groups, fewest tokens first.

    Steps of which nobody recorded the tokens are in none.
    """
    of_phase = steps[(steps["phase"] == phase).to_numpy()]
    requests = of_phase["prefill_requests"] + of_phase["decode_requests"]
    loads = pd.DataFrame(
        {
            "tokens": of_phase["prefill_tokens"] + of_phase["decode_tokens"],
            "requests": requests,
            # Of a prompt only the last token's logits are wanted.
            "sampled": of_phase["decode_tokens"] + of_phase["prefill_requests"],
            "context": of_phase["context_tokens"].clip(lower=0) / requests,
        }
    )
    loads = loads[(loads["tokens"] > 0) & (loads["requests"] > 0)]
    sizes = np.unique(loads["tokens"])
    # Neighbours share a group where there are many sizes.
    bounds = [part[0] for part in np.array_split(sizes, min(len(sizes), _MOST_GROUPS) or 1)[1:]]
    number = np.searchsorted(np.array(bounds), loads["tokens"], side="right")
    return [
        StepGroup(
            int(mine.index[len(mine) // 2]),
            StepLoad(*map(float, mine.mean())),
            len(mine) / len(loads),
        )
        for _, mine in loads.groupby(number)
    ]


def launches_of(
    kernels: pd.DataFrame, steps: list[int], modules: pd.DataFrame
) -> dict[int, list[Launch]]:
    """The kernels of those steps in order of start, copies left out.

    None of a step with more kernels than any decoder launches: it is no step of one.
    """
    numbers = np.unique(np.array(steps, np.int64))
    rows = kernels.iloc[np.flatnonzero(positions(numbers, kernels["step"].to_numpy()) >= 0)]
    rows = rows[~rows["kind"].isin(COPIES).to_numpy() & (rows["part"] == 0).to_numpy()]
    counts = rows["step"].value_counts()
    rows = rows[~rows["step"].isin(counts.index[counts > _MOST_LAUNCHES]).to_numpy()]
    # The model as a whole is open around everything that only its order places.
    components = modules[
        ((modules["component"] != "") & (modules["path"] != MODEL_PATH)).to_numpy()
    ]
    path_of = dict(zip(components["module"], components["path"], strict=True))
    paths = [
        path_of.get(module, "") if placed_by == "" else ""
        for module, placed_by in zip(rows["module"], rows["placed_by"], strict=True)
    ]
    reads = rows["reads"] if "reads" in rows else [()] * len(rows)
    values = [rows[name] for name in ("name", "component", "layer")]
    values += [rows["end_ns"] - rows["start_ns"], rows["basis"], rows["role"]]
    launches: dict[int, list[Launch]] = {step: [] for step in steps}
    for step, *fields in zip(rows["step"], *values, paths, reads, strict=True):
        launches[step].append(Launch(*fields))
    return launches
