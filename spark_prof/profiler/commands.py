"""Says what a command is before it is started.

A command line goes in; out comes the same command line with its kind. What could not be recorded
is refused in one line, before a model is loaded for nothing. Nothing is started here.
"""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

from spark_prof.errors import CommandError

PLUGIN = "spark_prof"
EXAMPLE = "'spark-prof record -- vllm serve MODEL'"
ATTACH = "'spark-prof record --attach URL'"
IN_IMAGE = f"use 'docker run', or install spark-prof in the image and use {ATTACH}"


class Command(NamedTuple):
    """A command line that can be recorded, and what it is."""

    argv: tuple[str, ...]
    # vllm-serve; vllm-bench, an engine that ends by itself; python, an interpreter or a launcher of
    # Python programs; script; or container.
    kind: str


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


# Programs that start another one, and their options that take a value.
WRAPPERS = {
    "env": "-u --unset -C --chdir -S --split-string -a --argv0",
    "nice": "-n --adjustment",
    "nohup": "",
    "numactl": "-i --interleave -w --weighted-interleave -m --membind -N --cpunodebind"
    " -C --physcpubind -p --preferred -P --preferred-many",
    "stdbuf": "-i --input -o --output -e --error",
    "sudo": "-u --user -g --group -h --host -p --prompt -C --close-from -D --chdir -R --chroot"
    " -r --role -t --type -T --command-timeout -U --other-user",
    "taskset": "",
    "time": "-f --format -o --output",
    "timeout": "-k --kill-after -s --signal",
    "uv": "-p --python --with --with-editable --with-requirements --extra --group --only-group"
    " --no-extra --no-group --env-file --package --project --directory --config-file"
    " --cache-dir --index --default-index -i --index-url --extra-index-url -f --find-links"
    " -P --upgrade-package --refresh-package --reinstall-package -C --config-setting --color",
}

# The options of a container engine that take a value and come before its subcommand.
ENGINES = {
    "docker": "--config -c --context -H --host -l --log-level --tlscacert --tlscert --tlskey",
    "nerdctl": "-a --address -H --host -n --namespace --snapshotter --storage-driver --cni-path"
    " --cni-netconfpath --data-root --cgroup-manager --hosts-dir --host-gateway-ip --bridge-ip",
    "podman": "--cgroup-manager --config --conmon -c --connection --events-backend --hooks-dir"
    " --identity --imagestore --log-level --module --namespace --network-cmd-path"
    " --network-config-dir --out --root --runroot --runtime --runtime-flag --ssh"
    " --storage-driver --storage-opt --tmpdir --url --volumepath",
}

VLLM_KINDS = {
    "serve": "vllm-serve",
    "run-batch": "vllm-bench",
    "bench latency": "vllm-bench",
    "bench throughput": "vllm-bench",
    "bench startup": "vllm-bench",
    "bench mm-processor": "vllm-bench",
}
VLLM_REFUSED = {
    "bench serve": "sends load to a server and runs no model itself; record the server:"
    f" {EXAMPLE} or {ATTACH}",
    "bench sweep": "starts one server after another, and their records would be mixed; record one"
    f" configuration at a time: {EXAMPLE}",
}

SHELLS = ("bash", "dash", "fish", "ksh", "sh", "zsh")
LAUNCHERS = ("accelerate", "deepspeed", "mpiexec", "mpirun", "ray", "srun", "torchrun")
# A build tool may start vLLM as a shell script may.
KINDS = dict.fromkeys(LAUNCHERS, "python") | dict.fromkeys((*SHELLS, "just", "make"), "script")

COMPOSE = f"takes a service's mounts and environment from its file; {IN_IMAGE}"
REFUSED = {
    "docker-compose": COMPOSE,
    "podman-compose": COMPOSE,
    "ncu": "profiles too, and two profilers cannot trace one process; leave it out",
    "nsys": "profiles too, and two profilers cannot trace one process; leave it out, or let"
    " spark-prof run it: --backend nsys",
}
ENGINE_REFUSED = {
    "compose": COMPOSE,
    "exec": f"enters a container that can be given no mount any more; {IN_IMAGE}",
    "start": f"starts a container that can be given no mount any more; {IN_IMAGE}",
}


