"""Finds the program that a command line starts, behind the wrappers in front of it."""

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

from spark_prof.errors import CommandError
from spark_prof.rules.wrappers import BY_NAME, Wrapper

EXAMPLE = "'spark-prof record -- vllm serve MODEL'"
ATTACH = "'spark-prof record --attach URL'"
IN_IMAGE = f"use 'docker run', or install spark-prof in the image and use {ATTACH}"


class Option(NamedTuple):
    """An option of a command line."""

    name: str
    value: str | None
    position: int  # index of the argument that ends it


@dataclass(frozen=True)
class Program:
    """The program behind the wrappers in front of it."""

    index: int
    name: str
    local: bool  # it is looked up on this PATH and from this folder
    cleared_by: str  # what is said of the wrapper that drops the environment, if one does
    unknown: str = ""  # the program in front that is not known, and may or may not start this one
    setsid: tuple[int, int] = (0, 0)  # the words of a `setsid` that the command itself becomes


COMPOSE_OPTIONS = (
    "--ansi -c --context --env-file -f --file -H --host --in-pod --log-level --parallel -p"
    " --pod-args --podman-args --podman-build-args --podman-path --podman-pull-args"
    " --podman-run-args --profile --progress --project-directory --project-name --tlscacert"
    " --tlscert --tlskey"
)
# The options of a container engine that take a value and come before its subcommand.
ENGINES = {
    "docker": "--config -c --context -H --host -l --log-level --tlscacert --tlscert --tlskey",
    "nerdctl": "-a --address -H --host -n --namespace --snapshotter --storage-driver --cni-path"
    " --cni-netconfpath --data-root --cgroup-manager --hosts-dir --host-gateway-ip --bridge-ip",
    "podman": "--cgroup-manager --config --conmon -c --connection --events-backend --hooks-dir"
    " --identity --imagestore --log-level --module --namespace --network-cmd-path"
    " --network-config-dir --out --root --runroot --runtime --runtime-flag --ssh"
    " --storage-driver --storage-opt --tmpdir --url --volumepath",
    "docker-compose": COMPOSE_OPTIONS,
    "podman-compose": COMPOSE_OPTIONS,
}

SHELLS = ("bash", "dash", "fish", "ksh", "sh", "zsh")
LAUNCHERS = ("accelerate", "deepspeed", "mpiexec", "mpirun", "ray", "srun", "torchrun")
# A build tool may start vLLM as a shell script may.
KINDS = dict.fromkeys(LAUNCHERS, "python") | dict.fromkeys(
    (*SHELLS, "just", "make", "script"), "script"
)

PYTHON = re.compile(r"(python|pypy)[\d.]*t?")

REFUSED = {
    "ncu": "profiles too, and two profilers cannot trace one process; leave it out",
    "nvprof": "profiles too, and two profilers cannot trace one process; leave it out",
    "nsys": "profiles too, and two profilers cannot trace one process; leave it out, or let"
    " spark-prof run it: --backend nsys",
}


def scan_options(argv: Sequence[str], start: int, valued: str) -> tuple[list[Option], int]:
    """Reads the options from start on; returns them and the index of the first other argument.

    An option that is not among the valued ones counts as a switch; "--" ends the options.
    """
    options: list[Option] = []
    names = frozenset(valued.split())
    at = start
    while at < len(argv) and argv[at].startswith("-") and argv[at] not in ("-", "--"):
        for name, attached in _split(argv[at], names):
            value = attached
            if value is None and name in names:
                at += 1
                value = argv[at] if at < len(argv) else None
            options.append(Option(name, value, at))
        at += 1
    return options, min(at, len(argv))


