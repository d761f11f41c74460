import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import spark_prof.profiler
from spark_prof.errors import CommandError
from spark_prof.profiler import container_run
from spark_prof.profiler.container import (
    BUNDLE_TARGET,
    STAGING_TARGET,
    Mount,
    container_command,
    stage_package,
    without_terminal,
)
from spark_prof.profiler.container_run import container_user, open_to_container
from tests.rows import each_row
from tests.support import program, refusal

STAGING, BUNDLE = Path("/tmp/staging"), Path("/home/me/run.bundle")
MOUNTS = "-v /tmp/staging:/opt/spark-prof:ro -v /home/me/run.bundle:/spark-prof-bundle"
PATH_ONLY = "-e PYTHONPATH=/opt/spark-prof"
ADDED = f"{MOUNTS} {PATH_ONLY}"


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("docker", "podman", "nerdctl", "sudo", "env"):
        (tmp_path / name).write_bytes(b"\x7fELF")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)


def rewritten(line: str, **environment: str) -> list[str]:
    mounts = (Mount(STAGING, STAGING_TARGET), Mount(BUNDLE, BUNDLE_TARGET, writable=True))
    return container_command(shlex.split(line), mounts=mounts, environment=environment)


# The part before + are the options, the part after it IMAGE and its command.
LINES = [
    "docker run --gpus all --ipc=host --ulimit memlock=-1 --ulimit stack=67108864 -it --rm"
    " + nvcr.io/nvidia/vllm:26.01-py3 vllm serve openai/gpt-oss-120b --port 8000 -e x",
    "docker run --runtime nvidia --gpus all -v ~/.cache/huggingface:/root/.cache/huggingface"
    ' --env "HF_TOKEN=x" -p 8000:8000 --ipc=host + vllm/vllm-openai:latest --model Qwen/Qwen3-0.6B',
    "docker run --privileged --gpus=all -it --rm --network host --ipc=host"
    " -v ~/.cache/huggingface:/root/.cache/huggingface --name vllm_node"
    " --device /dev/infiniband --cap-add=IPC_LOCK + vllm-node"
    " bash -c -i 'vllm serve m --tensor-parallel-size 2'",
    "podman run --device nvidia.com/gpu=all --security-opt=label=disable --userns keep-id --rm"
    " --shm-size 16g -p8000:8000 + docker.io/vllm/vllm-openai:v0.26.0 --model m",
    "nerdctl -n k8s.io run --gpus all --rm + image@sha256:0123 --model m",
    "sudo docker run --rm --gpus all + image vllm serve m",
    "env DOCKER_CONFIG=/etc/docker docker --context default container run -ti + image",
    "docker run -itu 1000:1000 -w/work --read-only --tmpfs /tmp + image python offline.py",
    "docker run --entrypoint '' -d=false --sig-proxy=false --init --pull always + image vllm",
    "docker run --shm-size=16g --env-file .env -h node1 -m 100g -eA=1 -e B + image",
    "docker run --new-option=1 --mount type=bind,source=/a,target=/b,readonly + image",
    "docker run --detach=false -v cache:/root/.cache -v /anonymous + image",
    "docker run --rm + -- image --model m",
    "docker run + image",
]


@each_row("line", LINES)
def test_everything_goes_right_before_the_image(line: str) -> None:
    options, image = line.split(" + ")
    assert rewritten(f"{options} {image}") == shlex.split(f"{options} {ADDED} {image}")


@each_row("environment", ["-e", "--env", "-ite"])
@each_row(
    ("given", "changed", "added"),
    [
        ("A=1", "A=1", PATH_ONLY),
        ("PYTHONPATH=/a:/b", "PYTHONPATH=/opt/spark-prof:/a:/b", ""),
        ("PYTHONPATH=", "PYTHONPATH=/opt/spark-prof", ""),
        ("PYTHONPATH", "PYTHONPATH=/opt/spark-prof", ""),
        ("VLLM_PLUGINS=a,b", "VLLM_PLUGINS=a,b,spark_prof", PATH_ONLY),
        ("VLLM_PLUGINS=", "VLLM_PLUGINS=spark_prof", PATH_ONLY),
        ("VLLM_PLUGINS=spark_prof", "VLLM_PLUGINS=spark_prof", PATH_ONLY),
        ("VLLM_PLUGINS", "VLLM_PLUGINS", PATH_ONLY),
    ],
)
def test_what_the_user_sets(environment: str, given: str, changed: str, added: str) -> None:
    assert rewritten(f"docker run {environment} {given} image") == shlex.split(
        f"docker run {environment} {changed} {MOUNTS} {added} image"
    )


def test_an_attached_value_is_changed_where_it_stands() -> None:
    for attached in ("-e", "-e=", "--env=", "-ite"):
        assert rewritten(f"docker run {attached}PYTHONPATH=/a image") == shlex.split(
            f"docker run {attached}PYTHONPATH=/opt/spark-prof:/a {MOUNTS} image"
        )


