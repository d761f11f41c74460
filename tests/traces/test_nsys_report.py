"""Reports of Nsight Systems, which only NVIDIA's own program can read."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.errors import CommandError
from spark_prof.traces.nsys_tool import export_report, report_version

HEAD = b"NVIDIA Tegra Profiler Report 2025@6@1@190-256136788515v0\n\0\1\2"


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report, on a machine whose programs are in the folder `bin`."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr("spark_prof.traces.nsys_tool._PLACES", ())
    path = tmp_path / "my run.nsys-rep"
    path.write_bytes(HEAD)
    return path


def install(folder: Path, body: str) -> None:
    path = folder / "bin" / "nsys"
    path.parent.mkdir()
    version = "echo NVIDIA Nsight Systems version 2026.2.1.210-1v0"
    path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then {version}; exit; fi\n{body}\n')
    path.chmod(0o755)


def test_a_report_is_exported_by_the_installed_nsys(report: Path, tmp_path: Path) -> None:
    install(
        tmp_path, 'for word; do case "$word" in --output=*) echo "$*" > "${word#*=}";; esac; done'
    )
    into = tmp_path / "into"
    into.mkdir()
    export = export_report(report, into)
    assert export == into / "my run.sqlite"
    assert export.read_text().split()[:2] == ["export", "--type=sqlite"]
    assert str(report) in export.read_text()
    assert report.read_bytes() == HEAD


@pytest.mark.parametrize("body", [None, "echo Report was created in a newer version >&2; exit 1"])
def test_without_an_nsys_one_line_says_what_to_do(
    report: Path, tmp_path: Path, body: str | None
) -> None:
    if body:
        install(tmp_path, body)
    with pytest.raises(CommandError) as caught:
        export_report(report, tmp_path)
    line = str(caught.value)
    assert "\n" not in line
    assert "written by nsys 2025.6.1.190" in line
    assert line.endswith("nsys export --type sqlite -o 'my run.sqlite' 'my run.nsys-rep'")
    assert ("newer version" in line) == bool(body)
    assert "--backend" not in line
    assert not (tmp_path / "my run.sqlite").exists()


@pytest.mark.parametrize("head", [b"", b"SQLite format 3\0", b"NVIDIA Tegra Profiler Report x"])
def test_what_is_no_report(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "x.nsys-rep"
    path.write_bytes(head)
    assert report_version(path) is None
    with pytest.raises(CommandError, match="no Nsight Systems report"):
        export_report(path, tmp_path)


def test_a_report_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot read"):
        report_version(tmp_path / "none.nsys-rep")
