"""Which layers' kernels are known: alike layers run alike, and all layers of the model are found.

What fails is in no layer of any figure, its kernels are shown without one: of a layer that runs
other kernels than those of its kind only the components that differ.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.breakdown import sums_of
from spark_prof.analyzers.ceilings.config import Config, layer_kinds
from spark_prof.analyzers.classify.evidence import evidence_of
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.analyzers.model import Broken
from spark_prof.analyzers.windows import timed_windows
from spark_prof.errors import CommandError
from spark_prof.rules.components import component_of
from spark_prof.traces.bundle import Bundle, table_file
from spark_prof.traces.swapped import swapped_places
from spark_prof.traces.tables import TABLES
from spark_prof.vocabulary import COMPONENTS_WITHOUT_LAYER, PHASES

_MOST_LAYERS = 8
_BLOCKS = frozenset({"attention", "ssm", "experts", "mlp"})  # layers of one kind have the same
_PARTS = _BLOCKS | {"qkv", "o_proj", "router", "shared_experts", "collective"}
"""A layer of which one of these is not known is held against none that has it."""
_AT_THE_BORDER = frozenset({"norm", "collective"})
"""What is fused with the embedding before the first layer, or with what follows the last."""
_FUSED = "triton_"
"""Inductor's kernels: those of the first and the last layer are fused with what is outside."""

WHOLE = ""
"""Instead of a component: everything of a layer."""

Parts = frozenset[tuple[int, str]]
"""Layers, each with a component or WHOLE."""

_Kernels = frozenset[tuple[str, int, bool]]
"""A component, how many of its kernels ran, and whether Inductor fused them."""


@dataclass(frozen=True, eq=False)
class LayerTables:
    """What the layers of a recording are held against."""

    sums: pd.DataFrame  # what `breakdown.sums_of` returned
    modules: pd.DataFrame  # layer and component of the `layers` table
    config: Mapping[str, Any]  # the model's configuration as Hugging Face writes it
    # Of matrices that are one with the norm before them: the first layer's has nothing to add up.
    normed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, bundle: Bundle, rank: int, sums: pd.DataFrame) -> LayerTables:
        """The tables of one rank: with its modules and configuration."""
        modules = bundle.frame("layers", rank, ["layer", "component"])
        normed = {
            component_of(place.name, "")
            for place in swapped_places(bundle, rank)
            if place.slot == "layer" and "_proj" in place.name.rpartition(".")[2]
        }
        config = mapping_in(bundle.facts(rank), "model_config")
        return cls(sums, modules, config, frozenset(normed))


def with_known_layers(bundle: Bundle, rank: int, placed: pd.DataFrame) -> pd.DataFrame:
    """The kernels without the layers that a report of that rank does not show."""
    if not bundle.meta.tables.get(table_file("steps", rank)):
        return placed
    # Where no step's times can be believed, there is no report either.
    with suppress(CommandError):
        sums = sums_of(placed, timed_windows(bundle, rank, placed).steps["phase"])
        placed = without_layers(placed, unknown_layers(LayerTables.of(bundle, rank, sums)))
    return placed


def unknown_layers(tables: LayerTables) -> Parts:
    """The parts of layers that fail a check."""
    failed = [*(layers_alike(tables) or ()), *(found_layers(tables) or ())]
    return frozenset(part for one in failed for part in parts_of(one.key))


def parts_of(key: Sequence[object]) -> Parts:
    """What the key of a check that failed here says is not known."""
    layers, components = key
    assert isinstance(layers, tuple)
    assert isinstance(components, tuple)
    return frozenset(product(layers, components))


def without_layers(rows: pd.DataFrame, unknown: Parts) -> pd.DataFrame:
    """The rows, those of the unknown parts in no layer."""
    if not unknown:
        return rows
    wrong = rows["layer"].isin([layer for layer, component in unknown if component == WHOLE])
    for name in {component for _, component in unknown} - {WHOLE}:
        layers = [layer for layer, component in unknown if component == name]
        wrong |= (rows["component"] == name) & rows["layer"].isin(layers)
    natural = rows["component"].isin(COMPONENTS_WITHOUT_LAYER)
    layer = rows["layer"].mask(wrong, -1).astype(rows["layer"].dtype)
    return rows.assign(layer=layer, placed=rows["placed"] & (natural | ~wrong))


def layers_alike(tables: LayerTables) -> list[Broken] | None:
    """Layers that run other kernels than others of their kind; None where no two are of a kind."""
    kinds = kinds_of(tables.config, tables.modules)
    calls = _calls_of_layers(tables.sums)
    layers_of_kind: dict[str, dict[int, _Kernels]] = defaultdict(dict)
    for layer, kernels in calls.items():
        if layer in kinds:
            layers_of_kind[kinds[layer]][layer] = kernels
    if not any(len(layers) > 1 for layers in layers_of_kind.values()):
        return None
    ends = {max(calls): _AT_THE_BORDER, min(calls): _AT_THE_BORDER | tables.normed}
    return [
        broken
        for kind, layers in layers_of_kind.items()
        for broken in _differing(kind, layers, ends)
    ]


