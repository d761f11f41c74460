"""Whether kernels inside CUDA graphs are given the right layer: against an eager run, node by node.

The eager run has a range around every module, so that its kernels' layers are known for certain.
For every layer and component of a decode step the kernels of both runs are compared by name. What
only one run has must be explained by a fusion or by another choice of the engine; a kernel that
both have but that the graph run has more often in a layer's component is in the wrong place. Prints
both, and how much time was placed.

usage: python benchmarks/graph_layers.py EAGER_BUNDLE GRAPH_BUNDLE [--batch 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.order import launch_order, nodes_of
from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.windows import timed_windows
from spark_prof.traces.bundle import Bundle

Cell = tuple[int, str]


def main() -> None:
    """Compares the two bundles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("eager", type=Path)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    eager = decode_step(Bundle(options.eager), options.batch)
    graph = decode_step(Bundle(options.graph), options.batch)
    comparison = compare(eager, graph)
    for line in lines(comparison):
        print(line)
    if options.json:
        options.json.write_text(json.dumps(comparison, indent=1))


def decode_step(bundle: Bundle, batch: int) -> pd.DataFrame:
    """The kernels of all decode steps of that batch size, in launch order, with their shares."""
    rank = bundle.ranks[0]
    placed = place_kernels(bundle, rank, ["correlation", "graph_node"])
    nodes = nodes_of(bundle, rank, placed["graph_node"].to_numpy())
    host = bundle.frame("host", rank, ["correlation", "start_ns"])
    order = launch_order(placed, host, nodes)
    placed = placed if order is None else placed.iloc[order]
    windows = timed_windows(bundle, rank, placed).steps
    decode_steps = windows[(windows["phase"] == "decode") & (windows["decode_requests"] == batch)]
    rows = placed[placed["step"].isin(decode_steps.index) & (placed["kind"] == "kernel")]
    counts = rows.groupby("step").size()
    usual = counts[counts == counts.mode()[0]].index
    took = rows["end_ns"] - rows["start_ns"]
    return rows.assign(
        name=rows["name"].astype(str).map(short), took=took, usual=rows["step"].isin(usual)
    )


def short(name: str) -> str:
    """A kernel's name without numbers that differ from compilation to compilation."""
    name = name.replace("(anonymous namespace)", "anonymous").partition("(")[0]
    return re.sub(r"(?<=[a-z_])\d+$", "", name)


def cells(rows: pd.DataFrame) -> dict[Cell, Counter[str]]:
    """The kernels of one step by layer and component."""
    usual = rows[rows["usual"]]
    step = usual["step"].iloc[len(usual) // 2]
    kernels_of: dict[Cell, Counter[str]] = {}
    for row in usual[usual["step"] == step].itertuples():
        kernels_of.setdefault((int(row.layer), str(row.component)), Counter())[row.name] += 1
    return kernels_of


def compare(eager: pd.DataFrame, graph: pd.DataFrame) -> dict[str, object]:
    """What is alike and what is not."""
    theirs, ours = cells(eager), cells(graph)
    common = {n for c in theirs.values() for n in c} & {n for c in ours.values() for n in c}
    wrong, equal = [], 0
    extra: dict[str, Counter[str]] = {"eager": Counter(), "graph": Counter()}
    for cell in sorted(theirs.keys() | ours.keys()):
        a, b = theirs.get(cell, Counter()), ours.get(cell, Counter())
        for name in sorted(a.keys() | b.keys()):
            if name in common:
                equal += min(a[name], b[name])
                if a[name] < b[name]:
                    wrong.append([*cell, name, a[name], b[name]])
                elif a[name] > b[name]:
                    extra["eager"][f"{cell[1]}: {name}"] += a[name] - b[name]
            elif a[name]:
                extra["eager"][f"{cell[1]}: {name}"] += a[name]
            else:
                extra["graph"][f"{cell[1]}: {name}"] += b[name]
    took = graph["took"].to_numpy(np.float64)
    inside = graph["graph_node"].to_numpy() != 0
    placed = graph["placed"].to_numpy(bool)
    return {
        "kernels_eager": sum(sum(c.values()) for c in theirs.values()),
        "kernels_graph": sum(sum(c.values()) for c in ours.values()),
        "alike": equal,
        "different": wrong,
        "only_eager": dict(extra["eager"].most_common()),
        "only_graph": dict(extra["graph"].most_common()),
        "placed_share": float(took[placed].sum() / took.sum()),
        "placed_share_in_graphs": float(took[placed & inside].sum() / max(took[inside].sum(), 1)),
        "share_in_graphs": float(took[inside].sum() / took.sum()),
        "unplaced": {
            str(name): int(us) // 1000
            for name, us in graph[~graph["placed"]]
            .groupby("name")["took"]
            .sum()
            .nlargest(8)
            .items()
        },
    }


def lines(comparison: dict[str, object]) -> list[str]:
    """The comparison as text."""
    text = [
        f"{name}: {value}"
        for name, value in comparison.items()
        if not isinstance(value, dict | list)
    ]
    for name in ("only_eager", "only_graph", "unplaced"):
        text.append(f"{name}:")
        text += [f"  {count:6} {kernel}" for kernel, count in comparison[name].items()]  # type: ignore[attr-defined]
    text.append("different (layer, component, kernel, eager, graph):")
    return text + [f"  {row}" for row in comparison["different"]]  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
