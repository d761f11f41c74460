"""What Nsight Compute counted on an H100, one vLLM model a file: names must agree with it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from spark_prof.analyzers.classify.classifier import classify
from spark_prof.analyzers.classify.counted_kernels import CountedKernels
from spark_prof.analyzers.classify.evidence import Evidence
from spark_prof.traces.readers.ncu_csv import ncu_csv
from tests.rows import each_row

FOLDER = Path(__file__).parents[2] / "data" / "ncu-h100"
FILES = sorted(FOLDER.glob("*.csv"))


def metrics(path: Path) -> pd.DataFrame:
    return ncu_csv(path).processes[0].metrics.astype({"name": str, "metric": str, "unit": str})


@each_row("path", FILES)
def test_no_name_contradicts_the_counters(path: Path) -> None:
    found = metrics(path)
    assert Evidence(found, "9.0").conflicts(sorted(set(found["name"]))) == ()


def test_they_settle_the_engine_of_fifty_kernels() -> None:
    engines: dict[str, str] = {}
    for path in FILES:
        found = metrics(path)
        counted = CountedKernels(found, "9.0")
        for name in set(found["name"]):
            said = counted.find(name)
            if said and said.engine:
                engines[name] = said.engine
    known = {name: engine for name, engine in engines.items() if classify(name).engine == engine}
    assert len(known) >= 50
    assert sum(engine == "tensor-core" for engine in known.values()) >= 15


def test_norms_keep_the_tensor_pipe_busy_without_a_matrix_product() -> None:
    found = metrics(FOLDER / "bf16.csv")
    norms = found[found["name"].str.contains("rms_norm")]
    values = norms.groupby("metric")["value"].min()
    assert values["sm__inst_executed_pipe_tensor.sum"] > 0
    assert values["sm__pipe_tensor_cycles_active.sum"] > 0
    assert values["sm__ops_path_tensor_src_fp16.sum"] == 0
    counted = CountedKernels(found, "9.0")
    assert {counted.find(name).engine for name in norms["name"]} == {"cuda-core"}  # type: ignore[union-attr]