def recognise(argv: Sequence[str]) -> Command:
    """Tells what a command line is, or raises the CommandError that says why it is no use.

    A VLLM_PLUGINS=... in front of the program is made to allow the plugin; all else stays.
    """
    if not argv or not argv[0].strip():
        raise CommandError(f"no command to record; put it after --, as in {EXAMPLE}")
    program = find_program(argv)
    kind = _kind(argv, program)
    # A container is given its environment on its own command line.
    if program.cleared_by and kind != "container":
        raise CommandError(program.cleared_by)
    prefix = [
        "=".join(with_plugin_allowed({name: value}).popitem()) if equals else name
        for name, equals, value in (word.partition("=") for word in argv[: program.index])
    ]
    return Command((*prefix, *argv[program.index :]), kind)


def with_plugin_allowed(environment: Mapping[str, str]) -> dict[str, str]:
    """Adds the plugin to VLLM_PLUGINS, the list of the plugins that vLLM may load.

    Empty allows none; absent allows all, and stays so.
    """
    allowed = environment.get("VLLM_PLUGINS")
    if allowed is None or PLUGIN in allowed.split(","):
        return dict(environment)
    return {**environment, "VLLM_PLUGINS": f"{allowed},{PLUGIN}" if allowed else PLUGIN}


def option_value(words: Sequence[str], *names: str) -> str | None:
    """The last value of an option of vLLM's that has one of these names; None without one."""
    found = None
    for word, following in zip(words, [*words[1:], None], strict=False):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") in names:
            found = value if equals else following
    return found


def server_port(command: Command) -> int:
    """The port of this machine at which the server that a command starts answers; 0 for none."""
    words, port = command.argv, ""
    if command.kind == "container":
        # [address:]port:port of the container
        port = "".join((option_value(words, "-p", "--publish") or "").split(":")[-2:-1])
    elif "serve" in words or any(word.endswith("api_server") for word in words):
        host = option_value(words, "--host") or "127.0.0.1"
        if host in ("127.0.0.1", "localhost", "0.0.0.0", "::"):
            port = option_value(words, "--port") or "8000"
    return int(port) if port.isdecimal() and len(port) < 6 else 0


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
    at, local, cleared_by = 0, True, ""
    while (name := PurePath(argv[at]).name) in WRAPPERS:
        if local:
            _look_up(argv[at])
        options, end = scan_options(argv, at + 1, WRAPPERS[name])
        if name == "uv":
            if _word(argv, end) != "run":
                raise CommandError("'uv' starts vLLM only as 'uv run …'")
            options, end = scan_options(argv, end + 1, WRAPPERS[name])
        names = {option.name for option in options}
        if name == "env" and (_word(argv, end) == "-" or names & {"-i", "--ignore-environment"}):
            cleared_by = "'env -i' drops the environment that starts the recording; leave -i out"
        # --preserve-env=LIST keeps only the names in its list.
        kept = any(o.name in ("-E", "--preserve-env") and o.value is None for o in options)
        if name == "sudo" and not kept:
            cleared_by = (
                "'sudo' drops the environment that starts the recording; write 'sudo -E', or"
                " record as root with 'sudo spark-prof record …'"
            )
        at = end + (_word(argv, end) in ("-", "--"))
        at += name in ("taskset", "timeout")  # a mask, a duration
        while re.match(r"[A-Za-z_]\w*=", _word(argv, at)):
            names.add(_word(argv, at).partition("=")[0])
            at += 1
        elsewhere = name in ("env", "sudo") and names & {"-C", "-D", "--chdir", "PATH"}
        local = local and not (name == "uv" or elsewhere)
        if at >= len(argv):
            raise CommandError(f"no program after {name!r}; give one, as in {EXAMPLE}")
    return Program(at, name, local, cleared_by)