def _split(word: str, valued: frozenset[str]) -> Iterator[tuple[str, str | None]]:
    """Yields the options in one argument (-itv/a:/b has three) with the value attached to each."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        yield name, value if equals else None
        return
    for place in range(1, len(word)):
        name, rest = f"-{word[place]}", word[place + 1 :]
        if rest and (name in valued or rest.startswith("=")):
            yield name, rest.removeprefix("=")
            return
        yield name, None


def find_program(argv: Sequence[str]) -> Program:
    """Finds the program that the wrappers in front of it start in the end."""
    at, local, forked, cleared_by, setsid = 0, True, False, "", (0, 0)
    while wrapper := BY_NAME.get(PurePath(argv[at]).name):
        if local:
            look_up(argv[at])
        begun, (options, at) = at, _after_wrapper(argv, at, wrapper)
        names = {option.name for option in options}
        cleared_by = _cleared_by(wrapper.name, options, argv[begun:at]) or cleared_by
        while re.match(r"[A-Za-z_]\w*=", word_at(argv, at)):
            names.add(word_at(argv, at).partition("=")[0])
            at += 1
        moved = wrapper.name in ("env", "sudo") and names & {"-C", "-D", "--chdir", "PATH"}
        local = local and not (wrapper.elsewhere or moved)
        if wrapper.name == "setsid" and not forked:
            setsid = begun, at
        forked = forked or wrapper.forks
        if at >= len(argv):
            raise CommandError(f"no program after {wrapper.name!r}; give one, as in {EXAMPLE}")
    behind = _behind_unknown(argv, at) if local else at
    unknown = PurePath(argv[at]).name if behind != at else ""
    local = local and not unknown
    return Program(behind, PurePath(argv[behind]).name, local, cleared_by, unknown, setsid)


def _after_wrapper(argv: Sequence[str], at: int, wrapper: Wrapper) -> tuple[list[Option], int]:
    """The options of a wrapper, and the index of what follows them and its arguments."""
    if wrapper.after:
        words = list(argv[at:])
        if wrapper.after not in words:
            raise CommandError(f"{wrapper.name!r} starts vLLM only with {wrapper.after}")
        return [], at + words.index(wrapper.after) + 1
    options, end = scan_options(argv, at + 1, wrapper.valued)
    if wrapper.verb:
        if not re.fullmatch(wrapper.verb, word_at(argv, end)):
            verbs = "', '".join(f"{wrapper.name} {verb} …" for verb in wrapper.verb.split("|"))
            raise CommandError(f"{wrapper.name!r} starts vLLM only as '{verbs}'")
        wrapper_options, end = scan_options(argv, end + 1, wrapper.valued)
        options += wrapper_options
    if wrapper.argument and re.fullmatch(wrapper.argument, word_at(argv, end)):
        wrapper_options, end = scan_options(argv, end + 1, wrapper.valued)
        options += wrapper_options
    return options, end + (word_at(argv, end) in ("-", "--"))


def _cleared_by(name: str, options: Sequence[Option], words: Sequence[str]) -> str:
    """What is said of a wrapper that keeps the recording's environment from the program."""
    names = {option.name for option in options}
    if name == "env" and ("-" in words or names & {"-i", "--ignore-environment"}):
        return "'env -i' drops the environment that starts the recording; leave -i out"
    # --preserve-env=LIST keeps only the names in its list.
    preserves = any(o.name in ("-E", "--preserve-env") and o.value is None for o in options)
    if name == "sudo" and not preserves:
        return (
            "'sudo' drops the environment that starts the recording; write 'sudo -E', or"
            " record as root with 'sudo spark-prof record …'"
        )
    if name == "systemd-run" and "--scope" not in names:
        return (
            "'systemd-run' starts a service without the environment that starts the recording;"
            " write 'systemd-run --scope'"
        )
    if name == "setsid" and names & {"-f", "--fork"}:
        return "'setsid --fork' ends while what it started goes on; leave --fork out"
    return ""


def _behind_unknown(argv: Sequence[str], at: int) -> int:
    """The index of vLLM, Python or a container engine behind a program that is not known.

    That is a compiled one: a script may start vLLM by itself. The index of the program if there is
    none.
    """
    name = PurePath(argv[at]).name
    if _is_known(name) or name in KINDS or name in REFUSED:
        return at
    path = shutil.which(argv[at])
    if path is None or script_kind(Path(path)):
        return at
    indexes = (n for n in range(at + 1, len(argv)) if _is_known(PurePath(argv[n]).name))
    return next(indexes, at)


def _is_known(name: str) -> bool:
    """Whether a program of that name is recorded."""
    return name == "vllm" or name in ENGINES or bool(PYTHON.fullmatch(name))


def without_setsid(argv: Sequence[str]) -> list[str]:
    """The command line without `setsid` in front, for a process that leads a session already.

    There `setsid` would start the program in a further process and end at once.
    """
    begin, end = find_program(argv).setsid
    return [*argv[:begin], *argv[end:]]


def word_at(argv: Sequence[str], at: int) -> str:
    """The word there; empty behind the last one."""
    return argv[at] if at < len(argv) else ""


def look_up(word: str) -> Path:
    """The program that a word starts here; a CommandError that says why it is none."""
    if program := shutil.which(word):
        return Path(program)
    if word.endswith((".py", ".sh")) and Path(word).is_file():
        why = f"is no program; write '{'python' if word.endswith('.py') else 'bash'} {word}'"
    elif " " in word:
        why = "is no program; leave out the quotes around the command"
    else:
        why = "is not found on PATH; check its name, or give its full path"
    raise CommandError(f"{word!r} {why}")


def script_kind(path: Path | None) -> str:
    """Tells what interpreter the first line of a program asks for; "" for a compiled program."""
    if path is None or path.suffix == ".py":
        return "python"  # uv finds it in a Python environment that is not to be seen from here
    if path.suffix == ".sh":
        return "script"
    try:
        with path.open("rb") as file:
            first = file.readline(256)
    except OSError:
        return ""
    kind = "python" if b"python" in first else "script"
    return kind if first.startswith(b"#!") else ""
