"""scripts/check_wheels.py, against a folder of hand-made wheels instead of an index."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.scripts.loading import load

check_wheels = load("scripts/check_wheels.py")

PROJECT = """
[project]
name = "example"
dependencies = ["sp-pure>=1"]
[project.optional-dependencies]
fast = ["sp-arm", "sp-old>=2"]
"""


def wheel(folder: Path, name: str, version: str, tags: str) -> None:
    base = f"{name.replace('-', '_')}-{version}"
    info = f"{base}.dist-info"
    with zipfile.ZipFile(folder / f"{base}-{tags}.whl", "w") as file:
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\n"
                                          f"Version: {version}\n")  # fmt: skip
        file.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tags}\n")
        file.writestr(f"{info}/RECORD", "")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose wheels lie in a folder; no index is asked."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    wheel(tmp_path, "sp-pure", "1.5", "py3-none-any")
    wheel(tmp_path, "sp-arm", "3.0", "cp312-cp312-manylinux_2_28_aarch64")
    wheel(tmp_path, "sp-arm", "4.0", "cp312-cp312-manylinux_2_28_x86_64")
    wheel(tmp_path, "sp-old", "1.0", "cp38-abi3-manylinux2014_aarch64")
    path = tmp_path / "pyproject.toml"
    path.write_text(PROJECT)
    return path


def test_a_missing_wheel_fails(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_wheels.main(["--project", str(project)]) == 1
    table = {line.split()[1]: line.split()[2:] for line in capsys.readouterr().out.splitlines()}
    assert table["sp-pure>=1"] == ["1.5", "sp_pure-1.5-py3-none-any.whl"]
    assert table["sp-arm"] == ["3.0", "sp_arm-3.0-cp312-cp312-manylinux_2_28_aarch64.whl"]
    assert table["sp-old>=2"] == ["MISSING"]


def test_all_there(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_wheels.main(["--project", str(project), "--skip", "fast"]) == 0
    assert "1 of 1 have a wheel" in capsys.readouterr().out


def test_what_pip_cannot_tell_is_no_missing_wheel(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project.parent / "sp_pure-9.0-py3-none-any.whl").write_text("no zip file")
    assert check_wheels.main(["--project", str(project), "--skip", "fast"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_dependencies_of_dependencies_are_looked_at() -> None:
    found = check_wheels.with_dependencies(["pandas"], "3.12")
    assert any(requirement.startswith("numpy") for requirement in found)
