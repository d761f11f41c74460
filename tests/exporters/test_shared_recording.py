"""The file to send: it reports the same, and nothing that was private is in any of its bytes."""

from __future__ import annotations

import csv
import re
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_prof
from spark_prof.dashboards.shared_report import shared_lines
from spark_prof.datasets.opened import opened
from spark_prof.exporters.pseudonyms import Pseudonyms
from spark_prof.exporters.shared_facts import shared_text
from spark_prof.exporters.shared_recording import share, shared_kernel
from spark_prof.traces.bundle import Bundle, Meta
from spark_prof.traces.tables import TABLES
from tests.exporters.private_shapes import SHAPES, TELLING
from tests.exporters.private_texts import (
    CLIENTS,
    META_PLACES,
    TABLE_PLACES,
    USERS,
    all_private,
    bundle_with,
)
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
        command = shared.meta.command
        assert command[:5] == ("vllm", "serve", "/model-1", "--port", "8000")
        assert shared.facts(0)["model"] == "/model-1"
        assert shared.facts(0)["host"] in "".join(shared.meta.lost)
        assert list(shared.facts(0)["environment"]) == ["VLLM_CACHE_ROOT"]


def _left(
    bundle: Bundle, texts: Sequence[str], out: Path, *, whole_words: bool = True
) -> list[str]:
    """The texts that stand in the file to send, in capitals or small letters."""
    share(bundle, out)
    found = []
    with zipfile.ZipFile(out) as archive:
        for name in archive.namelist():
            content = archive.read(name)
            found.append(content.decode(errors="replace").replace("\\\\", "\\"))
            if name.endswith(".parquet"):
                columns = pq.read_table(BytesIO(content)).to_pydict().values()
                found += [str(value) for column in columns for value in column]
    whole = "\n".join(found).lower()
    if not whole_words:
        return [text for text in texts if text in whole]
    return [
        text
        for text in texts
        if re.search(rf"(?<![a-z0-9]){re.escape(text.lower())}(?![a-z0-9])", whole)
    ]


PLACES = [*META_PLACES, *TABLE_PLACES]


@pytest.mark.slow
@each_row("place", PLACES)
def test_no_private_text_is_left_in_any_place(place: str, tmp_path: Path) -> None:
    texts = all_private()[PLACES.index(place) % 6 :: 6]
    parts = [*USERS, *CLIENTS]
    assert _left(bundle_with(tmp_path / "b", place, texts), texts + parts, tmp_path / "s.zip") == []


@pytest.mark.slow
def test_600_private_texts_in_every_place(tmp_path: Path) -> None:
    texts = all_private()
    assert len(set(texts)) == 600
    assert len(PLACES) >= 30
    for place in PLACES:
        bundle = bundle_with(tmp_path / place, place, texts)
        assert _left(bundle, [*texts, *USERS, *CLIENTS], tmp_path / "s.zip") == [], place


@pytest.mark.slow
@each_row("place", PLACES)
def test_no_shape_that_nobody_listed_is_left(place: str, tmp_path: Path) -> None:
    bundle = bundle_with(tmp_path / "b", place, SHAPES)
    assert _left(bundle, TELLING, tmp_path / "s.zip", whole_words=False) == []


def test_what_is_known_stays_and_the_list_says_what_goes(tmp_path: Path) -> None:
    command = (
        "docker", "run", "--gpus", "all", "-v", "/srv/x:/models", "vllm/vllm-openai:v0.33.0",
        "--model", "openai/gpt-oss-20b", "--tensor-parallel-size", "2", "--host", "0.0.0.0",
        "--compilation-config", '{"cudagraph_mode": "FULL", "cache_dir": "/srv/x"}',
        "--moe-backend=marlin", "--acme-mode", "fast",
    )  # fmt: skip
    bundle = bundle_with(tmp_path / "b", "kernels", ["acme"])
    bundle.meta = replace(bundle.meta, command=command)
    sent = share(bundle, tmp_path / "s.zip")
    shown = sent.command
    assert shown[:5] == ("docker", "run", "--gpus", "all", "-v")
    assert shown[6:13] == (
        "vllm/vllm-openai:v0.33.0", "--model", "openai/gpt-oss-20b", "--tensor-parallel-size", "2",
        "--host", "0.0.0.0",
    )  # fmt: skip
    assert '"cudagraph_mode": "FULL"' in shown[14]
    assert shown[15:17] == ("--moe-backend=marlin", "--option-1")
    assert sent.unknown_kernels == ("void name-1_kernel<float>(int)",)
    assert sent.replaced["path"] >= 1
    lines = "\n".join(shared_lines(sent))
    assert "void name-1_kernel<float>(int)" in lines
    assert "model openai/gpt-oss-20b" in lines
    assert "1 name" in lines


def test_the_same_private_text_has_the_same_other_name(tmp_path: Path) -> None:
    names = Pseudonyms()
    first = shared_text("could not read /srv/acme/qwen on spark-7f3a", names)
    again = shared_text("/srv/acme/qwen is there; SPARK-7F3A too, spark-7f3a.local is", names)
    path, host = names.name("path", "/srv/acme/qwen"), names.name("host", "spark-7f3a")
    assert path in first
    assert path in again
    assert first.endswith(host)
    assert "7f3a" not in again.lower()
    assert shared_kernel("void acme_norm<2>(int)", names) == shared_kernel(
        "void acme_norm<2>(int)", names
    )


def test_names_of_known_kernels_stay_whole() -> None:
    with (DATA / "kernel-names.csv").open() as file:
        rows = list(csv.DictReader(file))
    changed = [
        row["name"] for row in rows if shared_kernel(row["name"], Pseudonyms()) != row["name"]
    ]
    assert len(changed) <= len(rows) // 100, changed


@pytest.mark.slow
@each_row(
    "name", ["h100-qwen3-30b-a3b-nvfp4-graphs", "code-h100/dense-nvfp4", "kineto/qwen3-graphs"]
)
def test_it_reports_the_same(name: str, tmp_path: Path) -> None:
    with opened(str(DATA / name)) as bundle:
        share(bundle, tmp_path / "s.zip")
    whole, shared = spark_prof.report(DATA / name), spark_prof.report(tmp_path / "s.zip")
    for part in ("steps", "accounts", "components", "layers", "kernels", "roofline"):
        assert getattr(shared, part) == getattr(whole, part), part
    rows = [report.audit.rows if report.audit else () for report in (whole, shared)]
    assert rows[0] == rows[1]
    assert [found.text for found in shared.findings] == [found.text for found in whole.findings]
    # The commands that findings end in are the same but for the model's path.
    typed = [[one.command.split(" -- ")[0] for one in each.findings] for each in (whole, shared)]
    assert typed[0] == [
        line.replace(str(tmp_path / "s.zip"), str(DATA / name)) for line in typed[1]
    ]
    assert (tmp_path / "s.zip").stat().st_size < 2_000_000
