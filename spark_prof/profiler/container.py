"""Puts spark-prof into a `docker run` command line (docker, podman or nerdctl).

The image keeps its own Python and vLLM: the container gets spark-prof's Python files and the
bundle folder as two mounts, and the environment that turns recording on. Where an argument could
be read in two ways, the command is refused rather than guessed at.
"""

import importlib.metadata
import os
import posixpath
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_prof.errors import CommandError
from spark_prof.profiler.commands import (
    Option,
    Program,
    find_program,
    find_run,
    scan_options,
    with_plugin_allowed,
)

STAGING_TARGET = "/opt/spark-prof"
BUNDLE_TARGET = "/spark-prof-bundle"

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
KNOWN = frozenset((VALUED + SWITCHES).split())

# Sources, those of kernels among them, and the table of what was measured of these.
_COPIED = (".py", ".c", ".cu", ".cuh", ".h", ".json")


def container_command(
    argv: Sequence[str], *, staging: Path, bundle: Path, environment: Mapping[str, str]
) -> list[str]:
    """Returns a container command line with spark-prof's mounts and environment before IMAGE.

    A name in environment that the user sets as well with -e is changed where it stands: PYTHONPATH
    and VLLM_PLUGINS keep what the user gave, any other takes our value.

    What an --env-file or the image sets cannot be seen: there a PYTHONPATH is replaced, and a
    VLLM_PLUGINS that leaves spark_prof out keeps it out.

    The bundle folder must be writable by the user that the container runs as (--user, or the
    image's own), and the staged files readable; that is the caller's to see to.
    """
    program, options, end = _parse(argv)
    for target in (STAGING_TARGET, BUNDLE_TARGET):
        if target in _mount_targets(options):
            raise CommandError(
                f"{target} is where spark-prof mounts its own folder; mount yours elsewhere"
            )
    # `-e NAME` passes on the engine's own value, and none if it has none.
    own = {} if program.cleared_by else dict(os.environ)
    own |= dict(word.split("=", 1) for word in argv[: program.index] if "=" in word)
    set_here = [option for option in options if option.name in ("-e", "--env") and option.value]
    words = [str(option.value).partition("=") for option in set_here]
    given = {name: value if equals else own.get(name) for name, equals, value in words}
    ours = _environment(given, environment)

    result = list(argv)
    for option, (name, _, _) in zip(set_here, words, strict=True):
        if name in ours:
            word = argv[option.position]
            result[option.position] = f"{word.removesuffix(str(option.value))}{name}={ours[name]}"
    added = ["-v", _mount(staging, STAGING_TARGET, ":ro"), "-v", _mount(bundle, BUNDLE_TARGET, "")]
    for name in (name for name in ours if name not in given):
        added += ["-e", f"{name}={ours[name]}"]
    result[end:end] = added
    return result


def stage_package(folder: Path) -> None:
    """Copies spark-prof's source files into folder, with the entry point that vLLM looks for.

    Any user of a container may read them, whatever this process's umask is.
    """
    shutil.copytree(
        Path(__file__).parents[1],
        folder / "spark_prof",
        ignore=_everything_but_source,
        copy_function=shutil.copyfile,
    )
    try:
        version = importlib.metadata.version("spark-prof")
    except importlib.metadata.PackageNotFoundError:
        version = "0"  # a checkout on PYTHONPATH is not installed
    metadata = folder / f"spark_prof-{version}.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: spark-prof\nVersion: {version}\n"
    )
    (metadata / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nspark_prof = spark_prof.plugin:install\n"
    )
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _everything_but_source(folder: str, names: list[str]) -> set[str]:
    return {
        name
        for name in names
        if name == "__pycache__"
        or not (name.endswith(_COPIED) or os.path.isdir(os.path.join(folder, name)))
    }


def _parse(argv: Sequence[str]) -> tuple[Program, list[Option], int]:
    """The engine's program, the options of `run`, and the index where these end."""
    program = find_program(argv)
    start = find_run(argv, program)
    options, end = scan_options(argv, start, VALUED)
    for option in options:
        if option.name not in KNOWN and option.value is None:
            # Both spellings are exact: the engines take --switch=true.
            spelling = f"{option.name}=VALUE, or {option.name}=true if it is a switch"
            if not option.name.startswith("--"):
                spelling = "--NAME=VALUE, its long name"
            raise CommandError(
                f"{program.name} run: {option.name} is not known to spark-prof; write {spelling}"
            )
        if option.name in ("-d", "--detach") and option.value not in ("false", "False", "0", "f"):
            raise CommandError(
                f"{program.name} run: {option.name} ends the command while the container goes on,"
                " and the recording with it; leave it out"
            )
    if list(argv[end:]) in ([], ["--"]):
        raise CommandError(f"{program.name} run: no IMAGE; give one after the options")
    return program, options, end


def _environment(given: Mapping[str, str | None], environment: Mapping[str, str]) -> dict[str, str]:
    kept = {
        name: value
        for name in ("PYTHONPATH", "VLLM_PLUGINS")
        if (value := given.get(name)) is not None
    }
    merged = with_plugin_allowed({**environment, **kept})
    path = merged.pop("PYTHONPATH", "")
    return {"PYTHONPATH": f"{STAGING_TARGET}:{path}".rstrip(":"), **merged}


def _mount(folder: Path, target: str, mode: str) -> str:
    # A relative source would name a volume; a colon would end it.
    source = str(folder.absolute())
    if ":" in source:
        raise CommandError(f"{source!r} has a colon, which -v cannot carry; use another folder")
    return f"{source}:{target}{mode}"


def _mount_targets(options: Sequence[Option]) -> set[str]:
    targets = []
    for option in options:
        value = option.value or ""
        if option.name in ("-v", "--volume"):
            targets.append(value.split(":")[:2][-1])
        elif option.name == "--tmpfs":
            targets.append(value.split(":")[0])
        elif option.name == "--mount":
            fields = dict(field.partition("=")[::2] for field in value.split(","))
            targets += [fields[key] for key in ("target", "dst", "destination") if key in fields]
    return {posixpath.normpath(target) for target in targets}
