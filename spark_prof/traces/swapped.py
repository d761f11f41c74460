"""Which kernels of this package ran in a recorded engine in place of vLLM's own.

A recording tells it itself: its worker wrote down what it had swapped in when the window opened.
An older one does not; of a recording of `spark-prof ab` the result beside it tells.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_prof.rules.components import component_of

if TYPE_CHECKING:  # vLLM's processes read only what the facts of workers are called
    import pandas as pd

    from spark_prof.traces.bundle import Bundle

SWAPS = "swaps"
"""The fact of a worker: a list of mappings with `slot`, `kernel`, `bits` and `places`."""

_RESULT = "result.json"
_MOST_BYTES = 64 << 20
_QUANTIZED = {"mxfp4": "mxfp4", "fp8": "fp8"}
"""What weights become that a kernel quantizes at load, by the kernel's name."""
_EXPERTS = ".routed_experts"
"""What vLLM's own module is called in the one whose experts are swapped."""


@dataclass(frozen=True)
class SwappedSlot:
    """A kernel that ran in a slot of the model."""

    slot: str  # as `spark-prof ab` names it, such as qkv
    kernel: str  # such as mxfp4 or spark_prof; empty where only names of kernels tell of it
    layers: int  # in how many places; 0 where nothing tells
    # Of slot layer: those of its parts' modules, as attention may be vLLM's; empty where untold.
    components: tuple[str, ...] = ()


@dataclass(frozen=True)
class SwappedPlace:
    """A module whose kernel is not vLLM's."""

    slot: str
    name: str  # its path in the model
    kernel: str
    format: str  # what its weights were quantized to at load; empty where they kept their bits
    bytes: int  # that the kernel's weights take


def swapped_places(bundle: Bundle, rank: int) -> tuple[SwappedPlace, ...]:
    """The modules of a rank with another kernel; none where nothing tells of one.

    [place.kernel for place in swapped_places(Bundle(path), 0)] == ["mxfp4", ...]
    """
    facts = bundle.facts(rank)
    if SWAPS in facts:
        return tuple(_of_facts(facts[SWAPS]))
    if bundle.imported:
        return ()
    return tuple(_of_result(bundle.path.absolute(), rank))


def swapped_slots(places: Iterable[SwappedPlace]) -> tuple[SwappedSlot, ...]:
    """The slots of those modules with the kernel of each, in their order."""
    names: dict[tuple[str, str], set[str]] = {}
    for place in places:
        names.setdefault((place.slot, place.kernel), set()).add(place.name)
    return tuple(
        SwappedSlot(slot, kernel, len(modules), _components(modules) if slot == "layer" else ())
        for (slot, kernel), modules in names.items()
    )


def _components(modules: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({component_of(name, "") for name in modules} - {""}))


def fact_of(places: Iterable[SwappedPlace]) -> dict[str, list[dict[str, Any]]]:
    """The fact that a worker would have told of those modules; none of none.

    fact_of([SwappedPlace("o", "layers.0.o_proj", "mxfp4", "mxfp4", 9)])["swaps"][0]["slot"] == "o"
    """
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for place in places:
        bits = "changed" if place.format else "kept"
        row = {"slot": place.slot, "kernel": place.kernel, "bits": bits, "places": {}}
        key = (place.slot, place.kernel, bits)
        rows.setdefault(key, row)["places"][place.name] = place.bytes
    return {SWAPS: list(rows.values())} if rows else {}


def layers_of(bundle: Bundle, rank: int) -> pd.DataFrame:
    """The table `layers` with the kernel and the weights that ran, not those that vLLM loaded."""
    layers = bundle.frame("layers", rank)
    places = swapped_places(bundle, rank)
    if not places or layers.empty:
        return layers
    texts = ("quant_method", "kernel", "weight_dtype", "parameters")
    layers_as_run = layers.astype(dict.fromkeys(texts, object))
    at = {str(path): number for number, path in enumerate(layers["path"])}
    for place in places:
        number = at.get(place.name + _EXPERTS, at.get(place.name))
        if number is None:
            continue
        row = layers_as_run.index[number]
        kernel = "spark_prof" if place.kernel == "spark_prof" else f"spark_prof {place.kernel}"
        layers_as_run.loc[row, "kernel"] = kernel
        if place.format and place.bytes > 0:
            layers_as_run.loc[row, ["quant_method", "weight_dtype", "parameters"]] = (
                f"spark_prof {place.format}", place.format, "",
            )  # fmt: skip
            layers_as_run.loc[row, "bytes"] = place.bytes
    return layers_as_run


def tensors_of(bundle: Bundle, rank: int) -> pd.DataFrame:
    """The table `tensors` with the weights that ran where a kernel quantized them at load."""
    tensors = bundle.frame("tensors", rank)
    narrow = {p.name: p for p in swapped_places(bundle, rank) if p.format and p.bytes > 0}
    if tensors.empty or not narrow:
        return tensors
    tensors_as_run = tensors.astype({"dtype": object, "format": object})
    is_narrow = (tensors_as_run["kind"] == "weight") & tensors_as_run["module"].astype(str).isin(
        narrow
    )
    largest = (
        tensors_as_run[is_narrow].sort_values("bytes", ascending=False).drop_duplicates("module")
    )
    for row, module in largest["module"].astype(str).items():
        place = narrow[module]
        tensors_as_run.loc[row, ["dtype", "format"]] = "uint8", place.format
        tensors_as_run.loc[row, "bytes"] = place.bytes
    return tensors_as_run


def _of_facts(fact: object) -> Iterator[SwappedPlace]:
    for row in fact if isinstance(fact, list) else ():
        places = row.get("places") if isinstance(row, Mapping) else None
        if not isinstance(places, Mapping):
            continue
        for name, size in places.items():
            yield from _place(row, str(name), size)


def _of_result(folder: Path, rank: int) -> Iterator[SwappedPlace]:
    """What the result beside a recording says of its side."""
    try:
        path = folder.parent / _RESULT
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return
        result = json.loads(path.read_bytes())
        side = next(r["side"] for r in result["recordings"] if r["folder"] == folder.name)
        rows = [r for worker in result["swaps"] if worker["rank"] == rank for r in worker["swaps"]]
        for row in rows:
            if row["side"] == side and row["state"] == "live":
                yield from _place(row, str(row["name"]), row["bytes"])
    except (OSError, ValueError, KeyError, TypeError, StopIteration, RecursionError):
        return  # no result of ab's, or one of another make


def _place(row: Mapping[str, Any], name: str, size: object) -> Iterator[SwappedPlace]:
    slot, kernel = str(row.get("slot") or ""), str(row.get("kernel") or "")
    if not slot or not kernel:
        return
    form = _QUANTIZED.get(kernel, "") if row.get("bits") == "changed" else ""
    yield SwappedPlace(slot, name, kernel, form, size if isinstance(size, int) else 0)
