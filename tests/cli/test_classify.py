"""`spark-prof classify` from the command line: sources, formats and exit codes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from spark_prof.vocabulary import COMPONENTS, CONVERSIONS, ENGINES, EVIDENCE, PRECISIONS
from tests.cli.conftest import Refuses, Run
from tests.traces.cubins import SM_90, library, probes

pytestmark = pytest.mark.timeout(120)

COMMAND = "classify"
DATA = Path(__file__).parents[1] / "data"
GRAPHS = DATA / "h100-qwen3-30b-a3b-nvfp4-graphs"
CONTRACT = {"name", "component", "engine", "precision", "evidence", "conversion"}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def kernels(run: Run, *words: object) -> list[dict[str, Any]]:
    code, out, _ = run(*words, "--format", "json")
    assert code == 0
    found: list[dict[str, Any]] = json.loads(out)
    for kernel in found:
        assert kernel.keys() >= CONTRACT
        assert kernel["engine"] in ENGINES
        assert kernel["evidence"] in EVIDENCE
        assert kernel["precision"] in (*PRECISIONS, None)
        assert kernel["component"] in (*COMPONENTS, None)
        assert kernel["conversion"] in (*CONVERSIONS, None)
    return found


def test_names(run: Run) -> None:
    names = ("void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*)", "nobody knows it", "")
    found = kernels(run, *(word for name in names for word in ("--name", name)))
    assert [kernel["name"] for kernel in found] == list(names)
    assert [kernel["engine"] for kernel in found] == ["cuda-core", "unknown", "unknown"]
    assert [kernel["evidence"] for kernel in found] == ["name", "unknown", "unknown"]


def test_a_change_of_format_stands_there_by_itself_or_beside_other_work(run: Run) -> None:
    names = (
        "void vllm::scaled_fp8_quant_kernel<float>(int)",
        "void vllm::reshape_and_cache_nvfp4_kernel<__nv_bfloat16, true>(unsigned char*)",
        "nobody knows it",
    )
    code, out, _ = run(*(word for name in names for word in ("--name", name)), "--format", "md")
    heads, _, *rows = (
        [cell.strip() for cell in line.split("|")] for line in out.splitlines() if "|" in line
    )
    assert code == 0
    place = heads.index("Conversion")
    assert [row[place] for row in rows] == ["quantize", "quantize (fused)", ""]


def test_a_bundle_and_a_trace(run: Run) -> None:
    for source in (GRAPHS, DATA / "kineto" / "gpt-oss-eager.json.gz"):
        found = kernels(run, source)
        names = [kernel["name"] for kernel in found]
        assert len(names) == len(set(names)) > 20
        assert not any(name.startswith(("Memcpy", "Memset")) for name in names)


def test_the_longest_stands_first_and_all_fits(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    times = [kernel["us"] for kernel in kernels(run, GRAPHS)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 10 * times[-1] > 0
    assert all("us" not in kernel for kernel in kernels(run, "--name", "x"))
    for width in (80, 100, 200):
        monkeypatch.setattr("spark_prof.cli.options.terminal_width", lambda width=width: width)
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        text = run(GRAPHS)[1]
        assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in text.splitlines()) <= width
        assert "marlin_moe_" in text


def test_a_cubin(run: Run, tmp_path: Path) -> None:
    found = {k["name"]: k for k in kernels(run, probes("sm_121a", tmp_path))}
    nvf4 = found["mma_nvf4"]
    assert (nvf4["engine"], nvf4["precision"], nvf4["evidence"]) == ("tensor-core", "fp4", "sass")
    assert nvf4["code"]["architecture"] == "sm_121a"
    assert nvf4["code"]["tensor_core"] == {"OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X": 1}
    assert found["mma_e4m3_e2m1"]["weights"] == "fp4"
    assert found["ffma"]["engine"] == "cuda-core"


def test_a_folder_of_cubins(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "triton" / "hash"
    folder.mkdir(parents=True)
    shutil.copy(SM_90, folder / "mix.cubin")
    (folder / "broken.cubin").write_bytes(SM_90.read_bytes()[:999])
    code, out, err = run(folder.parent, "--format", "json")
    assert code == 0
    assert {kernel["evidence"] for kernel in json.loads(out)} == {"sass"}
    (line,) = err.splitlines()
    assert "broken.cubin" in line


def test_a_library(run: Run, tmp_path: Path) -> None:
    path = library(tmp_path)
    found = {k["name"]: k for k in kernels(run, path, "--arch", "sm_90")}
    assert found["wgmma_e4m3"]["precision"] == "fp8"
    assert found["only_ptx"]["compiled_by_driver_from"] == "sm_80"
    assert found["only_ptx"]["evidence"] == "unknown"
    code, out, err = run(path)
    assert code == 0
    assert "--arch chooses another" in err
    assert "sm_80 PTX, compiled by the driver" in out


def test_usage_errors_are_one_line(refuses: Refuses) -> None:
    for words, says in (
        ((), "give either a source or --name"),
        (("x", "--name", "y"), "give either a source or --name"),
        (("/nonexistent",), "/nonexistent"),
        (("void my::kernel<128>(int)",), "for a kernel's name: --name 'void my::kernel<128>(int)'"),
        (("/bin/sh",), "holds no GPU code"),
        ((str(DATA / "README.md"),), "README.md"),
        ((str(DATA / "cupti"),), "cupti"),
        ((str(SM_90), "-o", "/nonexistent/x.json"), "does not exist"),
        ((str(SM_90), "-o", "x.pdf"), "x.pdf ends in none of"),
        ((str(SM_90), "--format", "pdf"), "pdf"),
        ((str(SM_90), "--arch", "sm_90"), "is no library"),
        ((str(SM_90.parent), "--arch", "sm_90"), "is no library"),
    ):
        refuses(words, says)


def test_one_kernel_is_not_kernels(run: Run) -> None:
    assert "\n1 kernel; 1 unknown\n" in run("--name", "my_kernel")[1]


def test_a_damaged_cubin_is_one_line(refuses: Refuses, tmp_path: Path) -> None:
    whole = SM_90.read_bytes()
    for length in (20, 64, 500, len(whole) // 2):
        (tmp_path / "cut.cubin").write_bytes(whole[:length])
        refuses("cut.cubin", "cut.cubin", files=False)


def test_hostile_names_do_not_reach_the_terminal(run: Run) -> None:
    name = "evil\x1b[2J\u202e\n| x |<script>" + "a" * 100_000
    for kind in ("text", "md", "json"):
        code, shown, _ = run("--name", name, "--format", kind)
        assert code == 0
        assert "\x1b" not in shown
        assert "\u202e" not in shown
