"""A service of a compose file in a real container: podman and podman-compose, with a fake engine.

Its image is empty; of this machine it sees the system's folders, this Python and what is mounted.
"""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ab.engines import fake_vllm, run
from tests.container_stand_in import image_folders
from tests.support import program

IMAGE = "localhost/spark-prof-test:1"
LINKS = ("bin", "sbin", "lib", "lib64")
WRAPPER = """\
import os, sys
words = sys.argv[1:]
if words[:1] == ["run"]:  # this machine may have no bridge for a network
    pairs = list(zip(words, [*words[1:], ""]))
    skipped = {n + i for n, (word, _) in enumerate(pairs) for i in (0, 1)
               if word in ("--net", "--network", "--network-alias")}
    kept = [word for n, word in enumerate(words)
            if n not in skipped and not word.startswith("--network=")]
    words = ["run", "--runtime", "runc", "--network", "none", *kept[1:]]
os.execv("REAL", ["podman", *words])
"""


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """An image of empty folders; the test is left out where podman cannot run one."""
    needed = [shutil.which(name) for name in ("podman", "runc", "podman-compose")]
    words = ["podman-compose", "config", "--help"]
    if not all(needed) or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("no podman, runc and podman-compose of today here")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in ("usr", "etc", "tmp", "proc", "dev", "sys", "opt"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o777
            tar.addfile(folder)
        for name in LINKS:
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(link)
    words = ["podman", "import", "-", IMAGE]
    if subprocess.run(words, input=packed.getvalue(), capture_output=True).returncode:
        pytest.skip("podman cannot make an image here")
    limits = ["--ulimit", "nproc=1024:1024", "--ulimit", "nofile=1024:1024"]
    words = ["podman", "--runtime", "runc", "run", "--rm", "--network", "none", *limits]
    words += ["-v", "/usr:/usr:ro", IMAGE, "/bin/true"]
    if subprocess.run(words, capture_output=True).returncode:
        pytest.skip("podman cannot run a container here")
    yield IMAGE
    subprocess.run(["podman", "rmi", "--force", IMAGE], capture_output=True)


@pytest.mark.slow
def test_a_comparison_and_what_serves_it(
    image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wrapper = tmp_path / "wrapper/podman"
    program(wrapper, f'exec "{sys.executable}" "{tmp_path / "podman.py"}" "$@"')
    (tmp_path / "podman.py").write_text(WRAPPER.replace("REAL", str(shutil.which("podman"))))
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    inside = fake_vllm(tmp_path / "image")
    kernel = tmp_path / "mine/faulty.py"
    kernel.parent.mkdir()
    kernel.write_bytes((Path(__file__).parents[1] / "swaps/kernels/faulty.py").read_bytes())
    folders = ["/usr", "/etc", *image_folders(inside).split(":")]
    volumes = "\n".join(f"      - {folder}:{folder}:ro" for folder in dict.fromkeys(folders))
    (tmp_path / "docker-compose.yml").write_text(f"""\
services:
  serving:
    image: {image}
    command: vllm serve m
    environment: {{FAKE_ENGINE: "{{}}", PATH: "{inside}:/usr/bin:/bin"}}
    ports: ["8000:8000"]
    ulimits: {{nproc: 1024, nofile: {{soft: 1024, hard: 1024}}}}
    volumes:
{volumes}
""")
    side = f"moe={kernel}:right"
    done = run(
        tmp_path, "--b", side, "--batch-sizes", "1", "--prefill", "none", "--timeout", "300",
        model={"gains": {"moe": 1.3}}, words="run --service-ports serving",
        program="podman-compose",
    )  # fmt: skip
    assert done.code == 0, done.errors
    assert [gate.verdict.passed for gate in done.result.gates] == [True]
    assert done.result.runs
    left = subprocess.run(["podman", "ps", "-aq"], capture_output=True, text=True, check=True)
    assert left.stdout == ""
    owners = {path.stat().st_uid for path in done.folder.rglob("*")}
    assert owners == {os.geteuid()}

    # What serves it, in the same container: its kernel's file and spark-prof are there.
    words = ["ab", "--apply", "--b", side, "--", "podman-compose", "run", "--rm", "serving"]
    argv = [sys.executable, "-m", "spark_prof", *words]
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    printed = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr
    line = shlex.split(printed.stdout)
    at = line.index("serving")
    assert line[at:] == ["serving", "vllm", "serve", "m"]
    looks = f"ls /opt/spark-prof/spark_prof/plugin.py {kernel}; echo $SPARK_PROF_SWAPS"
    shown = subprocess.run(
        [*line[:at], "-T", "--no-deps", "--entrypoint", "sh", "serving", "-c", looks],
        capture_output=True, text=True,
    )  # fmt: skip
    paths = {"/opt/spark-prof/spark_prof/plugin.py", str(kernel), side}
    assert paths <= set(shown.stdout.split()), shown.stderr
