"""The file to send: it reports the same, and nothing that was private is in any of its bytes."""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_prof
from spark_prof.datasets.opened import opened
from spark_prof.exporters.shared_recording import share
from spark_prof.traces.bundle import Bundle, Meta
from spark_prof.traces.tables import TABLES
from tests.rows import each_row

DATA = Path(__file__).parents[1] / "data"
QWEN = DATA / "h100-qwen3-30b-a3b-nvfp4-graphs"
PRIVATE = (
    "alice", "secret-project", "Tell me", "my password", "10.20.30.40", "fe80::1", "spark-7f3a",
    "alice@example.com", "hf_abcdefghijklmnopqrstuvwxyz012345", "intern.example.com", "HOME",
)  # fmt: skip


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A recording whose facts, command, log and names hold what nobody else may see."""
    folder = tmp_path / "private"
    shutil.copytree(QWEN, folder)
    meta = Meta.read(folder)
    facts = {name: dict(found) for name, found in meta.facts.items()}
    facts["rank0"] |= {
        "host": "spark-7f3a",
        "model": "/home/alice/secret-project/qwen",
        "environment": {"VLLM_CACHE_ROOT": "/home/alice/cache", "HOME": "/home/alice"},
    }
    lines = [
        "Received request: prompt: 'Tell me my password'",
        "Using 'MARLIN' NvFp4 MoE backend out of /home/alice/secret-project at 10.20.30.40",
        "Cannot use FlashInfer on spark-7f3a: http://intern.example.com/alice",
    ]
    columns = {"process": ["spark-7f3a"] * 3, "message": lines}
    schema = TABLES["log"].schema
    log = pa.table([columns.get(name, [1, 2, 3]) for name in schema.names], schema=schema)
    pq.write_table(log, folder / "log-rank0.parquet")
    modules = pq.read_table(folder / "modules-rank0.parquet")
    types = ["/home/alice/secret-project/model.py", *modules["type"].to_pylist()[1:]]
    at = modules.schema.get_field_index("type")
    modules = modules.set_column(at, modules.schema.field(at), pa.array(types, pa.string()))
    pq.write_table(modules, folder / "modules-rank0.parquet")
    command = (
        "/home/alice/bin/vllm", "serve", "/home/alice/secret-project/qwen", "--port", "8000",
        "--host=10.20.30.40", "--prompt", "Tell me my password", "--mail", "alice@example.com",
        "--ip", "fe80::1", "--hf-token", "hf_abcdefghijklmnopqrstuvwxyz012345",
    )  # fmt: skip
    replace(
        meta,
        facts=facts,
        command=command,
        lost=("could not read /home/alice/secret-project on spark-7f3a",),
        tables=meta.tables | {"log-rank0.parquet": 3},
    ).write(folder)
    return folder


def test_nothing_private_is_in_any_of_its_bytes(private: Path, tmp_path: Path) -> None:
    share(Bundle(private), tmp_path / "s.zip")
    texts = []
    with zipfile.ZipFile(tmp_path / "s.zip") as archive:
        assert not any("private" in name for name in archive.namelist())
        for name in archive.namelist():
            content = archive.read(name)
            texts.append(content.decode(errors="replace"))
            if name.endswith(".parquet"):
                texts.append(str(pq.read_table(BytesIO(content)).to_pydict()))
    found = [word for word in PRIVATE if any(word in text for text in texts)]
    assert found == []
    with opened(str(tmp_path / "s.zip")) as shared:
        assert shared.meta.command[:3] == ("vllm", "serve", "qwen")
        assert "8000" in shared.meta.command
        assert shared.facts(0)["environment"] == {"VLLM_CACHE_ROOT": "cache"}


@each_row(
    "name", ["h100-qwen3-30b-a3b-nvfp4-graphs", "code-h100/dense-nvfp4", "kineto/qwen3-graphs"]
)
def test_it_reports_the_same(name: str, tmp_path: Path) -> None:
    with opened(str(DATA / name)) as bundle:
        share(bundle, tmp_path / "s.zip")
    whole, shared = spark_prof.report(DATA / name), spark_prof.report(tmp_path / "s.zip")
    for part in ("steps", "books", "components", "layers", "kernels", "roofline"):
        assert getattr(shared, part) == getattr(whole, part), part
    rows = [report.audit.rows if report.audit else () for report in (whole, shared)]
    assert rows[0] == rows[1]
    assert [found.text for found in shared.findings] == [found.text for found in whole.findings]
    assert (tmp_path / "s.zip").stat().st_size < 2_000_000