def test_a_bare_name_takes_the_engines_own_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/host")
    for prefix, merged in (("", ":/host"), ("sudo ", ""), ("sudo -E ", ":/host")):
        assert rewritten(f"{prefix}docker run -e PYTHONPATH image") == shlex.split(
            f"{prefix}docker run -e PYTHONPATH=/opt/spark-prof{merged} {MOUNTS} image"
        )
    assert rewritten("env VLLM_PLUGINS=a docker run -e VLLM_PLUGINS image") == shlex.split(
        f"env VLLM_PLUGINS=a docker run -e VLLM_PLUGINS=a,spark_prof {ADDED} image"
    )


def test_environment_of_the_recording() -> None:
    given = {"STEPS": "20", "OTHER": "/home/me", "PYTHONPATH": "/image", "VLLM_PLUGINS": "a"}
    line = rewritten("docker run -e STEPS=9 image", **given)
    assert line == shlex.split(
        f"docker run -e STEPS=20 {MOUNTS} -e PYTHONPATH=/opt/spark-prof:/image"
        " -e OTHER=/home/me -e VLLM_PLUGINS=a,spark_prof image"
    )


def test_relative_folders_are_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    mounts = (
        Mount(Path("staging"), STAGING_TARGET),
        Mount(Path("out"), BUNDLE_TARGET, writable=True),
    )
    line = container_command(("docker", "run", "image"), mounts=mounts, environment={})
    assert line == shlex.split(
        f"docker run -v {tmp_path}/staging:/opt/spark-prof:ro -v {tmp_path}/out:/spark-prof-bundle"
        f" {PATH_ONLY} image"
    )


@each_row(
    ("line", "says"),
    [
        ("docker run", "docker run: no IMAGE"),
        ("docker run --rm --name", "docker run: no IMAGE"),
        ("docker run --gpus image", "docker run: no IMAGE"),
        ("docker run -d image", "-d ends the command while the container goes on"),
        ("docker run -itd image", "-d ends the command"),
        ("podman run --detach image", "podman run: --detach ends the command"),
        ("docker run --detach=true image", "--detach ends the command"),
        ("docker run --new-option 1 image", "write --new-option=VALUE, or --new-option=true"),
        ("docker run -z image", "-z is not known to spark-prof; write --NAME=VALUE"),
        ("docker run -v /a:/opt/spark-prof image", "/opt/spark-prof is where spark-prof mounts"),
        ("docker run -v /a:/opt/spark-prof/:ro image", "mount yours elsewhere"),
        ("docker run -v/spark-prof-bundle image", "/spark-prof-bundle is where"),
        ("docker run --tmpfs /opt/spark-prof:size=1m image", "mount yours elsewhere"),
        ("docker run --mount type=tmpfs,dst=/opt/spark-prof image", "mount yours elsewhere"),
        ("docker exec box vllm", "'docker exec' enters a container"),
    ],
)
def test_refusal(line: str, says: str) -> None:
    with refusal(says):
        rewritten(line)


def test_a_folder_that_a_mount_cannot_name() -> None:
    mount = Mount(Path("/a:b"), BUNDLE_TARGET, writable=True)
    with pytest.raises(CommandError, match="has a colon"):
        container_command(["docker", "run", "image"], mounts=(mount,), environment={})


