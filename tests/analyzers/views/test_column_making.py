"""Plain columns say of every kernel what its table says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.placement import kernels_in_order, place_kernels
from spark_prof.analyzers.views.layer_cells import LAUNCH_COLUMNS, columns_of
from spark_prof.traces.bundle import Bundle
from spark_prof.vocabulary import COMPONENTS
from tests.rows import each_row

DATA = Path(__file__).resolve().parents[2] / "data"
BUNDLES = ("h100-gpt-oss-20b-mxfp4-eager", "h100-gpt-oss-20b-mxfp4-graphs")


def made(count: int, **columns: object) -> tuple[pd.DataFrame, pd.DataFrame]:
    """So many kernels, 10 ns each, and their shapes."""
    start = np.arange(count, dtype=np.int64) * 10
    usual: dict[str, object] = {
        "name": "gemm", "kind": "kernel", "start_ns": start, "end_ns": start + 10,
        "step": np.int32(0), "layer": np.int32(0), "component": "qkv", "device": np.int32(0),
        "stream": np.int64(7), "grid": "1,1,1", "block": "32,1,1", "registers": np.int32(8),
        "shared_bytes": np.int32(0),
    }  # fmt: skip
    frame = pd.DataFrame(usual | columns, index=range(count))
    categories = pd.CategoricalDtype(COMPONENTS)
    frame = frame.astype({"name": "category", "kind": "category", "component": categories})
    frame = frame.astype({"grid": "category", "block": "category"})
    return frame, frame[list(LAUNCH_COLUMNS)]


@each_row("name", BUNDLES)
def test_columns_of_a_recording_are_its_tables(name: str) -> None:
    bundle = Bundle(DATA / name)
    placed = place_kernels(bundle, 0)
    shapes = kernels_in_order(bundle, 0, ["start_ns", *LAUNCH_COLUMNS])
    steps = np.unique(placed["step"].to_numpy())
    steps = steps[steps >= 0][1:]
    found = columns_of(placed, steps, shapes)

    assert (np.diff(found.start_ns) >= 0).all()
    assert found.start_ns.tolist() == placed["start_ns"].tolist()
    assert found.end_ns.tolist() == placed["end_ns"].tolist()
    known = placed["step"].isin(steps)
    assert found.step.tolist() == placed["step"].where(known, -1).tolist()
    assert found.layer.tolist() == placed["layer"].tolist()
    assert [COMPONENTS[code] for code in found.component] == placed["component"].tolist()
    assert [found.names[code] for code in found.name] == placed["name"].tolist()
    copies = placed["kind"].isin(["memcpy", "memset"])
    assert [found.copies[code] for code in found.name] == copies.tolist()
    rows = shapes.astype({"grid": str, "block": str})
    launches = found.launches.iloc[found.launch].astype({"grid": str, "block": str})
    assert launches.to_numpy().tolist() == rows[list(LAUNCH_COLUMNS)].to_numpy().tolist()
    assert len(set(found.names)) == len(found.names) == len(set(placed["name"]))
    assert not found.launches.duplicated().any()


def test_what_does_not_occur_and_what_cannot_be() -> None:
    placed, shapes = made(5, name=list("abbbb"), layer=[0, 3, 1 << 15, -7, (1 << 15) - 1])
    found = columns_of(placed.iloc[1:], np.array([0]), shapes.iloc[1:])
    assert (found.names, set(found.name.tolist())) == (("b",), {0})
    assert found.layer.tolist() == [3, -1, -1, (1 << 15) - 1]
    for count in (0, 1):
        found = columns_of(made(count)[0], np.array([], np.int64), made(count)[1])
        assert len(found) == len(found.launch) == count
        assert len(found.names) == len(found.copies) == len(found.launches) == count
