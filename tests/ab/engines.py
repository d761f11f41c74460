"""A `vllm` on the PATH whose Python runs the fake driver, and `spark-prof ab` run with it."""

from __future__ import annotations

import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import spark_prof
from spark_prof.ab import engine_process, refusals
from spark_prof.ab.result import AbOutcome, from_json
from spark_prof.cli.main import main

FAKE = Path(__file__).with_name("fake_driver.py")


@dataclass(frozen=True)
class Done:
    """A run of the command: exit code, what it printed, and its folder."""

    code: int
    output: str
    errors: str
    folder: Path

    @property
    def result(self) -> AbOutcome:
        return from_json((self.folder / "result.json").read_bytes())


def fake_vllm(folder: Path) -> Path:
    """A folder for the PATH. `python -m spark_prof.ab.driver SOCKET` becomes the fake driver."""
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\nshift 2\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    vllm = folder / "vllm"
    vllm.write_text(f"#!{python}\n")
    for path in (python, vllm):
        path.chmod(0o755)
    return folder


def staged(folder: Path) -> None:
    """The package where an engine looks for it; to copy it takes longer than all that is faked."""
    (folder / "spark_prof").symlink_to(Path(spark_prof.__file__).parent)


def run(
    folder: Path,
    *options: str,
    model: dict[str, Any] | None = None,
    words: str = "serve m",
    command: tuple[str, ...] = ("ab", "--seconds", "0.1", "--no-record"),
    program: str = "vllm",
    gpu: bool = True,
) -> Done:
    """Runs `spark-prof ab` or another command against the fake engine, in `folder`/run.

    Args:
        gpu: whether the machine seems to have one.
    """
    environment = {
        "PATH": f"{fake_vllm(folder / 'bin')}:{os.environ['PATH']}",
        "FAKE_ENGINE": json.dumps(model or {}),
    }
    out = folder / "run"
    named = () if "--resume" in options else ("-o", str(out))
    argv = ["spark-prof", *command, *named, *options, "--", program, *words.split()]
    shown, errors = StringIO(), StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(shown),
        redirect_stderr(errors),
    ):
        patch.setattr(sys, "argv", argv)
        patch.setattr(refusals, "may_have_gpu", lambda: gpu)
        if program == "vllm":
            patch.setattr(engine_process, "stage_package", staged)
        for name, value in environment.items():
            patch.setenv(name, value)
        code = main()
    return Done(code, shown.getvalue(), errors.getvalue(), out)
