"""Which kernel does which piece of work, in one step that stands for those like it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spark_prof.analyzers.classify.classifier import is_gemm
from spark_prof.analyzers.roofline.model import Place
from spark_prof.analyzers.roofline.needs import Work
from spark_prof.vocabulary import BASIS_CLASSES

BY_TENSOR = "the tensors that its arguments point to"
BY_ORDER = "the products in launch order"
ONLY = "the component's only product"
BY_TIME = "split by time among the component's products"
LONGEST = "the component's longest kernel"
SMALL = "split by time among the component's small kernels"

_MOST_SHARERS = 64


@dataclass(frozen=True)
class Launch:
    """One kernel of a step.

    Attributes:
        name: the kernel.
        component: what it works for.
        layer: its decoder layer, -1 for none.
        ns: how long it took.
        basis: on what its owner stands, of the vocabulary.
        role: of the module that it works for; empty where that is not known.
        path: of the module that was open when it was launched; empty where that is not known.
        reads: rows of the `tensors` table that its arguments point to.
    """

    name: str
    component: str
    layer: int
    ns: int
    basis: str = "range"
    role: str = ""
    path: str = ""
    reads: tuple[int, ...] = ()

    @property
    def proven(self) -> bool:
        """Whether its owner is known and no guess, such as one by order or name."""
        return self.basis in BASIS_CLASSES["proven"]

    @property
    def place(self) -> Place:
        """Where its time and its needs count."""
        return Place(self.component, self.role, self.name)


@dataclass(frozen=True)
class Charge:
    """A share of a piece of work that falls to the kernels of one place.

    Attributes:
        place: component, role and name.
        work: what it does.
        share: how much of it, 1 for all.
        basis: how it was found to do it.
    """

    place: Place
    work: Work
    share: float
    basis: str


def charges_of(launches: Iterable[Launch], works: Iterable[Work]) -> list[Charge]:
    """Gives every piece of work to the kernels that are known to do it.

    A weight goes to the kernels that point to it. One that no kernel points to, and all else, goes
    to kernels of its layer and component whose owner is proven: those of its own module first, and
    if none ran in that layer, those that have no layer. Work without any is attributed to none.

    Args:
        launches: the kernels of one step in launch order.
        works: what the step does, each layer in the model's order.
    """
    reading: dict[int, list[Launch]] = defaultdict(list)
    ran: dict[tuple[str, int], list[Launch]] = defaultdict(list)
    for launch in launches:
        for tensor in launch.reads:
            reading[tensor].append(launch)
        if launch.proven:
            ran[launch.component, launch.layer].append(launch)
    charges: list[Charge] = []
    wanted: dict[tuple[str, int], list[Work]] = defaultdict(list)
    for work in works:
        mine = reading.get(work.weights.tensor, []) if work.weights else []
        if mine:
            # Of a head that is tied to the embedding, the lookup reads some rows.
            mine = [launch for launch in mine if launch.component == work.component] or mine
            charges += _by_time(mine, work, BY_TENSOR)
            continue
        place = (work.component, work.layer)
        wanted[place if place in ran else (work.component, -1)].append(work)
    for place, members in wanted.items():
        for some, theirs in _by_module(ran.get(place, []), members):
            charges += _in_one_place(some, theirs)
    return charges


def _by_module(
    launches: Sequence[Launch], works: Sequence[Work]
) -> Iterable[tuple[list[Launch], list[Work]]]:
    """Splits what is in one layer and component by the modules that were open."""
    idle = [number for number, launch in enumerate(launches) if not launch.reads]
    owners: dict[tuple[int, ...], list[Work]] = defaultdict(list)
    rest: list[Work] = []
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
    taken = {number for numbers in owners for number in numbers}
    yield from (([launches[n] for n in numbers], found) for numbers, found in owners.items())
    # Whose module is not known reads no factor unless it is a product itself.
    products = [n for n in idle if n not in taken and is_gemm(launches[n].name)]
    yield [launches[n] for n in products], rest
    yield list(launches), [work for work in works if work.weights is None]


def _within(path: str, whole: str) -> bool:
    return path == whole or path.startswith(f"{whole}.")


def _in_one_place(launches: Sequence[Launch], works: Sequence[Work]) -> list[Charge]:
    if not launches:
        return []
    gemms = [launch for launch in launches if is_gemm(launch.name)]
    rest = [launch for launch in launches if not is_gemm(launch.name)]
    products = sorted((w for w in works if w.kind == "product"), key=lambda work: work.order)
    charges = _products(gemms, products, launches)
    for work in works:
        if work.kind in ("attention", "kv_write", "state", "small"):
            # A product among attention's kernels is rather a projection of its latents.
            charges.append(_whole(_longest(rest or launches), work, LONGEST))
        elif work.kind != "product":
            charges += _by_time(rest or launches, work, SMALL)
    return charges


def _products(
    gemms: Sequence[Launch], works: Sequence[Work], launches: Sequence[Launch]
) -> list[Charge]:
    if not works:
        return []
    if len(gemms) <= 1:
        chosen, basis = (gemms[0], ONLY) if gemms else (_longest(launches), LONGEST)
        return [_whole(chosen, work, basis) for work in works]
    if len(gemms) == len(works):
        # Both products of a mixture of experts run in one module, the first one first.
        return [_whole(*pair, BY_ORDER) for pair in zip(gemms, works, strict=True)]
    return [charge for work in works for charge in _by_time(gemms, work, BY_TIME)]


def _longest(launches: Sequence[Launch]) -> Launch:
    return max(launches, key=lambda launch: launch.ns)


def _whole(launch: Launch, work: Work, basis: str) -> Charge:
    return Charge(launch.place, work, 1.0, basis)


def _by_time(launches: Sequence[Launch], work: Work, basis: str) -> list[Charge]:
    times: Counter[Place] = Counter()
    for launch in launches:
        # A kernel of no length still ran.
        times[launch.place] += max(launch.ns, 1)
    longest = times.most_common(_MOST_SHARERS)
    total = sum(ns for _, ns in longest)
    return [Charge(place, work, ns / total, basis) for place, ns in longest]
