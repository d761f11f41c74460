"""Reads the command line that starts a container: `docker run` and `docker compose run`.

docker, podman and nerdctl, docker-compose and podman-compose. Where an argument could be read in
two ways, the command is refused rather than guessed at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_prof.errors import CommandError
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
        what = "SERVICE" if start.compose else "IMAGE"
        raise CommandError(f"{program.name} run: no {what}; give one after the options")
    return RunLine(tuple(argv), program, start, tuple(options), end)
