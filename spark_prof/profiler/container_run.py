"""The container that holds an engine: `docker run ...`, as `ab` and `tune` start it.

Or `docker compose run SERVICE`, whose command the compose file may have.

The image keeps its own Python and vLLM. Of the command line goes what only a server needs: its
ports, its name, its terminal, that it runs in the background. The image's program is replaced by
the driver, in the Python that the image's `vllm` has; folders of this host stand in the container
under the names that they have here.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import secrets
import shlex
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from spark_prof.errors import CommandError
from spark_prof.profiler.commands import find_run
from spark_prof.profiler.compose import KNOWN_OPTIONS, RunLine, read_run, service_of, valued
from spark_prof.profiler.container import STAGING_TARGET, Mount, alone, container_command
from spark_prof.profiler.program import PYTHON, SHELLS, Option, find_program, scan_options

_ASK_SECONDS = 30.0
_SUBUID = Path("/etc/subuid")

_ACL = "system.posix_acl_access"
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_ALL, _NOBODY = 7, 0xFFFFFFFF
"""Of linux/posix_acl_xattr.h: a version, then tag, permissions and user of each entry."""


def open_to_container(folders: Sequence[Path], argv: Sequence[str]) -> None:
    """Makes folders private to this user and to the one that `docker run ...` runs as."""
    user = container_user(argv)
    for folder in folders:
        folder.chmod(0o700)
        if user in (0, os.geteuid()):
            continue
        try:
            if os.geteuid() == 0:
                os.chown(folder, user, -1)
            else:
                os.setxattr(folder, _ACL, _access(user))
        except OSError as error:
            raise CommandError(
                f"the container runs as user {user}, who cannot be let into {folder} "
                f"({error.strerror}); run it as yourself: --user {os.geteuid()}"
            ) from error


def container_user(argv: Sequence[str]) -> int:
    """The number that the container's user has on this host; 0 for one who may write anywhere."""
    run = read_run(argv)
    service = service_of(run)
    image, engine = service.image if service else run.target, run.start.engine
    requested_user = run.value("-u", "--user") or (service.user if service else "")
    userns, host_user = run.value("--userns"), os.geteuid()
    if userns == "keep-id" and not requested_user:
        return host_user
    name = requested_user or _answer(
        [*engine, "image", "inspect", "--format", "{{.Config.User}}", image]
    )
    name = name.partition(":")[0]
    if not name.isdecimal() and name not in ("", "root"):
        answer = _answer([*engine, "run", "--rm", "--network", "none", "--entrypoint", "id", image,
                         "-u", name])  # fmt: skip
        if not answer.isdecimal():
            raise CommandError(
                f"the container runs as {name!r}, and only its image knows who that is: give the "
                "number, as in --user 1000"
            )
        name = answer
    user = int(name) if name.isdecimal() else 0
    if userns in ("host", "keep-id"):
        return user
    kind = _mapping(engine)
    if kind == "rootless":
        return host_user if user == 0 else _mapped(pwd.getpwuid(host_user).pw_name, user - 1)
    return _mapped("dockremap", user) if kind == "remapped" else user


def _mapping(engine: Sequence[str]) -> str:
    """How the engine maps users: not at all, rootless or remapped."""
    if "docker" not in (PurePath(word).name for word in engine):
        return "rootless" if os.geteuid() and "sudo" not in engine else ""
    security = _answer([*engine, "info", "--format", "{{.SecurityOptions}}"])
    if "name=rootless" in security:
        return "rootless"
    return "remapped" if "name=userns" in security else ""


def _mapped(name: str, user: int) -> int:
    """The number on this host of a user inside, by the first range that a name has for them."""
    with suppress(OSError, ValueError):
        for line in _SUBUID.read_text(encoding="utf-8").splitlines():
            fields = line.split(":")
            if fields[0] in (name, str(os.geteuid())) and user < int(fields[2]):
                return int(fields[1]) + user
    raise CommandError(
        f"{_SUBUID} does not tell who the container's user is on this host; run it as root of the "
        "container, or with --userns host"
    )