def find_run(argv: Sequence[str], program: Program) -> int:
    """Returns the index after `docker run`, where the options of run begin."""
    options, at = scan_options(argv, program.index + 1, ENGINES[program.name])
    for value in (option.value or "" for option in options):
        if value.startswith(("ssh://", "tcp://")):
            raise CommandError(
                f"{value!r} is another machine, where spark-prof's folders cannot be"
                f" mounted; run spark-prof there, or use {ATTACH}"
            )
    at += _word(argv, at) == "container"
    word = _word(argv, at)
    if word != "run":
        why = ENGINE_REFUSED.get(word, f"starts no vLLM; record '{program.name} run … IMAGE …'")
        raise CommandError(f"'{f'{program.name} {word}'.rstrip()}' {why}")
    return at + 1


def _word(argv: Sequence[str], at: int) -> str:
    return argv[at] if at < len(argv) else ""


def _kind(argv: Sequence[str], program: Program) -> str:
    arguments = argv[program.index + 1 :]
    word, name = argv[program.index], program.name
    if name in REFUSED:
        raise CommandError(f"{name!r} {REFUSED[name]}")
    if re.match(r"[A-Za-z_]\w*=", word):
        raise CommandError(f"{word!r} is an assignment, not a program; write 'env' in front of it")
    path = _look_up(word) if program.local else None
    if name == "vllm":
        return _vllm_kind(arguments)
    if name in ENGINES:
        find_run(argv, program)
        return "container"
    if re.fullmatch(r"(python|pypy)[\d.]*t?", name):
        _check_python(arguments, program)
        return "python"
    if name in SHELLS and program.local:
        options, end = scan_options(arguments, 0, "-o -O --rcfile --init-file")
        if not {"-c", "-s"} & {option.name for option in options}:
            _check_script(_word(arguments, end))
    if kind := KINDS.get(name) or _script_kind(path):
        return kind
    raise CommandError(f"{name!r} does not start vLLM; give the command that does, as in {EXAMPLE}")


def _vllm_kind(arguments: Sequence[str]) -> str:
    subcommand = " ".join(arguments[: 2 if _word(arguments, 0) == "bench" else 1])
    if subcommand in VLLM_REFUSED:
        raise CommandError(f"'vllm {subcommand}' {VLLM_REFUSED[subcommand]}")
    if subcommand not in VLLM_KINDS:
        shown = f"vllm {subcommand}".rstrip()
        raise CommandError(f"{shown!r} starts no engine; record one that does: {EXAMPLE}")
    if any(re.fullmatch(r"-h|--help(=.*)?", argument) for argument in arguments):
        raise CommandError(f"'vllm {subcommand}' only prints its help here; leave --help out")
    return VLLM_KINDS[subcommand]


def _check_python(arguments: Sequence[str], program: Program) -> None:
    options, end = scan_options(arguments, 0, "-c -m -W -X --check-hash-based-pycs")
    for name in (option.name for option in options):
        if name in ("-c", "-m"):
            return
        if name in ("-h", "--help", "-V", "--version"):
            why = "does not start vLLM; give a script or a module"
            raise CommandError(f"'{program.name} {name}' {why}")
    if program.local:
        _check_script(_word(arguments, end))


def _check_script(word: str) -> None:
    if word not in ("", "-", "--") and not Path(word).exists():
        raise CommandError(f"{word!r} does not exist; check the path of the script")


def _look_up(word: str) -> Path:
    if found := shutil.which(word):
        return Path(found)
    if word.endswith((".py", ".sh")) and Path(word).is_file():
        why = f"is no program; write '{'python' if word.endswith('.py') else 'bash'} {word}'"
    elif " " in word:
        why = "is no program; leave out the quotes around the command"
    else:
        why = "is not found on PATH; check its name, or give its full path"
    raise CommandError(f"{word!r} {why}")


def _script_kind(path: Path | None) -> str:
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
