"""What the sanitizers' reports count for, with a program in place of compute-sanitizer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import sanitize
from tests.rows import each_row

CLEAN = "echo '12 passed; 0 failed; 0 skipped'; echo '========= ERROR SUMMARY: 0 errors'"
ERRORS = CLEAN.replace("0 errors", "3 errors")
OTHERS = """echo '========= Uninitialized __global__ memory read
=========     at sgemm+0x80'"""
OURS = OTHERS.replace("sgemm", "gate_up")


@each_row(
    ("tool", "script", "code", "line"),
    [
        ("memcheck", CLEAN, 0, "memcheck layer-mlp: 0 found; 12 passed; 0 failed; 0 skipped"),
        ("racecheck", ERRORS, 1, "racecheck layer-mlp: 3 found; 12 passed"),
        ("initcheck", OTHERS, 0, "initcheck layer-mlp: no summary; cases not counted"),
        ("initcheck", OURS, 1, "initcheck layer-mlp: 1 found"),
        (
            "memcheck",
            "exec sleep 60",
            1,
            "memcheck layer-mlp: no summary; cases not counted, ended",
        ),
    ],
)
def test_what_is_found_or_ended_fails(
    tool: str,
    script: str,
    code: int,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = tmp_path / "compute-sanitizer"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    words = ["--tools", tool, "--checks", "layer-mlp", "--seconds", "2"]
    monkeypatch.setattr(sys, "argv", ["sanitize", str(tmp_path / "logs"), *words])
    assert sanitize.main() == code
    assert capsys.readouterr().out.startswith(line)
