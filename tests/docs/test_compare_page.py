"""docs/compare.md against what the command really does."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from spark_prof.analyzers.comparing.compare_sides import compare
from spark_prof.analyzers.comparing.noise import CALL_FLOOR_US, GAP_FLOOR, KERNEL_FLOOR, START
from spark_prof.analyzers.comparing.threshold_expression import parse
from spark_prof.analyzers.comparing.thresholds import check
from spark_prof.datasets.opened import read_side
from tests.command_line import parsed
from tests.docs.pages import ROOT, tables
from tests.slowed import slowed

PAGE = ROOT / "docs" / "compare.md"
WORKFLOW = ROOT / "docs" / "regression-gate.yml"
AWQ, NVFP4 = (ROOT / "tests" / "data" / "code-h100" / name for name in ("dense-awq", "dense-nvfp4"))
QWEN = ROOT / "tests" / "data" / "code-h100" / "qwen3-30b-a3b-nvfp4"
_WORD = re.compile(r"`([^`]+)`")


def test_every_metric_of_the_page_can_be_read() -> None:
    found = compare(read_side(str(AWQ)), read_side(str(NVFP4)))
    [metrics] = [table for table in tables(PAGE, "Limits") if table[0][0].startswith("`decode_us")]
    names = {"NAME": "mlp", "N": "3", '"NAME"': '"Marlin"', "ID": "small-kernels"}
    for row in metrics:
        first, *others = _WORD.findall(row[0])
        for word in (first, *others):
            metric = first.rsplit(".", 1)[0] + word if word.startswith(".") else word
            for placeholder, value in names.items():
                metric = re.sub(rf"\.{re.escape(placeholder)}(?=\.|$)", f".{value}", metric)
            if metric.startswith("step_us"):
                continue  # these recordings tell their phases
            assert check(found, [parse(f"{metric} missing")])


def test_the_floors_are_those_of_the_code() -> None:
    [table] = tables(PAGE, "How sure it is")
    assert [row[1].split(",")[0] for row in table] == [
        f"{100 * START['kernel']:g} %",
        f"{100 * START['op']:g} %",
        f"{100 * KERNEL_FLOOR:g} %",
        f"{CALL_FLOOR_US} us",
        f"{100 * GAP_FLOOR:g} %",
    ]


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Three starts of the main branch, three that are as fast, and three that are 6 % slower."""
    folder = tmp_path_factory.mktemp("starts")
    found = [folder / name for name in ("reference", "same", "slow")]
    for path, by in zip(found, (0.001, 0.002, 0.06), strict=True):
        path.mkdir()
        for start in range(3):
            slowed(QWEN, path / str(start + 1), by + 0.003 * start, "experts")
    return found[0], found[1], found[2]


def _run_lines() -> list[str]:
    """The commands of ours in the workflow."""
    lines = map(str.strip, WORKFLOW.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line.startswith("spark-prof ")]


def test_the_workflow_s_commands_are_real() -> None:
    [words] = [shlex.split(line)[1:] for line in _run_lines()]
    assert parsed(words)["warmup_steps"] == 100


_OURS = f"{shlex.quote(sys.executable)} -m spark_prof.cli.main"


@pytest.mark.slow
def test_the_fixture_of_the_page_works(tmp_path: Path, starts: tuple[Path, Path, Path]) -> None:
    reference, same, slow = starts
    conftest, test = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_decode.py").write_text(test)
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "spark-prof"
    script.write_text(f'#!/bin/sh\nexec {_OURS} "$@"\n')
    script.chmod(0o755)
    (tmp_path / "reference").symlink_to(reference)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTEST_ADDOPTS": ""}
    for recording, code, said in ((same, 0, "1 passed"), (slow, 1, "gate failed: decode_us")):
        now = tmp_path / "now"
        now.unlink(missing_ok=True)
        now.symlink_to(recording)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
            cwd=tmp_path, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        assert said in done.stdout


def test_every_limit_of_the_page_can_be_read() -> None:
    text = PAGE.read_text(encoding="utf-8")
    limits = [x for x in re.findall(r"--fail-on '([^']+)'", text) if "METRIC" not in x]
    assert limits
    assert all(parse(limit) for limit in limits)
