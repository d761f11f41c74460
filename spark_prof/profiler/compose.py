"""What a container's command line or a compose file says: command, user, variables and folders.

The engine itself is asked (`docker compose config`), which knows overrides, profiles and .env.
podman-compose 1.0 cannot be asked, and would not mount what `run` is told to.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from spark_prof.errors import CommandError, one_line
from spark_prof.profiler.commands import RunStart, find_run
from spark_prof.profiler.program import Option, Program, find_program, scan_options

# Every option of `run` in docker 28, podman 5 and nerdctl 2, by whether it takes a value.
VALUED = """
-a -c -e -h -l -m -p -u -v -w --add-host --annotation --arch --attach --authfile --blkio-weight
--blkio-weight-device --cap-add --cap-drop --cert-dir --cgroup-conf --cgroup-parent --cgroupns
--cgroups --chrootdirs --cidfile --conmon-pidfile --cosign-certificate-identity
--cosign-certificate-identity-regexp --cosign-certificate-oidc-issuer
--cosign-certificate-oidc-issuer-regexp --cosign-key --cpu-count --cpu-percent --cpu-period
--cpu-quota --cpu-rt-period --cpu-rt-runtime --cpu-shares --cpus --cpuset-cpus --cpuset-mems --creds
--decryption-key --detach-keys --device --device-cgroup-rule --device-read-bps --device-read-iops
--device-write-bps --device-write-iops --dns --dns-opt --dns-option --dns-search --domainname
--entrypoint --env --env-file --env-merge --expose --gidmap --gpus --group-add --group-entry
--health-cmd --health-interval --health-log-destination --health-max-log-count
--health-max-log-size --health-on-failure --health-retries --health-start-interval
--health-start-period --health-startup-cmd --health-startup-interval --health-startup-retries
--health-startup-success --health-startup-timeout --health-timeout --hostname --hosts-file
--hostuser --image-volume --init-binary --init-path --io-maxbandwidth --io-maxiops --ip --ip6 --ipc
--ipfs-address --isolation --kernel-memory --label --label-file --link --link-local-ip --log-driver
--log-opt --mac-address --memory --memory-reservation --memory-swap --memory-swappiness --mount
--name --net --net-alias --network --network-alias --oom-score-adj --os --passwd-entry --personality
--pid --pidfile --pids-limit --platform --pod --pod-id-file --preserve-fd --preserve-fds --publish
--pull --rdt-class --requires --restart --retry --retry-delay --runtime --sdnotify --seccomp-policy
--secret --security-opt --shm-size --shm-size-systemd --signature-policy --stop-signal
--stop-timeout --storage-opt --subgidname --subuidname --sysctl --systemd --timeout --tmpfs --tz
--uidmap --ulimit --umask --unsetenv --user --userns --uts --variant --verify --volume
--volume-driver --volumes-from --workdir
"""
SWITCHES = """
-P -d -i -q -t --detach --disable-content-trust --env-host --help --http-proxy --init --interactive
--no-healthcheck --no-hostname --no-hosts --oom-kill-disable --passwd --privileged --publish-all
--quiet --read-only --read-only-tmpfs --replace --rm --rmi --rootfs --sig-proxy --tls-verify --tty
--unsetenv-all --use-api-socket
"""
# The same of `compose run`: docker compose 2, docker-compose 1 and podman-compose 1.
COMPOSE_VALUED = """
-e -l -p -u -v -w --cap-add --cap-drop --entrypoint --env --env-from-file --label --name --publish
--pull --user --volume --workdir
"""
COMPOSE_SWITCHES = """
-P -T -d -i -q --build --detach --interactive --no-TTY --no-deps --no-tty --quiet --quiet-build
--quiet-pull --remove-orphans --rm --service-ports --use-aliases
"""
KNOWN_OPTIONS = frozenset((VALUED + SWITCHES + COMPOSE_VALUED + COMPOSE_SWITCHES).split())


@dataclass(frozen=True)
class RunLine:
    """One command line that starts a container."""

    argv: tuple[str, ...]
    program: Program
    start: RunStart
    options: tuple[Option, ...]  # of `run`
    end: int  # of the options; the image or the service follows, perhaps behind --

    @property
    def target(self) -> str:
        """The image, or the service of a compose file."""
        return self.argv[self._target_at]

    @property
    def inside(self) -> tuple[str, ...]:
        """The words behind the image or the service."""
        return self.argv[self._target_at + 1 :]

    @property
    def _target_at(self) -> int:
        return self.end + (self.argv[self.end] == "--")

    def value(self, *names: str) -> str:
        """The last value of an option by its names; empty where it is not given."""
        return next((o.value or "" for o in reversed(self.options) if o.name in names), "")


def valued(start: RunStart) -> str:
    """The options of `run` that take a value."""
    return COMPOSE_VALUED if start.compose else VALUED


def read_run(argv: Sequence[str], *, background: bool = False) -> RunLine:
    """What a command line that starts a container says; CommandError where it starts none.

        read_run(["docker", "run", "-e", "A=1", "image", "vllm"]).target == "image"

    Args:
        background: it may go on when its command has ended, as with -d.
    """
    program = find_program(argv)
    start = find_run(argv, program)
    names = valued(start)
    option_names = frozenset((names + (COMPOSE_SWITCHES if start.compose else SWITCHES)).split())
    options, end = scan_options(argv, start.begin, names)
    for option in options:
        if option.name not in option_names and option.value is None:
            # Both spellings are exact: the engines take --switch=true.
            spelling = f"{option.name}=VALUE, or {option.name}=true if it is a switch"
            if not option.name.startswith("--"):
                spelling = "--NAME=VALUE, its long name"
            raise CommandError(
                f"{program.name} run: {option.name} is not known to spark-prof; write {spelling}"
            )
        ends = option.name in ("-d", "--detach") and not background
        if ends and option.value not in ("false", "False", "0", "f"):
            raise CommandError(
                f"{program.name} run: {option.name} ends the command while the container goes on,"
                " and the recording with it; leave it out"
            )
    if list(argv[end:]) in ([], ["--"]):
        missing = "SERVICE" if start.compose else "IMAGE"
        raise CommandError(f"{program.name} run: no {missing}; give one after the options")
    return RunLine(tuple(argv), program, start, tuple(options), end)


_ASK_SECONDS = 60.0
_ERROR = re.compile(r"(?i)\berror\b|unknown|cannot|no such|not found")
"""A line in which an engine names what is wrong; others say where to read of its options."""


@dataclass(frozen=True)
class Service:
    """One service of a compose file, as far as it concerns what runs in its container."""

    image: str
    entrypoint: tuple[str, ...]  # empty for the image's
    command: tuple[str, ...]  # empty for the image's
    user: str
    environment: Mapping[str, str | None]  # None for a variable that is passed on
    targets: frozenset[str]  # where folders are mounted
    alone: bool  # it depends on no other service
    publishes: bool  # it has ports
    gpu: bool  # it asks for a GPU


def service_of(run: RunLine) -> Service | None:
    """The service that a command line starts; None of one that starts an image by itself.

    CommandError where the file cannot be read, or has no such service.
    """
    if not run.start.compose:
        return None
    content = _configuration(run.argv[: run.start.begin - 1], run.program.index, os.getcwd())
    services = content.get("services")
    service = services.get(run.target) if isinstance(services, dict) else None
    if not isinstance(service, dict):
        names = ", ".join(map(str, services)) if isinstance(services, dict) else "none"
        raise CommandError(
            f"the compose file has no service {run.target!r}; it has {one_line(names)[:200]}"
            " (one of a profile needs --profile)"
        )
    return _service(service, f"{content.get('name', '')}-{run.target}")


def _service(value: Mapping[str, Any], built: str) -> Service:
    volumes = [*_listed(value.get("volumes")), *_listed(value.get("tmpfs"))]
    deploy = json.dumps(value.get("deploy") or {})
    devices = json.dumps([value.get("devices"), value.get("gpus"), value.get("device_requests")])
    variables = value.get("environment") or {}
    if isinstance(variables, list):
        pairs = (str(item).partition("=") for item in variables)
        variables = {name: text if equals else None for name, equals, text in pairs}
    environment = {k: None if v is None else str(v) for k, v in variables.items()}
    return Service(
        image=str(value.get("image") or built),
        entrypoint=_words(value.get("entrypoint")),
        command=_words(value.get("command")),
        user=str(value.get("user") or ""),
        environment=environment,
        targets=frozenset(filter(None, map(_target, volumes))),
        alone=not value.get("depends_on"),
        publishes=bool(value.get("ports")),
        gpu=value.get("runtime") == "nvidia"
        or "gpu" in deploy
        or re.search(r"gpu|all|/dev/nvidia", devices) is not None
        or bool(value.get("privileged"))
        or "NVIDIA_VISIBLE_DEVICES" in environment,
    )


def _words(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        with suppress(ValueError):
            return tuple(shlex.split(value))
        raise CommandError(f"{one_line(value)[:80]!r} of the compose file has an open quote")
    return tuple(str(word) for word in value) if isinstance(value, list) else ()


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value] if value else []


def _target(volume: object) -> str:
    """Where a volume is mounted: SOURCE:TARGET[:MODE], TARGET, or an object with its name."""
    if isinstance(volume, dict):
        return str(volume.get("target") or "")
    return str(volume).split(":")[:2][-1]


@cache
def _configuration(compose: tuple[str, ...], begin: int, _folder: str) -> Mapping[str, Any]:
    """The compose file as its engine reads it in the current folder, asked once."""
    printed = ""
    for options in (("--format", "json"), ()):
        try:
            process = subprocess.run(
                [*compose, "config", *options],
                capture_output=True, text=True, errors="replace", timeout=_ASK_SECONDS,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            raise CommandError(f"cannot run {compose[begin]}: {one_line(str(error))}") from error
        lines = [line for line in process.stderr.splitlines() if line.strip()]
        named = (line for line in lines if _ERROR.search(line))
        printed = next(named, lines[-1] if lines else printed)
        if process.returncode == 0:
            content = _decoded(process.stdout.replace("$$", "$"))  # as it is written there
            if isinstance(content, dict):
                return content
    if "invalid choice: 'config'" in printed:
        raise CommandError(
            "this podman-compose is too old: its run mounts no folder that -v names; install a "
            "newer one: pip install podman-compose"
        )
    raise CommandError(
        f"{' '.join(compose[begin:])} config: {one_line(printed)[:300] or 'no answer'}"
    )


def _decoded(text: str) -> object:
    """JSON or YAML."""
    with suppress(ValueError):
        return json.loads(text)
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError as error:
        raise CommandError(
            "this compose tells its configuration in YAML, which needs PyYAML: pip install pyyaml"
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CommandError(f"the compose file is no YAML: {one_line(str(error))[:200]}") from error
