"""What shows whether a finding's change helped can be typed as it is; keys tell findings apart."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

import spark_prof
from spark_prof.ab.command import engine_command
from spark_prof.ab.sides import choose_mode, parse_side
from spark_prof.analyzers.fallbacks.audit_rows import SettingRow
from spark_prof.analyzers.fallbacks.machine_checks import (
    Library,
    Machine,
    Package,
    machine_findings,
)
from spark_prof.analyzers.finding import Finding, keyed
from spark_prof.analyzers.findings.next_command import with_next_command
from spark_prof.analyzers.findings.ranking import RULES
from spark_prof.analyzers.model import Report
from spark_prof.cli.app import app
from spark_prof.profiler.attach import _port_of
from tests.command_line import parsed
from tests.rows import each_row

DATA = Path(__file__).parents[2] / "data"
_ELSEWHERE = re.compile(r"^/.*")


def type_it(line: str) -> list[str]:
    """Parses a line of commands as a shell and spark-prof do; the commands' names.

    Raises:
        Exception: spark-prof would refuse one of them.
    """
    names = []
    for part in line.split(" && ") if line else ():
        program, name, *words = shlex.split(part)
        assert program == "spark-prof", part
        assert "\n" not in part
        parameters = parsed([name, *words])
        if name == "record":
            recordable(parameters)
        if name == "ab":
            choose_mode("auto", parse_side(parameters["a"]), parse_side(parameters["b"]))
            # The models are where they were recorded.
            engine_command([_ELSEWHERE.sub("org/model", word) for word in parameters["command"]])
        names.append(name)
    return names


def recordable(parameters: dict[str, Any]) -> None:
    """Fails where `record` would refuse what it was given before it starts anything."""
    command, attach = parameters["command"] or [], parameters["attach"]
    assert bool(command) != bool(attach), parameters
    assert not command or not command[0].startswith("-"), command
    assert not (attach and parameters["nvtx"]), "not for a server that runs"
    assert not (parameters["steady"] and parameters["warmup_steps"])
    assert not attach or _port_of(attach)


@cache
def report_of(folder: Path) -> Report:
    return spark_prof.report(folder)


def right(found: Iterable[Finding], model: str) -> None:
    """Fails where two findings have one key, or one's commands cannot be typed."""
    found = list(found)
    assert len({each.key for each in found}) == len(found)
    for each in found:
        typed, names = type_it(each.command), type_it(each.verify)
        assert typed in (["ab"], ["record"], ["doctor"], ["report"], ["export"], []), each.command
        assert names in (["ab"], ["record", "compare"], ["compare"], ["doctor"]), each.verify
        assert each.key.partition(":")[0].partition(".")[0] == each.id
        assert not model or "MODEL" not in shlex.split(each.verify), each.verify
        if each.command.startswith("spark-prof ab "):
            assert each.verify == each.command


@pytest.mark.slow
@each_row("name", [rule.id for rule in RULES])
def test_every_rule_has_a_way_to_verify(name: str) -> None:
    """Of an engine whose command is known, of a server that ran, and of a trace that tells none."""
    report = report_of(DATA / "h100-qwen3-30b-a3b-nvfp4-graphs")
    finding = Finding(name, 0.1, "text", "fix", components=("experts",))
    page = next(rule.page for rule in RULES if rule.id == name)
    trace = replace(report, run=replace(report.run, command=""))
    server = "http://127.0.0.1:8312"
    attached = replace(report, run=replace(report.run, command=f"--attach {server}"))
    for each in (report, trace, attached):
        right(keyed([with_next_command(finding, each, page)]), report.run.model)
    found = with_next_command(finding, attached, page)
    for line in (found.command, found.verify):
        assert "record" not in line.split() or f" --attach {server}" in line


LOGS = ("dense-fp8-block.log", "gpt-oss-20b-mxfp4.log")
SICK = Machine(
    gpu="NVIDIA GB10",
    capability="12.1",
    packages=(
        Package("vllm", "0.26.0"),
        Package("flashinfer-python", "0.6.12"),
        Package("flashinfer-cubin", "0.6.8"),
        Package("flashinfer-jit-cache", "0.6.8+cu130"),
    ),
    nvcc="/usr/local/cuda/bin/nvcc",
    cuda="12.8",
    libraries=(
        Library("a/x.so", ("50 x sm_120",), (), 50),
        Library("b/x.so", ("50 x sm_120",), (), 50),
        Library("y.so", ("9 x sm_90a",)),
    ),
    settings=(SettingRow("VLLM_X", "1", "ignored", "why", ""),),
)


def test_a_machine_is_looked_at_again() -> None:
    found = [*machine_findings(SICK), *machine_findings(replace(SICK, packages=SICK.packages[:1]))]
    assert len({each.id for each in found}) == 6
    right(machine_findings(SICK), "")
    assert {each.verify for each in found} == {"spark-prof doctor"}


@each_row("log", [DATA / "logs" / name for name in LOGS])
def test_a_log_is_read_again(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--log", str(log), "--gpu", "h100", "--format", "json"]
    typer.main.get_command(app)(["doctor", *words], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)["findings"]
    assert found
    for each in found:
        assert each["verify"] == f"spark-prof doctor --log {log} --gpu h100"
        type_it(each["verify"])


def test_two_findings_with_the_same_subject_keep_their_keys_in_any_order() -> None:
    two = [Finding("rule", None, text, "fix", subject="a b/c") for text in ("second", "first", "x")]
    keys = [each.key for each in keyed(two)]
    assert keys == ["rule:a-b-c.2", "rule:a-b-c", "rule:a-b-c.3"]
    assert [each.key for each in keyed(two[::-1])] == keys[::-1]