def test_staged_package_is_found_by_a_plain_python(tmp_path: Path) -> None:
    folder = tmp_path / "staging"
    folder.mkdir(mode=0o700)
    previous = os.umask(0o077)
    try:
        stage_package(folder)
    finally:
        os.umask(previous)

    program = (
        "import importlib.metadata, spark_prof.errors\n"
        "print(spark_prof.errors.__file__)\n"
        "for entry in importlib.metadata.entry_points(group='vllm.general_plugins'):\n"
        "    if entry.name == 'spark_prof': print(entry.value, entry.dist.name)\n"
        "print([e.name for e in importlib.metadata.distribution('spark-prof').entry_points])\n"
    )
    found = subprocess.run(
        [sys.executable, "-B", "-c", program], env={"PYTHONPATH": str(folder)}, cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.splitlines() == [
        str(folder / "spark_prof" / "errors.py"),
        "spark_prof.plugin:install spark-prof",
        "['spark_prof']",
    ]

    source = Path(spark_prof.profiler.__path__[0]).parent
    staged = folder / "spark_prof"
    copies = {path.relative_to(staged) for path in staged.rglob("*") if path.is_file()}
    wanted = {path.relative_to(source) for path in source.rglob("*.py")}
    kernels = {path.relative_to(source) for path in (source / "kernels/cuda").iterdir()}
    sources = {
        Path("profiler/backends", name) for name in ("arguments.c", "capture.c", "capture.h")
    }
    tables = {path.relative_to(source) for path in source.rglob("*.json")}
    assert Path("kernels/tuned.json") in tables
    assert copies == wanted | kernels | sources | tables
    assert all((staged / path).read_bytes() == (source / path).read_bytes() for path in copies)
    modes = {path.stat().st_mode & 0o777 for path in (folder, *folder.rglob("*"))}
    assert modes == {0o755, 0o644}


@each_row(
    ("line", "without"),
    [
        ("docker run -it image vllm serve m", "docker run image vllm serve m"),
        ("docker run -t -i --rm image --model m", "docker run --rm image --model m"),
        ("docker run --tty --interactive=true image vllm", "docker run image vllm"),
        ("docker run -itv /a:/b -e -it image vllm", "docker run -v /a:/b -e -it image vllm"),
        ("docker run -ti image bash -lc 'vllm -t'", "docker run image bash -lc 'vllm -t'"),
        ("docker run -tw/it image vllm", "docker run -w/it image vllm"),
        ("sudo docker run -it -- image vllm -it", "sudo docker run -- image vllm -it"),
        # A shell is typed into; what an image does by itself is not known.
        ("docker run -it image bash", "docker run -it image bash"),
        ("docker run -it image /bin/sh -l", "docker run -it image /bin/sh -l"),
        ("docker run -it image", "docker run -it image"),
    ],
)
def test_a_container_has_no_terminal_of_its_own(line: str, without: str) -> None:
    assert shlex.join(without_terminal(shlex.split(line))) == without


ANSWERS = """
case "$*" in
*inspect*) echo "$IMAGE_USER" ;;
*SecurityOptions*) echo "$SECURITY" ;;
*--entrypoint*id*vllm) echo 1234 ;;
*) exit 1 ;;
esac
"""


@each_row(
    ("line", "image", "security", "user"),
    [
        ("docker run image vllm", "", "", 0),
        ("docker run image vllm", "root", "", 0),
        ("docker run image vllm", "0:0", "", 0),
        ("docker run image vllm", "1000:100", "", 1000),
        ("docker run image vllm", "vllm", "", 1234),
        ("docker run --user 7 image vllm", "1000", "", 7),
        ("docker run -u7:8 image vllm", "", "", 7),
        ("docker run --user=vllm image vllm", "", "", 1234),
        ("docker container run image vllm", "1000", "", 1000),
        ("docker run image vllm", "", "[name=userns]", 165536),
        ("docker run --user 7 image vllm", "", "[name=userns]", 165543),
        ("docker run --userns host --user 7 image vllm", "", "[name=userns]", 7),
        ("docker run --user 7 image vllm", "", "[name=seccomp name=rootless]", 100006),
        ("podman run --user 7 image vllm", "", "", 7),
    ],
)
def test_who_writes_from_a_container(
    line: str, image: str, security: str, user: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("docker", "podman"):
        program(tmp_path / name, ANSWERS)
    me = container_run.pwd.getpwuid(os.geteuid()).pw_name
    (tmp_path / "subuid").write_text(f"dockremap:165536:65536\n{me}:100000:65536\n")
    monkeypatch.setattr(container_run, "_SUBUID", tmp_path / "subuid")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("IMAGE_USER", image)
    monkeypatch.setenv("SECURITY", security)
    if os.geteuid() == 0 or not line.startswith("podman"):
        assert container_user(shlex.split(line)) == user


def test_a_user_whom_nobody_knows_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "docker", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with refusal("runs as 'ray', and only its image knows who that is: give the number"):
        container_user(shlex.split("docker run --user ray image vllm"))


@each_row("user", ["0", str(os.geteuid()), "12345"])
def test_only_the_container_s_user_is_let_in(
    user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin" / "docker", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    folder = tmp_path / "b"
    folder.mkdir()
    open_to_container([folder], shlex.split(f"docker run --user {user} image vllm"))
    status = folder.stat()
    assert status.st_mode & 0o007 == 0
    if os.geteuid() == 0:
        assert status.st_mode & 0o777 == 0o700
        assert status.st_uid == int(user)


def test_an_access_control_list_lets_one_more_user_in(tmp_path: Path) -> None:
    """As the kernel reads it: checked by another user, where this one may become others."""
    try:
        os.setxattr(tmp_path, "system.posix_acl_access", container_run._access(12345))
    except OSError:
        pytest.skip("this file system has no access control lists")
    assert tmp_path.stat().st_mode & 0o777 == 0o770  # the middle digit is the list's mask
    if os.geteuid() != 0:
        return
    top = tmp_path
    while top != top.parent:  # pytest's own folders are private
        top.chmod(top.stat().st_mode | 0o011) if top.stat().st_uid == 0 else None
        top = top.parent
    for user, may in ((12345, True), (12346, False)):
        done = subprocess.run(
            ["/bin/sh", "-c", f"> {tmp_path / f'file{user}'}"],
            user=user, group=user, extra_groups=[], capture_output=True,
        )  # fmt: skip
        assert (done.returncode == 0) is may, done.stderr
