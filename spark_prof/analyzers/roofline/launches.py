"""Which kernel does which piece of work, in one step that stands for those like it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spark_prof.analyzers.classify.classifier import is_gemm
from spark_prof.analyzers.roofline.needs import Work

__all__ = ["Charge", "Launch", "charges_of"]

BY_ORDER = "the products in launch order"
ONLY = "the component's only product"
BY_TIME = "split by time among the component's products"
LONGEST = "the component's longest kernel"
SMALL = "split by time among the component's small kernels"

_MOST_SHARERS = 64


@dataclass(frozen=True)
class Launch:
    """One kernel of a step."""

    name: str
    component: str
    layer: int
    ns: int


@dataclass(frozen=True)
class Charge:
    """A share of a piece of work that falls to the kernel of that name.

    Attributes:
        name: the kernel.
        work: what it does.
        share: how much of it, 1 for all.
        basis: how it was found to do it.
    """

    name: str
    work: Work
    share: float
    basis: str


def charges_of(launches: Iterable[Launch], works: Iterable[Work]) -> list[Charge]:
    """Gives every piece of work to kernels of its layer and component.

    Work whose layer has no such kernel goes to the kernels of its component that have no layer; if
    there is none either, nobody is charged.

    Args:
        launches: the kernels of one step in launch order.
        works: what the step does, each layer in the model's order.
    """
    ran: dict[tuple[str, int], list[Launch]] = defaultdict(list)
    for launch in launches:
        ran[launch.component, launch.layer].append(launch)
    wanted: dict[tuple[str, int], list[Work]] = defaultdict(list)
    for work in works:
        place = (work.component, work.layer)
        wanted[place if place in ran else (work.component, -1)].append(work)
    return [
        charge
        for place, members in wanted.items()
        if place in ran
        for charge in _in_one_place(ran[place], members)
    ]


def _in_one_place(launches: Sequence[Launch], works: Sequence[Work]) -> list[Charge]:
    gemms = [launch for launch in launches if is_gemm(launch.name)]
    rest = [launch for launch in launches if not is_gemm(launch.name)]
    products = sorted((w for w in works if w.kind == "product"), key=lambda work: work.order)
    charges = _products(gemms, products, launches)
    for work in works:
        if work.kind in ("attention", "kv_write", "state", "small"):
            # A product among attention's kernels is rather a projection of its latents.
            longest = max(rest or launches, key=lambda launch: launch.ns)
            charges.append(Charge(longest.name, work, 1.0, LONGEST))
        elif work.kind != "product":
            charges += _by_time(rest or launches, work, SMALL)
    return charges


def _products(
    gemms: Sequence[Launch], works: Sequence[Work], launches: Sequence[Launch]
) -> list[Charge]:
    if not works:
        return []
    if not gemms:
        longest = max(launches, key=lambda launch: launch.ns)
        return [Charge(longest.name, work, 1.0, LONGEST) for work in works]
    if len(gemms) == 1:
        return [Charge(gemms[0].name, work, 1.0, ONLY) for work in works]
    if len(gemms) == len(works):
        pairs = zip(gemms, works, strict=True)
        return [Charge(gemm.name, work, 1.0, BY_ORDER) for gemm, work in pairs]
    return [charge for work in works for charge in _by_time(gemms, work, BY_TIME)]


def _by_time(launches: Sequence[Launch], work: Work, basis: str) -> list[Charge]:
    times: Counter[str] = Counter()
    for launch in launches:
        # A kernel of no length still ran.
        times[launch.name] += max(launch.ns, 1)
    longest = times.most_common(_MOST_SHARERS)
    total = sum(ns for _, ns in longest)
    return [Charge(name, work, ns / total, basis) for name, ns in longest]