def _answer(words: Sequence[str]) -> str:
    """What the engine answers; empty where it does not, as of an image that it has yet to pull."""
    with suppress(OSError, subprocess.SubprocessError):
        process = subprocess.run(
            words, capture_output=True, text=True, timeout=_ASK_SECONDS, check=True
        )
        return process.stdout.strip()
    return ""


def _access(user: int) -> bytes:
    """An access control list: the owner and one user may do all, others nothing."""
    entries = (
        (_USER_OBJ, _ALL, _NOBODY),
        (_USER, _ALL, user),
        (_GROUP_OBJ, 0, _NOBODY),
        (_MASK, _ALL, _NOBODY),
        (_OTHER, 0, _NOBODY),
    )
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


_SERVERS_OWN = """
-P -T -a -d -i -p -t --attach --cidfile --detach --detach-keys --entrypoint --health-cmd
--health-interval --health-retries --health-start-period --health-timeout --interactive --name
--no-TTY --no-healthcheck --no-tty --publish --publish-all --replace --restart --rm --service-ports
--sig-proxy --tty --use-aliases
"""
"""Options of `run` that are a server's, or that `ab` sets itself."""
_FIND_PYTHON = (
    'python=$1; shift; case "${python##*/}" in python*|pypy*) ;; *) python=$(sed -n '
    '"1s/^#! *\\([^ ]*python[^ ]*\\).*/\\1/p" "$(command -v "$python")" 2>/dev/null);; esac; '
    'exec "${python:-python3}" "$@"'
)
"""Starts a Python, or that behind a start script such as vllm's, else the first on the PATH."""
_ANSWER_SECONDS = 60.0
_REMOVE_SECONDS = 30.0
_PLAIN = re.compile(r"[^;&|<>`$()\n\\*?#~]*")
"""A line of a shell that is one command, whose words are what it says."""


@dataclass(frozen=True)
class ContainerRun:
    """`docker run OPTIONS IMAGE` without what only a server needs."""

    engine: tuple[str, ...]  # what asks the engine itself, such as sudo docker --context x
    start: tuple[str, ...]  # up to `run`, such as docker compose -f x.yaml run
    options: tuple[str, ...]  # of `run`
    target: str  # the image, or the service of a compose file
    image: str
    added: tuple[str, ...] = ()  # words that nobody typed: the compose file's or the image's
    compose: bool = False

    def command(
        self,
        name: str,
        python: str,
        arguments: Sequence[str],
        mounts: Sequence[Mount] = (),
        environment: Mapping[str, str] | None = None,
    ) -> list[str]:
        """The command line that runs the image's Python with these arguments.

        Args:
            name: of the container, from `named`.
            python: inside, or a start script such as vllm's, whose Python is meant.
            mounts: what it sees of this host; the package is among them where it is needed.
        """
        run = [*self.start, *self.options, "--rm", "--name", name, "--entrypoint", "sh"]
        run += ["-T"] if self.compose else []
        words = alone([*run, self.target, "-c", _FIND_PYTHON, "spark-prof", python, *arguments])
        if not mounts:
            return words
        return container_command(words, mounts=mounts, environment=environment or {})

    @contextmanager
    def named(self) -> Iterator[str]:
        """A name for a container; what has it afterwards is ended, whatever it does."""
        name = f"spark-prof-{secrets.token_hex(6)}"
        try:
            yield name
        finally:
            words = [*self.engine, "rm", "--force", name]
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run(words, capture_output=True, timeout=_REMOVE_SECONDS, check=False)

    @property
    def line(self) -> RunLine:
        """The command line without what only a server needs."""
        return read_run([*self.start, *self.options, self.target])

    def open(self, *folders: Path) -> None:
        """Lets the container's user into folders of this host, and nobody else."""
        open_to_container(folders, self.line.argv)


