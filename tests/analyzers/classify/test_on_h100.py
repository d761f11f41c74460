"""Real recordings of an H100 with the machine code of their kernels: names must agree with it.

What Nsight Compute counted on an H100, one vLLM model a file: names must agree with it.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from spark_prof.analyzers.classify.classifier import classify
from spark_prof.analyzers.classify.evidence import CountedKernels, KernelEvidence, evidence_of
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.readers.ncu_csv import ncu_csv
from tests.analyzers.reported import reported
from tests.rows import each_row

DATA = Path(__file__).parents[2] / "data"
BUNDLES = sorted((DATA / "code-h100").iterdir())
COUNTED = {
    "dense-awq": "awq", "dense-bf16": "bf16", "dense-fp8-block": "fp8", "dense-nvfp4": "nvfp4",
    "gpt-oss-20b-mxfp4": "gpt-oss", "qwen3-30b-a3b-nvfp4": "qwen3-nvfp4",
}  # fmt: skip


FILES = sorted((DATA / "ncu-h100").glob("*.csv"))


def metrics(path: Path) -> pd.DataFrame:
    return ncu_csv(path).processes[0].metrics.astype({"name": str, "metric": str, "unit": str})


@each_row("folder", BUNDLES)
def test_names_and_machine_code_agree(folder: Path) -> None:
    bundle = Bundle(folder)
    names = {row.name for row in reported(bundle).kernels}
    assert evidence_of(bundle, 0).conflicts(sorted(names)) == ()


def test_counters_confirm_machine_code() -> None:
    confirmed = set()
    for name, file in COUNTED.items():
        evidence = evidence_of(Bundle(DATA / "code-h100" / name), 0)
        counted = CountedKernels(metrics(DATA / "ncu-h100" / f"{file}.csv"), "9.0")
        for row in reported(Bundle(DATA / "code-h100" / name)).kernels:
            said, code = counted.find(row.name), evidence.code(row.name)
            if said and said.engine and code and code.engine:
                assert code.engine == said.engine, row.name
                if said.precision and code.precision:
                    assert code.precision == said.precision, row.name
                confirmed.add(row.name)
    assert len(confirmed) >= 30


@each_row("path", FILES)
def test_no_name_contradicts_the_counters(path: Path) -> None:
    found = metrics(path)
    assert KernelEvidence(found, "9.0").conflicts(sorted(set(found["name"]))) == ()


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
    found = metrics(DATA / "ncu-h100" / "bf16.csv")
    norms = found[found["name"].str.contains("rms_norm")]
    values = norms.groupby("metric")["value"].min()
    assert values["sm__inst_executed_pipe_tensor.sum"] > 0
    assert values["sm__pipe_tensor_cycles_active.sum"] > 0
    assert values["sm__ops_path_tensor_src_fp16.sum"] == 0
    counted = CountedKernels(found, "9.0")
    assert {counted.find(name).engine for name in norms["name"]} == {"cuda-core"}  # type: ignore[union-attr]
