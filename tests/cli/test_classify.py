"""`spark-prof classify` from the command line: sources, formats and exit codes."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_prof.cli import main as cli
from spark_prof.vocabulary import COMPONENTS, CONVERSIONS, ENGINES, EVIDENCE, PRECISIONS
from tests.traces.cubins import SM_90, library, probes

pytestmark = pytest.mark.timeout(120)

DATA = Path(__file__).parents[1] / "data"
GRAPHS = DATA / "h100-qwen3-30b-a3b-nvfp4-graphs"
CONTRACT = {"name", "component", "engine", "precision", "evidence", "conversion"}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def classify(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["spark-prof", "classify", *map(str, words)])
    return cli.main()


def kernels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object
) -> list[dict[str, Any]]:
    assert classify(monkeypatch, *words, "--format", "json") == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    for kernel in found:
        assert kernel.keys() >= CONTRACT
        assert kernel["engine"] in ENGINES
        assert kernel["evidence"] in EVIDENCE
        assert kernel["precision"] in (*PRECISIONS, None)
        assert kernel["component"] in (*COMPONENTS, None)
        assert kernel["conversion"] in (*CONVERSIONS, None)
    return found


def test_names(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*)", "nobody knows it", "")
    found = kernels(monkeypatch, capsys, *(word for name in names for word in ("--name", name)))
    assert [kernel["name"] for kernel in found] == list(names)
    assert [kernel["engine"] for kernel in found] == ["cuda-core", "unknown", "unknown"]
    assert [kernel["evidence"] for kernel in found] == ["name", "unknown", "unknown"]


def test_a_bundle_and_a_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for source in (GRAPHS, DATA / "kineto" / "gpt-oss-eager.json.gz"):
        found = kernels(monkeypatch, capsys, source)
        names = [kernel["name"] for kernel in found]
        assert len(names) == len(set(names)) > 20
        assert not any(name.startswith(("Memcpy", "Memset")) for name in names)


def test_a_cubin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = {k["name"]: k for k in kernels(monkeypatch, capsys, probes("sm_121a", tmp_path))}
    nvf4 = found["mma_nvf4"]
    assert (nvf4["engine"], nvf4["precision"], nvf4["evidence"]) == ("tensor-core", "fp4", "sass")
    assert nvf4["code"]["architecture"] == "sm_121a"
    assert nvf4["code"]["tensor_core"] == {"OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X": 1}
    assert found["mma_e4m3_e2m1"]["weights"] == "fp4"
    assert found["ffma"]["engine"] == "cuda-core"


def test_a_folder_of_cubins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "triton" / "hash"
    folder.mkdir(parents=True)
    shutil.copy(SM_90, folder / "mix.cubin")
    (folder / "broken.cubin").write_bytes(SM_90.read_bytes()[:999])
    assert classify(monkeypatch, folder.parent, "--format", "json") == 0
    shown = capsys.readouterr()
    assert {kernel["evidence"] for kernel in json.loads(shown.out)} == {"sass"}
    (line,) = shown.err.splitlines()
    assert "broken.cubin" in line


def test_a_library(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = library(tmp_path)
    found = {k["name"]: k for k in kernels(monkeypatch, capsys, path, "--arch", "sm_90")}
    assert found["wgmma_e4m3"]["precision"] == "fp8"
    assert found["only_ptx"]["compiled_by_driver_from"] == "sm_80"
    assert found["only_ptx"]["evidence"] == "unknown"
    assert classify(monkeypatch, path) == 0
    shown = capsys.readouterr()
    assert "--arch chooses another" in shown.err
    assert "sm_80 PTX, compiled by the driver" in shown.out


@pytest.mark.parametrize("ending", ["txt", "md", "json"])
def test_a_file_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, ending: str
) -> None:
    out = tmp_path / f"out.{ending}"
    assert classify(monkeypatch, SM_90, "-o", out) == 0
    assert "void add<int>(int*, int)" in out.read_text()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give either a source or --name"),
        (("x", "--name", "y"), "give either a source or --name"),
        (("/nonexistent",), "/nonexistent"),
        (("/bin/sh",), "holds no GPU code"),
        ((str(DATA / "README.md"),), "README.md"),
        ((str(DATA / "cupti"),), "cupti"),
        ((str(SM_90), "-o", "/nonexistent/x.json"), "does not exist"),
        ((str(SM_90), "-o", "x.pdf"), "x.pdf ends in none of"),
        ((str(SM_90), "--format", "pdf"), "pdf"),
        ((str(SM_90), "--arch", "sm_90"), "is no library"),
        ((str(SM_90.parent), "--arch", "sm_90"), "is no library"),
    ],
)
def test_usage_errors_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
) -> None:
    assert classify(monkeypatch, *words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert message in line


def test_a_damaged_cubin_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    whole = SM_90.read_bytes()
    for length in (20, 64, 500, len(whole) // 2):
        path = tmp_path / "cut.cubin"
        path.write_bytes(whole[:length])
        assert classify(monkeypatch, path) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "cut.cubin" in line


def test_hostile_names_do_not_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "evil\x1b[2J\u202e\n| x |<script>" + "a" * 100_000
    for kind in ("text", "md", "json"):
        assert classify(monkeypatch, "--name", name, "--format", kind) == 0
        shown = capsys.readouterr().out
        assert "\x1b" not in shown
        assert "\u202e" not in shown
