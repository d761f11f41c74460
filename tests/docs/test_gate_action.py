"""The composite action of the regression gate: its steps run as a runner runs them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_prof.analyzers.comparing.threshold_expression import parse
from tests.docs.pages import ROOT
from tests.rows import each_row
from tests.slowed import slowed

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / "docs" / "regression-gate.yml").read_text())
DATA = ROOT / "tests" / "data"
FAST, SLOW = (str(DATA / "ab-h100" / f"recording-{side}-1") for side in "ba")
_INPUT = re.compile(r"\$\{\{ inputs\.([a-z-]+) \}\}")
INSTALL, COMPARE = ACTION["runs"]["steps"]


def run(step: dict[str, Any], folder: Path, **inputs: str) -> tuple[int, str, str]:
    """One step with these inputs; exit code, what it told the runner, and stderr."""
    given = {name: each.get("default", "") for name, each in ACTION["inputs"].items()} | inputs
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        environment[name] = str(folder / name)
    for name, text in step["env"].items():
        environment[name] = _INPUT.sub(lambda found: given[found[1]], text)
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    told = folder / "GITHUB_OUTPUT"
    return done.returncode, told.read_text() if told.exists() else "", done.stderr


@pytest.mark.slow
def test_the_gate(tmp_path: Path) -> None:
    inputs = {"baseline": FAST, "recording": f"\n{SLOW}\n", "python": sys.executable}
    # A report may be called like an option.
    ended, told, err = run(COMPARE, tmp_path, **inputs, report="-build gate")
    assert (ended, told) == (1, "exit-code=1\n"), err
    assert "gate failed: decode_us.median > 3%" in err
    summary = (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    assert summary.startswith("# recording-a-1 is 101.7 % slower")
    assert (tmp_path / "-build gate.html").stat().st_size > 10_000


@pytest.mark.slow
def test_limits_can_be_added_and_what_is_undecided_can_fail(tmp_path: Path) -> None:
    inputs = {"baseline": SLOW, "recording": FAST, "python": sys.executable}
    limits = "findings > 0\n\ncoverage.engine < 99.999%\n"
    code, _, err = run(COMPARE, tmp_path, **inputs, **{"fail-on": limits})
    assert (code, "findings" in err) == (1, True)
    pair = [str(DATA / "compare-h100" / name) for name in ("gpt-graph", "gpt-duty")]
    inputs |= {"baseline": pair[0], "recording": pair[1]}
    for strict, expected in (("false", 0), ("true", 1)):
        code, _, err = run(COMPARE, tmp_path, **inputs, strict=strict)
        assert (code, "undecided" in err) == (expected, True)


@pytest.mark.slow
def test_several_starts_are_one_side(tmp_path: Path) -> None:
    qwen = DATA / "code-h100" / "qwen3-30b-a3b-nvfp4"
    for side, by in (("reference", 0.001), ("now", 0.06)):
        (tmp_path / side).mkdir()
        for start in range(3):
            slowed(qwen, tmp_path / side / str(start), by + 0.003 * start, "experts")
    listed = {
        name: "\n".join(f"{side}/{start}" for start in range(3))
        for name, side in (("baseline", "reference"), ("recording", "now"))
    }
    code, _, err = run(COMPARE, tmp_path, **listed, python=sys.executable)
    assert code == 1, err
    assert "undecided" not in err


HOSTILE = "\"; touch hacked; $(touch hacked) `touch hacked` ' --out=hacked\ntouch hacked"


def called_with(folder: Path, **inputs: str) -> list[list[str]]:
    """The words of each command of the step, by a program that only notes them."""
    python = folder / "python"
    python.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        f"print(json.dumps(sys.argv[1:]), file=open({str(folder / 'called')!r}, 'a'))\n"
        "for out in (w[6:] for w in sys.argv if w.startswith('--out=')): open(out, 'w').close()\n"
    )
    python.chmod(0o755)
    code, told, err = run(COMPARE, folder, python=str(python), **inputs)
    assert (code, told) == (0, "exit-code=0\n"), err
    return [json.loads(line) for line in (folder / "called").read_text().splitlines()]


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    return called_with(tmp_path_factory.mktemp("usual"), baseline=SLOW, recording=FAST)


@each_row("name", [name for name in ACTION["inputs"] if name != "python"])
def test_no_input_is_run(name: str, usual: list[list[str]], tmp_path: Path) -> None:
    """Each is a part of one word; a further limit is one a line."""
    given = {"baseline": SLOW, "recording": FAST}
    words = called_with(tmp_path, **given | {name: HOSTILE})
    more = HOSTILE.count("\n") + 1 if name == "fail-on" else 0
    assert [len(each) for each in words] == [len(usual[0]) + more, len(usual[1])]
    assert sum(word.count("touch hacked") for word in words[0]) == (4 if name != "strict" else 0)
    assert not any("\n" in side for each in words for side in each[-2:])  # joined by commas
    assert not {"--out=hacked", "touch hacked", "hacked"} & {w for each in words for w in each}
    assert not list(tmp_path.rglob("hacked"))


@pytest.mark.slow
@each_row("name", ["metric", "recording"])
def test_hostile_input_is_refused(name: str, tmp_path: Path) -> None:
    given = {"baseline": SLOW, "recording": FAST, "python": sys.executable} | {name: HOSTILE}
    assert run(COMPARE, tmp_path, **given)[0] == 2
    assert not list(tmp_path.rglob("hacked*"))


@each_row("name", ["baseline", "recording"])
@each_row("value", ["", " \n\n"])
def test_an_empty_side_is_one_line(name: str, value: str, tmp_path: Path) -> None:
    given = {"baseline": SLOW, "recording": FAST, "python": sys.executable} | {name: value}
    assert run(COMPARE, tmp_path, **given) == (
        2,
        "exit-code=2\n",
        f"spark-prof: the input {name} is empty; name a recording a line\n",
    )


def test_no_script_has_an_input_in_its_text() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]
        assert step["shell"] == "bash"
    used = set(_INPUT.findall(str(ACTION["runs"])))
    assert used == set(ACTION["inputs"])


def test_it_installs_from_its_own_checkout(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" > {shlex.quote(str(tmp_path / "called"))}\n')
    python.chmod(0o755)
    assert INSTALL["env"]["FROM"] == "${{ github.action_path }}"
    run(INSTALL | {"env": INSTALL["env"] | {"FROM": "/a b"}}, tmp_path, python=str(python))
    assert (tmp_path / "called").read_text() == "-m pip install /a b\n"


def test_the_workflow_uses_it_from_a_clone() -> None:
    [job] = WORKFLOW["jobs"].values()
    scripts = [step["run"] for step in job["steps"] if "run" in step]
    assert 'git clone --depth 1 "$SPARK_PROF" spark-prof' in scripts
    assert "pip install ./spark-prof vllm" in scripts
    [used] = [step["with"] for step in job["steps"] if step.get("uses") == "./spark-prof"]
    assert set(used) <= set(ACTION["inputs"])
    needed = {name for name, each in ACTION["inputs"].items() if each.get("required")}
    assert needed <= set(used)
    parse(f"{ACTION['inputs']['metric']['default']} > {used['threshold']}")
    parse(used["fail-on"])
    recorded = next(script for script in scripts if "spark-prof record" in script)
    assert "-o now/$start" in recorded
    assert used["recording"].split() == ["now/1", "now/2", "now/3"]
