"""No file of a bundle, of its pieces or of a result holds a secret."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from spark_prof.ab.result import AbOutcome, SideFacts, to_json
from spark_prof.ab.setting import Keeper
from spark_prof.profiler.launcher import prepare_bundle
from spark_prof.profiler.process import Process
from spark_prof.profiler.settings import Settings
from spark_prof.speculate import speculate_result
from spark_prof.traces.assemble import assemble
from spark_prof.traces.benchmarks.read import read_benchmark
from spark_prof.traces.bundle import Bundle, Meta, TableFiles
from spark_prof.traces.chunks import pieces_folder, write_refusal
from spark_prof.traces.readers.engine_log import read_engine_log
from spark_prof.traces.tables import TABLES
from tests import recorder
from tests.secret_corpus import planted
from tests.speculate.sample import DRAFTED

SECRET = "Zq7hunter2secretvalue9"
HUB = "hf_" + "aB3dE5gH" * 4
LINE = f"cannot fetch https://me:{SECRET}@host/x?token={SECRET} with {HUB}"


def _left(folder: Path) -> list[str]:
    """The files with a secret in them, tables also as they are read."""
    left = []
    for path in filter(Path.is_file, folder.rglob("*")):
        content = path.read_bytes()
        if path.suffix == ".parquet":
            content += json.dumps(pq.read_table(path).to_pylist(), default=str).encode()
        left += [path.name for secret in (SECRET, HUB) if secret.encode() in content]
    return left


def test_a_recording_from_its_first_piece_to_its_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bundle"
    settings = Settings(bundle=str(folder))
    command = ["bash", "-c", f"HF_TOKEN={HUB} vllm serve m --api-key a {SECRET} --port 1"]
    prepare_bundle(folder, command, settings)
    pieces = pieces_folder(folder)
    for name in ("vllm", "torch"):
        monkeypatch.setitem(sys.modules, name, None)  # the recorder puts its own there
    assert recorder.run(settings, 3) == 3
    process = Process(replace(settings, run="3f2b8c1d9e4a7f60"), "rank0", 0)
    facts = {
        "model_config": {"auth_token": SECRET, "eos_token_id": 2},
        "environment": {"VLLM_API_KEY": SECRET, "NCCL_X": f"http://a:{SECRET}@h", "VLLM_PORT": "1"},
        "engine_config": {
            "model_config": {"hf_token": SECRET, "extra": f"{{'password': '{SECRET}'}}"}
        },
    }
    process.write_facts(facts, layers=[])
    process.log(LINE)
    write_refusal(pieces, LINE)
    assert not _left(folder)
    bundle = assemble(folder, state="complete")
    assert not _left(folder)
    assert bundle.meta.command == (
        "bash",
        "-c",
        "HF_TOKEN=*** vllm serve m --api-key *** *** --port 1",
    )


def test_meta_and_tables_of_any_origin(tmp_path: Path) -> None:
    texts = [value for value, _ in planted(11) if isinstance(value, str)]
    rows = pd.DataFrame({"time_ns": 1, "process": "rank0", "message": [*texts, LINE]})
    columns = TABLES["markers"].schema.names
    marks = pd.DataFrame([[LINE, f"token={SECRET}", 1, 2, 3, 0, False]], columns=columns)
    with TableFiles(tmp_path) as tables:
        tables.add("log", 0, rows)
        tables.add("markers", 0, marks.astype({"name": "category", "domain": "category"}))
    meta = Meta(1, "0", "complete", ("vllm", "--api-key", SECRET), "now", f"imported: {LINE}")
    meta = replace(
        meta, settings={"source": LINE}, facts={"rank0": {"host": LINE, "password": 12345678}}
    )
    replace(meta, lost=(LINE,), tables=dict(tables.rows)).write(tmp_path)
    assert not _left(tmp_path)
    bundle = Bundle(tmp_path)
    assert bundle.meta.facts["rank0"]["password"] == "***"
    shown = "\n".join(bundle.frame("log", 0)["message"])
    assert not [
        part
        for value, secret in planted(11)
        for part in secret
        if isinstance(value, str) and part in shown
    ]


def test_results_of_ab_and_of_load_generators_and_logs(tmp_path: Path) -> None:
    side = SideFacts(
        "b", f"HF_TOKEN={HUB}", arguments=("--api-key", SECRET), environment={"X_KEY": SECRET}
    )
    result = AbOutcome(
        model="m",
        mode="one engine",
        mode_why=LINE,
        command=("spark-prof",),
        taken="now",
        sides=(replace(side, side="a"), side),
    )
    keeper = Keeper(tmp_path, result, to_json)
    keeper.miss(LINE)
    keeper.set(failure=LINE)
    keeper.write_page()
    assert not _left(tmp_path)
    assert keeper.result.sides[1].environment == {"X_KEY": "***"}
    log = tmp_path / "engine.log"
    log.write_text(
        "INFO 11-22 18:00:00 [utils.py:253] non-default args: "
        f"{{'model': 'm', 'api_key': ['{SECRET}'], 'hf_token': '{HUB}'}}\n"
    )
    said = str(read_engine_log(log))
    assert "non-default" in said or "***" in said
    assert SECRET not in said
    assert HUB not in said


def test_a_result_of_speculate(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, DRAFTED, speculate_result.to_json)
    keeper.miss(LINE)
    keeper.set(failure=LINE)
    assert not _left(tmp_path)
    read = speculate_result.read_speculate(tmp_path / "result.json")
    assert read.measured == DRAFTED.measured


def test_a_load_generators_result_is_read_without_secrets(tmp_path: Path) -> None:
    sample = next(Path("tests/data/benchmarks").rglob("vllm*.json"))
    document: dict[str, Any] = json.loads(sample.read_text())
    document["model_id"] = f"https://me:{SECRET}@host/model"
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document))
    assert SECRET not in str(read_benchmark(path))


def test_a_long_configuration_is_cut_after_its_secret_is_hidden() -> None:
    from spark_prof.profiler.facts import _plain

    text = "x" * 1990 + f" {HUB}"
    config = SimpleNamespace(__dataclass_fields__=("a", "hf_token"), a=text, hf_token=HUB)
    shown = _plain(config)
    assert "hf_token" not in shown
    assert "hf_a" not in shown["a"]
