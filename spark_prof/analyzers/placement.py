"""Gives every kernel its component and layer, and says on what that stands.

In this order: the module whose call launched it; a name that is more exact than its module (a KV
write inside attention, a top-k inside experts); the order of kernels in a compiled model; the
name alone; else the component `other`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.classify.classifier import classify, is_gemm
from spark_prof.analyzers.order import place_by_order
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.timeline import FINISH, MODEL_PATH
from spark_prof.vocabulary import COMPONENTS, COMPONENTS_WITHOUT_LAYER

__all__ = ["place_kernels"]

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

_COLUMNS = ("name", "kind", "start_ns", "end_ns", "part", "step", "module", "layer", "correlation")


def place_kernels(bundle: Bundle, rank: int) -> pd.DataFrame:
    """The kernels of a rank, in order of start.

    Returns:
        name, kind, start_ns, end_ns, part, step, layer (-1 for none), component, and `placed`:
        whether the row has a layer or a component that has none by its nature.
    """
    rows = bundle.frame("kernels", rank, _COLUMNS)
    modules = bundle.frame("modules", rank).set_index("module")
    # One look at each distinct name, however many kernels there are.
    names = rows["name"].cat
    labels = [classify(name) for name in names.categories]
    by_name = np.array([label.component or "" for label in labels] + [""], object)[names.codes]
    gemm = np.array([is_gemm(name) for name in names.categories] + [False], bool)[names.codes]
    copies = np.array([n in _COPY_OPERATORS for n in names.categories] + [False], bool)[names.codes]
    copies |= rows["kind"].isin(["memcpy", "memset"]).to_numpy()

    module = rows["module"].to_numpy(np.int64)
    by_module = modules["component"].astype(object).reindex(module, fill_value="").to_numpy(object)
    component = by_module.copy()
    for whole, exact in _MORE_EXACT.items():
        better = (by_module == whole) & np.isin(by_name, exact)
        component[better] = by_name[better]
    outside = module <= FINISH
    component[outside & copies] = "memcpy"

    layer = rows["layer"].to_numpy(np.int64)
    root = modules.index[modules["path"] == MODEL_PATH]
    compiled = not str(bundle.facts(rank).get("execution", "eager")).startswith("eager")
    in_model = (module == (int(root[0]) if len(root) else -2)) | _replayed(bundle, rank, rows)
    in_model &= compiled
    if in_model.any():
        known = component.copy()
        known[component == ""] = None
        known[in_model] = np.where(by_name[in_model] == "experts", "experts", "")
        placed, placed_layer = place_by_order(
            pd.DataFrame(
                {"step": rows["step"], "part": rows["part"], "component": known, "layer": layer}
            ),
            gemm,
            _products(bundle, rank),
        )
        by_order = in_model & (placed != "")
        component[by_order] = placed[by_order]
        layer[in_model] = placed_layer[in_model]
        named = by_order & (by_name != "") & (by_name != "memcpy")
        component[named] = by_name[named]
    nameless = component == ""
    component[nameless] = by_name[nameless]
    component[component == ""] = "other"

    known_module = (module >= 0) & (by_module != "")
    natural = np.isin(component, list(COMPONENTS_WITHOUT_LAYER)) | known_module
    return rows.assign(
        component=pd.Categorical(component, categories=COMPONENTS),
        layer=layer,
        placed=(layer >= 0) | (natural & (component != "other")),
    )


def _replayed(bundle: Bundle, rank: int, rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """The kernels of a step's CUDA graphs, which no module launched."""
    host = bundle.frame("host", rank, ["name", "correlation"])
    graphs = host.loc[host["name"].astype(str).str.contains("GraphLaunch"), "correlation"]
    inside = rows["correlation"].isin(graphs) & (rows["correlation"] >= 0) & (rows["step"] >= 0)
    return inside.to_numpy(bool)


def _products(bundle: Bundle, rank: int) -> dict[str, int]:
    """How many matrix products a decoder layer has in each component, from the live model."""
    layers = bundle.frame("layers", rank, ["layer", "component", "quant_method"])
    linear = layers[(layers["layer"] >= 0) & (layers["quant_method"] != "")]
    counts = linear.groupby(["component", "layer"], observed=True).size()
    return {str(c): int(counts[c].max()) for c in counts.index.get_level_values(0).unique()}
