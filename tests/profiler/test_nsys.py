"""The command lines of nsys, and which nsys is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.errors import CommandError
from spark_prof.profiler.commands import Command
from spark_prof.profiler.nsys_record import (
    PROFILE_OPTIONS,
    profile_command,
    runs_on_ray,
    with_ray_workers,
)
from spark_prof.traces.nsys_tool import find_nsys
from tests.rows import each_row
from tests.support import program, refusal

NSYS = Path("/opt/nsys")
VERSION = 'echo "NVIDIA Nsight Systems version {}"'


def command(line: str, kind: str = "vllm-serve") -> Command:
    return Command(tuple(line.split()), kind)


@each_row(
    ("line", "kind"),
    [
        ("vllm serve m --port 80", "vllm-serve"),
        ("env A=1 nice -n 5 vllm bench latency --model m", "vllm-bench"),
        ("python -m my.program --trace=none", "python"),
        ("torchrun --nproc-per-node 2 x.py", "python"),
    ],
)
def test_a_command_runs_under_nsys_as_it_is(line: str, kind: str) -> None:
    argv = profile_command(NSYS, command(line, kind), Path("/b/100%p/nsys"), "s1")
    # A percent sign in the path is no pattern.
    options = [*PROFILE_OPTIONS, "--session-new=s1", "--output=/b/100%%p/nsys"]
    assert argv == [str(NSYS), "profile", *options, *line.split()]


@pytest.mark.parametrize(
    ("line", "kind", "says"),
    [
        ("docker run --rm image vllm serve m", "container", "run 'spark-prof record --backend"),
        ("sudo -E vllm serve m", "vllm-serve", "sudo spark-prof record"),
    ],
)
def test_what_nsys_would_not_see_is_refused(
    line: str, kind: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sudo", "docker", "vllm"):
        program(tmp_path / name, "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with refusal(says):
        profile_command(NSYS, command(line, kind), Path("/b/nsys"), "s1")


@each_row(
    ("line", "kind", "ray"),
    [
        ("vllm serve m --distributed-executor-backend ray", "vllm-serve", True),
        ("vllm serve m --distributed-executor-backend=ray", "vllm-serve", True),
        ("vllm serve m --distributed_executor_backend ray", "vllm-serve", True),
        ("env A=1 vllm bench latency --ray-workers-use-nsight", "vllm-bench", True),
        ("vllm serve m --distributed-executor-backend mp", "vllm-serve", False),
        ("vllm serve ray", "vllm-serve", False),
        ("vllm serve m --served-model-name ray", "vllm-serve", False),
        ("python x.py --distributed-executor-backend ray", "python", False),
    ],
)
def test_whether_ray_starts_the_workers(line: str, kind: str, ray: bool) -> None:
    assert runs_on_ray(command(line, kind)) is ray


def test_vllms_own_option_is_given_once() -> None:
    line = ["vllm", "serve", "m"]
    assert with_ray_workers(line) == [*line, "--ray-workers-use-nsight"]
    given = [*line, "--ray_workers_use_nsight"]
    assert with_ray_workers(given) == given


def test_the_nsys_on_path_comes_first(tmp_path: Path) -> None:
    mine = program(tmp_path / "bin" / "nsys", VERSION.format("2023.4.4.54-234433681190v0"))
    program(tmp_path / "usr/local/cuda-13.0/bin/nsys", VERSION.format("2025.3.2.47-1"))
    found = find_nsys(str(tmp_path / "bin"), tmp_path)
    assert (found.path, found.version) == (mine, (2023, 4, 4, 54))


def test_else_the_newest_that_is_installed(tmp_path: Path) -> None:
    program(tmp_path / "usr/local/cuda-12.4/bin/nsys", VERSION.format("2023.4.4.54-1"))
    newest = program(
        tmp_path / "opt/nvidia/nsight-systems/2026.2.1/target-linux-sbsa-armv8/nsys",
        VERSION.format("2026.2.1.210-1"),
    )
    program(tmp_path / "usr/local/cuda-11.8/bin/nsys", "exit 1")
    program(tmp_path / "bin" / "nsys", VERSION.format("2021.5.1.77-1"))
    found = find_nsys(str(tmp_path / "bin"), tmp_path)
    assert (found.path, found.version) == (newest, (2026, 2, 1, 210))


@each_row(
    ("where", "body", "says"),
    [
        ("bin", VERSION.format("2022.3.1.2-1"), "is version 2022.3.1.2, spark-prof needs 2022.4"),
        ("nsight-compute/bin", VERSION.format("2025.1"), "is part of Nsight Compute"),
        ("bin", "echo hello", "does not say its version"),
        ("bin", "exit 5", "does not say its version"),
    ],
)
def test_an_nsys_of_no_use_is_refused(tmp_path: Path, where: str, body: str, says: str) -> None:
    program(tmp_path / where / "nsys", body)
    with refusal(says) as caught:
        find_nsys(str(tmp_path / where), tmp_path)
    assert "--backend" in str(caught.value)


def test_an_export_says_what_nsys_said(tmp_path: Path) -> None:
    bar = r"printf '[1/1] [=50%%  ] x\rProcessing 9 events: [1%%]\rno such report\n' >&2; exit 1"
    body = f'case "$1" in --version) {VERSION.format("2025.1.1.1-1")};; *) {bar};; esac'
    program(tmp_path / "nsys", body)
    report = tmp_path / "r.nsys-rep"
    report.write_text("")
    said: list[str] = []
    with pytest.raises(CommandError, match="no such report; the report is kept"):
        find_nsys(str(tmp_path), tmp_path).export(report, tmp_path / "x.sqlite", said.append)
    assert said == ["exporting the nsys report (0 MiB)"]