def _differing(
    kind: str, layers: Mapping[int, _Kernels], ends: Mapping[int, Collection[str]]
) -> Iterable[Broken]:
    inner = [kernels_of_layer for layer, kernels_of_layer in layers.items() if layer not in ends]
    usual, _ = Counter(inner or layers.values()).most_common(1)[0]
    unlike = {
        layer: {
            part for part, _, fused in kernels_of_layer ^ usual if layer not in ends or not fused
        }.difference(ends.get(layer, ()))
        for layer, kernels_of_layer in layers.items()
    }
    deviants = sorted(layer for layer, names in unlike.items() if names)
    for kernels in dict.fromkeys(layers[layer] for layer in deviants):
        same = [layer for layer in deviants if layers[layer] == kernels]
        differ = sorted(set[str]().union(*(unlike[layer] for layer in same)))
        yield Broken(
            f"Layers of one kind ({kind}) do not run the same: {_listed(same)} differ in "
            f"{', '.join(differ)} from the {len(layers) - len(deviants)} others. Whose those "
            "kernels are is not known.",
            f"layers: {_listed(same)}",
            (tuple(same), tuple(differ)),
        )


def found_layers(tables: LayerTables) -> list[Broken] | None:
    """All layers, where they are not those of the model; None where its layers are unknown."""
    expected = {int(n) for n in tables.modules["layer"].unique() if n >= 0}
    expected = expected or set(range(Config(tables.config).layers))
    reported = {int(n) for n in tables.sums["layer"].unique() if n >= 0}
    if not expected or not reported:
        return None
    missing, extra = sorted(expected - reported), sorted(reported - expected)
    if not missing and not extra:
        return []
    parts = [f"{_listed(missing)} were not found"] if missing else []
    parts += [f"{_listed(extra)} are none of its"] if extra else []
    text = f"The model has {len(expected)} layers, the report {len(reported)}: {'; '.join(parts)}. "
    why = "Which kernels belong to which layer is not known."
    return [Broken(text + why, "layers", (tuple(sorted(reported)), (WHOLE,)))]


def by_kind(components: Mapping[int, Iterable[str]]) -> list[list[int]]:
    """The layers of each kind, by what each layer has: only such are held against each other."""
    kinds: dict[frozenset[str], list[int]] = defaultdict(list)
    for layer, names in components.items():
        kinds[_PARTS.intersection(names)].append(layer)
    return list(kinds.values())


def kinds_of(config: Mapping[str, Any], layers: pd.DataFrame) -> dict[int, str]:
    """The kind of each decoder layer, by configuration and live model; empty where unknown.

    Layers of one mixer may still be of two kinds: with experts, or dense as the first ones of
    DeepSeek's models. The `layers` table tells which; without it only a model without experts has
    kinds that are known.
    """
    read = Config(config)
    kinds = layer_kinds(read)
    blocks: dict[int, set[str]] = defaultdict(set)
    for layer, component in zip(layers["layer"], layers["component"], strict=True):
        if layer >= 0 and component in _BLOCKS:
            blocks[int(layer)].add(str(component))
    if blocks:
        return {
            layer: " ".join([*kinds[layer : layer + 1], *sorted(names)])
            for layer, names in blocks.items()
        }
    return {} if read.experts else dict(enumerate(kinds))


def _calls_of_layers(sums: pd.DataFrame) -> dict[int, _Kernels]:
    """By layer, how many kernels of each component all decode steps ran."""
    rows = sums[(sums["phase"] == "decode").to_numpy() & (sums["layer"] >= 0).to_numpy()]
    rows = rows.assign(fused=rows["name"].astype(str).str.startswith(_FUSED))
    counts = rows.groupby(["layer", "component", "fused"], observed=True)[["calls"]].sum()
    calls_of: dict[int, _Kernels] = defaultdict(frozenset)
    for (layer, component, fused), calls in counts.itertuples(name=None):
        calls_of[int(layer)] |= {(str(component), calls, bool(fused))}
    return calls_of


def _listed(layers: Sequence[int]) -> str:
    listing = ", ".join(map(str, layers[:_MOST_LAYERS]))
    return (
        f"{listing} and {len(layers) - _MOST_LAYERS} more"
        if len(layers) > _MOST_LAYERS
        else listing
    )


LABELS = ("phase", "component", "engine", "precision", "evidence", "conversion")
"""The columns that `label_kernels` adds, all of them text; empty where nothing is known."""


def label_kernels(bundle: Bundle, rank: int) -> pd.DataFrame:
    """The kernels of a rank with their labels, in order of start.

    Returns:
        The columns of the `kernels` table, in which `layer` is where the kernel was placed, or -1
        where a report knows no layer of it, and `LABELS`, as categories.
    """
    schema = TABLES["kernels"].schema.names
    placed = with_known_layers(bundle, rank, place_kernels(bundle, rank, schema))
    names = placed["name"].cat
    evidence = evidence_of(bundle, rank)
    labels = [evidence.label(str(name)) for name in names.categories]
    codes = names.codes.to_numpy()
    placed["layer"] = placed["layer"].astype(np.int32)
    placed["phase"] = _phases(bundle, rank, placed["step"])
    for column in ("engine", "precision", "evidence", "conversion"):
        words = np.array([*(getattr(label, column) or "" for label in labels), ""], object)
        placed[column] = pd.Categorical(words)[codes]
    return placed[[*schema, *LABELS]]


def _phases(bundle: Bundle, rank: int, step: pd.Series) -> pd.Categorical:
    steps = bundle.frame("steps", rank, ["step", "phase"]).drop_duplicates("step")
    words = ["", *PHASES]
    phase = pd.Categorical(steps["phase"].astype(str), words)
    codes = np.append(np.maximum(phase.codes, 0), np.int8(0))
    position = pd.Index(steps["step"]).get_indexer(pd.Index(step))
    return pd.Categorical.from_codes(codes[position], categories=pd.Index(words, dtype=object))
