"""The modules of the live model, as rows of a report: those that are alike together."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from spark_prof.analyzers.ceilings.schemes import bits_of
from spark_prof.analyzers.model import ModuleRow
from spark_prof.analyzers.roofline.weight_bytes import stored_as, weights_of_tensors
from spark_prof.rules.components import DRAFTER, LM_HEAD
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.swapped import layers_of, tensors_of


def modules_of(bundle: Bundle, rank: int) -> tuple[ModuleRow, ...]:
    """Rows of one component, type, format and shape, the largest first."""
    layers = layers_of(bundle, rank)
    stored = stored_as(tensors_of(bundle, rank))
    narrow = {path: form for path, form in stored.items() if (bits_of(form) or 16) < 16}
    layers = layers.assign(format=[narrow.get(path, "") for path in layers["path"]])
    keys = ["component", "type", "quant_method", "kernel", "weight_dtype", "shape", "format"]
    groups = layers.groupby(keys, observed=True, sort=False)["bytes"].agg(["size", "sum"])
    rows = (
        ModuleRow(component, kind, method, kernel, dtype, shape, int(count), int(total), form)
        for (component, kind, method, kernel, dtype, shape, form), count, total in (
            groups.itertuples(name=None)
        )
    )
    heads = _heads_of_drafter(bundle.frame("tensors", rank))
    return tuple(sorted((*rows, *heads), key=lambda row: -row.bytes))


def _heads_of_drafter(tensors: pd.DataFrame) -> Iterator[ModuleRow]:
    """The matrices with which a drafter computes logits, where it has its own."""
    for entry in weights_of_tensors(tensors, tied=False, drafter=True):
        if entry.component == LM_HEAD and entry.elements:
            row = tensors.loc[entry.tensor]
            narrow = entry.dtype if entry.quantized else ""
            yield ModuleRow(
                LM_HEAD, str(row["type"]), "", "", str(row["dtype"]), str(row["shape"]), 1,
                entry.bytes, narrow, DRAFTER,
            )  # fmt: skip
