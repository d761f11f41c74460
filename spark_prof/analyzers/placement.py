"""Gives every kernel its component and layer, and says on what that stands.

In this order: the module whose call launched it; a name that is more exact than its module (a KV
write inside attention, a top-k inside experts); the order of kernels in a compiled model; the
name alone; else the component `other`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.classify.classifier import classify, finishes_gemm, is_gemm
from spark_prof.analyzers.launch_order import launch_order, nodes_of
from spark_prof.analyzers.order import place_by_order
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.timeline import FINISH, MODEL_PATH
from spark_prof.vocabulary import COMPONENTS, COMPONENTS_WITHOUT_LAYER

__all__ = ["place_kernels"]

_CODES = {name: code for code, name in enumerate(COMPONENTS)}
"""A million components are compared as numbers; -1 is none, which as an index is the last."""

_MORE_EXACT = {
    "attention": ("kv_write", "rope", "collective"),
    "experts": ("router", "collective"),
    "mlp": ("collective",),
    "o_proj": ("collective",),
    "shared_experts": ("collective",),
    "lm_head": ("collective",),
    "embedding": ("collective",),
}
"""For a module's component, the components that a kernel's name may make of it."""

_COPY_OPERATORS = ("aten::copy_", "aten::_to_copy", "aten::fill_", "aten::zero_")

_COLUMNS = (
    "name", "kind", "start_ns", "end_ns", "part", "step", "module", "layer", "correlation",
    "graph_node",
)  # fmt: skip


def place_kernels(bundle: Bundle, rank: int) -> pd.DataFrame:
    """The kernels of a rank, in order of start.

    Returns:
        name, kind, start_ns, end_ns, part, step, layer (-1 for none), component, and `placed`:
        whether the row has a layer or a component that has none by its nature.
    """
    rows = bundle.frame("kernels", rank, _COLUMNS)
    modules = bundle.frame("modules", rank).set_index("module")
    # One look at each distinct name, however many kernels there are.
    names = rows["name"].cat.categories
    name_of = rows["name"].cat.codes.to_numpy()
    by_name = np.array([_code(classify(name).component) for name in names] + [-1])[name_of]
    copies = np.array([name in _COPY_OPERATORS for name in names] + [False])[name_of]
    copies |= rows["kind"].isin(["memcpy", "memset"]).to_numpy()

    module = rows["module"].to_numpy(np.int64)
    by_module = _by_module(modules["component"], module)
    component = np.where(_more_exact()[by_module, by_name], by_name, by_module)
    component[(module <= FINISH) & copies] = _CODES["memcpy"]

    layer = rows["layer"].to_numpy(np.int64)
    if not str(bundle.facts(rank).get("execution", "eager")).startswith("eager"):
        root = modules.index[modules["path"] == MODEL_PATH]
        in_model = (module == (int(root[0]) if len(root) else -2)) | _replayed(bundle, rank, rows)
        known = np.array([*COMPONENTS, None], object)[component]
        known[in_model] = np.where(by_name[in_model] == _CODES["experts"], "experts", "")
        # What adds up the parts of a split product is one more stretch of it.
        rest = np.array([finishes_gemm(name) for name in names] + [False])[name_of]
        gemm = np.array([is_gemm(name) for name in names] + [False])[name_of] | rest
        order = launch_order(bundle, rank, rows)
        # As objects: pandas would turn a million strings into its own kind and back.
        launched = pd.DataFrame({
            "step": rows["step"], "part": np.where(rest, 1, rows["part"]), "layer": layer,
            "component": pd.Series(known, rows.index, object),
        })  # fmt: skip
        placed, placed_layer = np.empty(len(rows), object), np.empty(len(rows), np.int64)
        placed[order], placed_layer[order] = place_by_order(
            launched.iloc[order], gemm[order], _products(bundle, rank),
            np.isin(by_name, [_CODES["embedding"], _CODES["collective"]])[order],
        )  # fmt: skip
        ordered = pd.Index(COMPONENTS, dtype=object).get_indexer(pd.Index(placed, dtype=object))
        by_order = in_model & (ordered >= 0)
        named = (by_name >= 0) & (by_name != _CODES["memcpy"])
        component = np.where(by_order, np.where(named, by_name, ordered), component)
        layer = np.where(in_model, placed_layer, layer)
        by_module = np.where(by_order, ordered, by_module)
    component = np.where(component < 0, by_name, component)
    component = np.where(component < 0, _CODES["other"], component)

    without_layer = np.array([name in COMPONENTS_WITHOUT_LAYER for name in COMPONENTS])
    natural = without_layer[component] | (by_module >= 0)
    return rows.assign(
        component=pd.Categorical.from_codes(component, categories=pd.Index(COMPONENTS)),
        layer=layer,
        placed=(layer >= 0) | (natural & (component != _CODES["other"])),
    )


def _code(component: str | None) -> int:
    return _CODES.get(component or "", -1)


def _by_module(components: pd.Series, module: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The component of each kernel's module."""
    table = np.array([_code(name) for name in components] + [-1], np.int64)
    found: npt.NDArray[np.int64] = table[components.index.get_indexer(pd.Index(module))]
    return found


def _more_exact() -> npt.NDArray[np.bool_]:
    """Whether a kernel's name (second index) is believed before its module (first index)."""
    table = np.zeros((len(COMPONENTS) + 1,) * 2, bool)
    for whole, exact in _MORE_EXACT.items():
        table[_CODES[whole], [_CODES[name] for name in exact]] = True
    return table


def _replayed(bundle: Bundle, rank: int, rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """The kernels of a step's CUDA graphs whose capture nobody saw."""
    host = bundle.frame("host", rank, ["name", "correlation"])
    graph_launches = [name for name in host["name"].cat.categories if "GraphLaunch" in name]
    graphs = host.loc[host["name"].isin(graph_launches), "correlation"]
    inside = rows["correlation"].isin(graphs) & (rows["correlation"] >= 0) & (rows["step"] >= 0)
    seen = nodes_of(bundle, rank, rows["graph_node"].to_numpy(np.int64)) != 0
    unseen: npt.NDArray[np.bool_] = inside.to_numpy(bool) & ~seen
    return unseen


def _products(bundle: Bundle, rank: int) -> dict[str, int]:
    """How many matrix products a decoder layer has in each component, from the live model."""
    layers = bundle.frame("layers", rank, ["layer", "component", "quant_method"])
    linear = layers[(layers["layer"] >= 0) & (layers["quant_method"] != "")]
    counts = linear.groupby(["component", "layer"], observed=True).size()
    return {str(c): int(counts[c].max()) for c in counts.index.get_level_values(0).unique()}
