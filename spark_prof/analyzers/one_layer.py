"""One decoder layer's kernels in the typical step, beside the other layers of its kind."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from spark_prof.analyzers.layer_consistency import by_kind
from spark_prof.analyzers.summary import ReportWithRows
from spark_prof.errors import CommandError

_KEYS = ["component", "role", "name"]


@dataclass(frozen=True)
class LayerKernel:
    """All calls of one kernel in one role of a layer."""

    role: str  # empty where it is not known
    component: str
    name: str
    us: float  # of the typical step; 0 where other layers run it and this one does not
    others_us: float  # median of the other layers, those that do not run it among them
    calls: float  # of the typical step
    basis: str  # on what its owner stands; see vocabulary.BASES


@dataclass(frozen=True)
class OneLayer:
    """What a layer takes, kernel by kernel, the most expensive first."""

    layer: int
    phase: str  # of the steps
    steps: int  # 0 where nothing tells any: then all is of the whole recording
    us: float
    others: tuple[int, ...]  # the other layers of its kind
    others_us: float | None  # their median; None without any
    kernels: tuple[LayerKernel, ...]


def layer_of(summary: ReportWithRows, layer: int) -> OneLayer:
    """A layer of a report: of its decode steps, or where none decodes of the most frequent ones."""
    phases = summary.steps["phase"].astype(str)
    counts = phases.value_counts()
    phase = "decode" if "decode" in counts else str(counts.index[0])
    rows = summary.sums[(summary.sums["phase"] == phase) & (summary.sums["layer"] >= 0)]
    numbers = sorted(set(rows["layer"].tolist()))
    if layer not in numbers:
        have = f"it has {numbers[0]} to {numbers[-1]}" if numbers else "no kernel of it has a layer"
        raise CommandError(f"{summary.report.run.source} has no layer {layer}; {have}")
    components = {number: rows.loc[rows["layer"] == number, "component"] for number in numbers}
    same_kind = next(kind for kind in by_kind(components) if layer in kind)
    peers = [number for number in same_kind if number != layer]
    times = rows.pivot_table("us", _KEYS, "layer", "sum", observed=True, fill_value=0.0)
    like, mine = times.reindex(columns=peers), rows[rows["layer"] == layer]
    medians = like.median(axis=1) if peers else pd.Series(0.0, times.index)
    calls = mine.groupby(_KEYS, observed=True)["step_calls"].sum()
    bases = mine.sort_values("us").groupby(_KEYS, observed=True)["basis"].last()
    figures = zip(times.index, times[layer], medians, strict=True)
    kernels = [
        LayerKernel(
            role=str(key[1]),
            component=str(key[0]),
            name=str(key[2]),
            us=float(us),
            others_us=float(usual),
            calls=float(calls.get(key, 0.0)),
            basis=str(bases.get(key, "")),
        )
        for key, us, usual in figures
        if us or usual
    ]
    return OneLayer(
        layer,
        phase,
        int(counts[phase]) if summary.report.run.tells_steps else 0,
        float(times[layer].sum()),
        tuple(peers),
        float(like.sum().median()) if peers else None,
        tuple(sorted(kernels, key=lambda row: -max(row.us, row.others_us))),
    )
