import shlex
from pathlib import Path

import pytest

from spark_prof.profiler.commands import recognise, server_port, with_plugin_allowed
from spark_prof.profiler.program import without_setsid
from tests.rows import each_row
from tests.support import refusal

PROGRAMS = (
    "vllm python python3 python3.12 docker podman nerdctl docker-compose uv torchrun ray mpirun"
    " bash sh make env nice numactl taskset time timeout sudo nohup stdbuf ls nvidia-smi nsys"
    " ionice setsid chrt strace perf gdb systemd-run prlimit catchsegv script flock own-launcher"
)


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with two scripts, and a PATH with nothing but the programs above."""
    programs = tmp_path / "bin"
    programs.mkdir()
    contents = dict.fromkeys(PROGRAMS.split(), b"\x7fELF")
    contents |= {"lm_eval": b"#!/venv/bin/python3\nimport lm_eval\n", "serve": b"#!/bin/sh\nvllm\n"}
    for name, content in contents.items():
        (programs / name).write_bytes(content)
        (programs / name).chmod(0o755)
    for name in ("offline.py", "run.sh"):
        (tmp_path / name).write_text("")
    (tmp_path / "start.sh").write_text("vllm serve m\n")
    (tmp_path / "start.sh").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.chdir(tmp_path)


@each_row(
    ("line", "kind"),
    [
        ("vllm serve openai/gpt-oss-20b --port 8000", "vllm-serve"),
        ("bin/vllm serve m", "vllm-serve"),
        ("vllm bench latency --model m --input-len 128", "vllm-bench"),
        ("vllm run-batch -i in.jsonl -o out.jsonl --model m", "vllm-bench"),
        ("python offline.py --model m", "python"),
        ("python3 -m vllm.entrypoints.openai.api_server --model m --version", "python"),
        ("python3.12 -X faulthandler -W ignore offline.py", "python"),
        ("python -c 'import vllm'", "python"),
        ("python -u -", "python"),
        ("uv run offline.py", "python"),
        ("uv run --with vllm -p 3.12 vllm serve m", "vllm-serve"),
        ("uv --project app run -m vllm.entrypoints.openai.api_server", "python"),
        ("uv run -- python not_here.py", "python"),
        ("torchrun --nproc-per-node 2 offline.py", "python"),
        ("ray start --head", "python"),
        ("mpirun -np 2 python offline.py", "python"),
        ("lm_eval --model vllm", "python"),
        ("serve", "script"),
        ("bash run.sh", "script"),
        ("bash -euo pipefail run.sh", "script"),
        ("bash -lc 'vllm serve m'", "script"),
        ("./start.sh", "script"),
        ("make serve", "script"),
        ("docker run --gpus all vllm/vllm-openai:latest --model m", "container"),
        ("docker --context default run image", "container"),
        ("docker compose -f x.yaml --profile gpu run --rm vllm", "container"),
        ("docker-compose -p me run vllm", "container"),
        ("sudo -u me -g docker docker run image", "container"),
        ("env HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES=0 vllm serve m", "vllm-serve"),
        ("env -u DEBUG vllm serve m", "vllm-serve"),
        ("env PATH=/venv/bin vllm serve m", "vllm-serve"),
        ("env -C /srv python not_here.py", "python"),
        ("nice -n 10 vllm serve m", "vllm-serve"),
        ("nice -10 vllm serve m", "vllm-serve"),
        ("numactl --cpunodebind=0 -m 0 vllm serve m", "vllm-serve"),
        ("taskset -c 0-7 vllm serve m", "vllm-serve"),
        ("taskset 0xff vllm serve m", "vllm-serve"),
        ("time -v vllm bench latency --model m", "vllm-bench"),
        ("timeout -s INT -k 5 60 vllm serve m", "vllm-serve"),
        ("nohup stdbuf -oL -e 0 vllm serve m", "vllm-serve"),
        ("sudo -E nice vllm serve m", "vllm-serve"),
        ("sudo -Eu vllm vllm serve m", "vllm-serve"),
        ("ionice -c 2 -n 7 vllm serve m", "vllm-serve"),
        ("ionice -c3 nice setsid vllm serve m", "vllm-serve"),
        ("setsid -w python offline.py", "python"),
        ("setsid docker run image", "container"),
        ("chrt --fifo 10 vllm serve m", "vllm-serve"),
        ("chrt -i vllm serve m", "vllm-serve"),
        ("strace -f -o /tmp/log -e trace=file vllm serve m", "vllm-serve"),
        ("strace -ff -- bash run.sh", "script"),
        ("perf stat -e cycles -- vllm bench latency --model m", "vllm-bench"),
        ("perf record -g -o out python offline.py", "python"),
        ("gdb -batch -ex run -ex bt --args python offline.py", "python"),
        ("systemd-run --user --scope -p MemoryMax=8G vllm serve m", "vllm-serve"),
        ("prlimit --nofile=65536 vllm serve m", "vllm-serve"),
        ("catchsegv vllm serve m", "vllm-serve"),
        ("script -q -c 'vllm serve m' log", "script"),
        ("flock /tmp/lock vllm serve m", "vllm-serve"),
        ("timeout 1.5h vllm serve m", "vllm-serve"),
        ("own-launcher --gpus 2 vllm serve m", "vllm-serve"),
        ("own-launcher -- env A=1 python offline.py", "python"),
    ],
)
def test_kind(line: str, kind: str) -> None:
    command = recognise(shlex.split(line))
    assert command.kind == kind
    assert command.argv == tuple(shlex.split(line))
    assert recognise(command.argv) == command


@each_row(
    ("line", "says"),
    [
        ("", "no command to record; put it after --"),
        ("''", "no command to record"),
        ("vlmm serve m", "'vlmm' is not found on PATH"),
        ("'vllm serve m'", "leave out the quotes"),
        ("A=1 vllm serve m", "'A=1' is an assignment, not a program; write 'env'"),
        ("nice -n 5", "no program after 'nice'"),
        ("env A=1", "no program after 'env'"),
        ("python not_here.py", "'not_here.py' does not exist"),
        ("bash not_here.sh", "'not_here.sh' does not exist"),
        ("./offline.py", "write 'python ./offline.py'"),
        ("python --version", "does not start vLLM"),
        ("vllm", "'vllm' starts no engine"),
        ("vllm --version", "'vllm --version' starts no engine"),
        ("vllm chat", "'vllm chat' starts no engine"),
        ("vllm bench", "'vllm bench' starts no engine"),
        ("vllm serve --help=all", "only prints its help"),
        ("vllm bench serve --model m", "runs no model itself; record the server"),
        ("vllm bench sweep serve", "one configuration at a time"),
        ("ls -l", "'ls' does not start vLLM"),
        ("nvidia-smi", "'nvidia-smi' does not start vLLM"),
        ("own-launcher --gpus 2", "'own-launcher' does not start vLLM"),
        ("own-launcher vllm bench serve", "runs no model itself"),
        ("systemd-run vllm serve m", "write 'systemd-run --scope'"),
        ("setsid --fork vllm serve m", "leave --fork out"),
        ("perf report vllm", "'perf' starts vLLM only as 'perf record"),
        ("gdb vllm", "'gdb' starts vLLM only with --args"),
        ("uv pip install vllm", "'uv' starts vLLM only as 'uv run"),
        ("nsys profile vllm serve m", "'nsys' profiles too"),
        ("docker exec -it box vllm serve m", "'docker exec' enters a container"),
        (
            "docker compose -f x.yaml up -d",
            "'docker compose up' starts no single service; write: "
            "docker compose -f x.yaml run --rm --service-ports SERVICE",
        ),
        ("docker-compose up vllm ui", "write: docker-compose run --rm --service-ports vllm"),
        ("docker compose exec vllm bash", "'docker compose exec' enters a container"),
        ("docker start box", "'docker start' starts a container"),
        ("podman ps", "'podman ps' starts no vLLM"),
        ("docker", "'docker' starts no vLLM"),
        ("docker -H ssh://spark run image", "'ssh://spark' is another machine"),
        ("sudo vllm serve m", "'sudo' drops the environment"),
        ("sudo --preserve-env=HOME vllm serve m", "'sudo' drops the environment"),
        ("env -i A=1 vllm serve m", "'env -i' drops the environment"),
        ("env - vllm serve m", "'env -i' drops the environment"),
    ],
)
def test_refusal(line: str, says: str) -> None:
    with refusal(says):
        recognise(shlex.split(line))


def test_what_is_not_known_is_told() -> None:
    assert recognise(["vllm", "serve", "m"]).note == ""
    note = recognise(["own-launcher", "--gpus", "2", "vllm", "serve", "m"]).note
    assert note.startswith("'own-launcher' is not known to spark-prof: does it start 'vllm'")


@each_row(
    ("line", "without"),
    [
        ("setsid vllm serve m", "vllm serve m"),
        ("nice -n 5 setsid -w -c vllm serve setsid", "nice -n 5 vllm serve setsid"),
        ("env A=1 setsid nice vllm serve m", "env A=1 nice vllm serve m"),
        # Here it is no leader of a group, and becomes the program by itself.
        ("timeout 5 setsid vllm serve m", "timeout 5 setsid vllm serve m"),
        ("vllm serve m", "vllm serve m"),
    ],
)
def test_without_setsid(line: str, without: str) -> None:
    assert without_setsid(shlex.split(line)) == shlex.split(without)


def test_with_plugin_allowed() -> None:
    assert with_plugin_allowed({"A": "1"}) == {"A": "1"}
    allowed = {
        "a,b": "a,b,spark_prof", "": "spark_prof", "spark_prof,a": "spark_prof,a",
        "my_spark_prof": "my_spark_prof,spark_prof",
    }  # fmt: skip
    for given, expected in allowed.items():
        assert with_plugin_allowed({"VLLM_PLUGINS": given}) == {"VLLM_PLUGINS": expected}


def test_where_a_server_answers() -> None:
    expected = {
        "vllm serve m": 8000,
        "env A=1 vllm serve m --port=8123": 8123,
        "python -m vllm.entrypoints.openai.api_server --port 81": 81,
        "vllm serve m --host 10.0.0.1": 0,
        "vllm serve m --port x": 0,
        "vllm bench latency": 0,
        "docker run --gpus all -p 127.0.0.1:8001:8000 image vllm serve m": 8001,
        "docker run --gpus all image vllm serve m": 0,
    }
    assert {line: server_port(recognise(line.split())) for line in expected} == expected


def test_an_allow_list_in_front_of_the_program_is_extended() -> None:
    line = "env VLLM_PLUGINS=a A=b=c vllm serve VLLM_PLUGINS=a"
    expected = "env VLLM_PLUGINS=a,spark_prof A=b=c vllm serve VLLM_PLUGINS=a"
    assert recognise(line.split()).argv == tuple(expected.split())