def container_run(argv: Sequence[str]) -> tuple[ContainerRun, tuple[str, ...]]:
    """A command line that starts vLLM in a container, and what the container runs.

        run, inside = container_run("docker run -d -p 8000:8000 image vllm serve m".split())
        run.options == (), inside == ("vllm", "serve", "m")

    An image that is given arguments alone has a program of its own; that is asked for, and is
    vLLM's server where nobody answers. A service's command is that of its compose file.
    """
    start = find_run(argv, find_program(argv))
    takes_value = valued(start)
    options, end = scan_options(argv, start.begin, takes_value)
    engine_options = [option for option in options if option.name not in _SERVERS_OWN.split()]
    for option in engine_options:
        if option.name not in KNOWN_OPTIONS and option.value is None:
            read_run(argv)  # says how to write it
    words = tuple(word for option in engine_options for word in _option_words(option, takes_value))
    before = tuple(word for word in argv[: start.begin] if word != "container")
    # Says what is missing or cannot be mounted, before anything is looked at.
    line = read_run([*before, *words, *argv[end:]])
    service = service_of(line)
    image = service.image if service else line.target
    entry = next((o.value or "" for o in reversed(options) if o.name == "--entrypoint"), None)
    entrypoint = _words(entry) if entry is not None else [*service.entrypoint] if service else []
    added: tuple[str, ...] = ()
    if not line.inside:
        added = service.command if service else ()
        added = added or (() if entrypoint else tuple(_of_image(start.engine, image, "Cmd")))
    run = ContainerRun(start.engine, before, words, line.target, image, added, service is not None)
    return run, tuple(_program(run, entrypoint, line.inside or added))


def _option_words(option: Option, takes_value: str) -> list[str]:
    if option.value is None:
        return [option.name]
    if option.name in takes_value.split():
        return [option.name, option.value]
    return [f"{option.name}={option.value}"]


def _program(run: ContainerRun, entrypoint: Sequence[str], behind: Sequence[str]) -> Sequence[str]:
    """The words of vLLM's command line inside, by the entrypoint that was set and those behind."""
    starts = bool(behind) and _is_program(behind[0])
    if not entrypoint and not starts:
        entrypoint = _of_image(run.engine, run.image, "Entrypoint") or ["vllm", "serve"]
    words = [*entrypoint, *behind]
    # What an image runs first, as NVIDIA's do, starts the program that follows.
    if len(entrypoint) == 1 and entrypoint[0].endswith(".sh") and starts:
        words = [*behind]
    return _of_shell(words) if words and PurePath(words[0]).name in SHELLS else words


def _words(entry: str) -> list[str]:
    """An --entrypoint: one word, or as podman takes it a list in JSON."""
    with suppress(ValueError):
        listed = json.loads(entry)
        if isinstance(listed, list) and all(isinstance(word, str) for word in listed):
            return listed
    return [entry] if entry else []


def _is_program(word: str) -> bool:
    name = PurePath(word).name
    return name in ("vllm", *SHELLS) or bool(PYTHON.fullmatch(name))


def _of_image(engine: Sequence[str], image: str, field: str) -> list[str]:
    """What the image starts by itself; empty where that is not known, as of one to be pulled."""
    command = [*engine, "image", "inspect", "--format", f"{{{{json .Config.{field}}}}}", image]
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True
        )
        words = json.loads(process.stdout)
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            return words
    return []


def _of_shell(words: Sequence[str]) -> list[str]:
    """The one command that a shell is given with -c; CommandError where it is more than one."""
    options, end = scan_options(words, 1, "-o -O --rcfile --init-file")
    script = words[end] if end < len(words) else ""
    if any("c" in option.name.lstrip("-") for option in options) and _PLAIN.fullmatch(script):
        with suppress(ValueError):
            inner = shlex.split(script)
            if inner[:1] == ["exec"]:
                inner = inner[1:]
            if inner:
                return inner
    raise CommandError(
        f"the container runs a script of {words[0]}, of which spark-prof ab cannot tell the "
        "engine's arguments; give vllm serve itself behind the image: IMAGE vllm serve MODEL ..."
    )


def staged(folder: Path) -> Mount:
    """The mount of the package's files that were copied into a folder."""
    return Mount(folder, STAGING_TARGET)


def as_here(path: Path, *, writable: bool = False) -> Mount:
    """The mount of a folder or file under the name that it has on this host."""
    return Mount(path.absolute(), str(path.absolute()), writable)
