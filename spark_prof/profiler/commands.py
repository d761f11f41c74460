"""Says what a command is before it is started.

A command line goes in; out comes the same command line with its kind. What could not be recorded
is refused in one line, before a model is loaded for nothing. Nothing is started here.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from spark_prof.errors import CommandError
from spark_prof.profiler.program import (
    ATTACH,
    COMPOSE_OPTIONS,
    ENGINES,
    EXAMPLE,
    IN_IMAGE,
    KINDS,
    PYTHON,
    REFUSED,
    SHELLS,
    Program,
    find_program,
    look_up,
    scan_options,
    script_kind,
    word_at,
)
from spark_prof.redact import HIDDEN, redacted

_ASK_SECONDS = 20.0
_VALUED = "-e --env --env-file -u --user -w --workdir --detach-keys --index"
_LONGEST = 600


def instead_of_exec(engine: Sequence[str], words: Sequence[str]) -> str:
    """The `run` that starts what an `exec` would; empty where the container does not answer.

        instead_of_exec(["docker"], ["-it", "box", "vllm", "serve", "m"]) ==
            "docker run --rm --volumes-from box --gpus all --ipc=host IMAGE vllm serve m"

    Args:
        words: behind `exec`.
    """
    options, at = scan_options(words, 0, _VALUED)
    if at >= len(words):
        return ""
    name, inside = words[at], words[at + 1 :]
    container = _inspected([*engine, "inspect", name])
    config, host = container.get("Config"), container.get("HostConfig")
    if not isinstance(config, dict) or not isinstance(host, dict):
        return ""
    passed = (o for o in options if o.value and o.name not in ("--detach-keys", "--index"))
    passed_words = [word for option in passed for word in (option.name, str(option.value))]
    line = [
        *engine, "run", "--rm", "--volumes-from", name, *_of_host(host),
        *_variables(engine, config), *passed_words, str(config.get("Image") or "IMAGE"), *inside,
    ]  # fmt: skip
    text = shlex.join(redacted(line))
    return text if text.isprintable() and len(text) <= _LONGEST else ""


def _of_host(host: Mapping[str, Any]) -> list[str]:
    words = []
    if host.get("DeviceRequests") or host.get("Runtime") == "nvidia":
        words += ["--gpus", "all"]
    devices = [str(device.get("PathOnHost")) for device in host.get("Devices") or ()]
    words += ["--device", "nvidia.com/gpu=all"] if any("nvidia" in d for d in devices) else []
    for option, key in (("--ipc", "IpcMode"), ("--network", "NetworkMode")):
        if (value := str(host.get(key) or "")) in ("host", "none"):
            words.append(f"{option}={value}")
    size = host.get("ShmSize")
    if isinstance(size, int) and size > 64 << 20 and "--ipc=host" not in words:
        words.append(f"--shm-size={size}")
    return words


def _variables(engine: Sequence[str], config: Mapping[str, Any]) -> list[str]:
    """What the container was given beside what its image has; a secret by its name alone."""
    image = _inspected([*engine, "image", "inspect", str(config.get("Image"))]).get("Config")
    if not isinstance(image, dict):
        return []
    beside_image = [
        text for text in config.get("Env") or () if text not in (image.get("Env") or ())
    ]
    words: list[str] = []
    for text in beside_image:
        if not text.startswith(("PATH=", "HOSTNAME=", "HOME=", "container=")):
            hidden = HIDDEN in redacted(["-e", text])[1]
            words += ["-e", text.partition("=")[0] if hidden else text]
    return words


def _inspected(words: Sequence[str]) -> Mapping[str, Any]:
    with suppress(OSError, subprocess.SubprocessError, ValueError, IndexError):
        process = subprocess.run(
            words, capture_output=True, text=True, timeout=_ASK_SECONDS, check=True
        )
        first = json.loads(process.stdout)[0]
        return first if isinstance(first, dict) else {}
    return {}


PLUGIN = "spark_prof"


class Command(NamedTuple):
    """A command line that can be recorded, and what it is."""

    argv: tuple[str, ...]
    # vllm-serve; vllm-bench, an engine that ends by itself; python, an interpreter or a launcher of
    # Python programs; script; or container.
    kind: str
    note: str = ""  # what is not known of it, for who waits


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

ENTERS = "enters a container that can be given no mount any more"
ENGINE_REFUSED = {
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
    note = (
        f"{program.unknown!r} is not known to spark-prof: does it start "
        f"{program.name!r}, and pass the environment on?"
    )
    return Command((*prefix, *argv[program.index :]), kind, note if program.unknown else "")


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
    last = None
    for word, following in zip(words, [*words[1:], None], strict=False):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") in names:
            last = value if equals else following
    return last


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


class RunStart(NamedTuple):
    """Where `run` stands in a command line that starts a container."""

    begin: int  # the index after `run`, where its options begin
    engine: tuple[str, ...]  # what asks the engine itself, such as sudo docker --context x
    compose: bool  # it starts a service of a compose file, and no image


def find_run(argv: Sequence[str], program: Program) -> RunStart:
    """Finds `docker run` or `docker compose run`; CommandError where something else is asked."""
    options, at = scan_options(argv, program.index + 1, ENGINES[program.name])
    for value in (option.value or "" for option in options):
        if value.startswith(("ssh://", "tcp://")):
            raise CommandError(
                f"{value!r} is another machine, where spark-prof's folders cannot be"
                f" mounted; run spark-prof there, or use {ATTACH}"
            )
    name, compose = program.name.removesuffix("-compose"), program.name.endswith("-compose")
    # docker-compose asks the docker beside it.
    engine = [*argv[: program.index], name] if compose else list(argv[:at])
    if word_at(argv, at) == "container":
        at += 1
    elif word_at(argv, at) == "compose" and not compose:
        compose = True
        _, at = scan_options(argv, at + 1, COMPOSE_OPTIONS)
    if (word := word_at(argv, at)) != "run":
        beside = "compose " if compose and name == program.name else ""
        why = ENGINE_REFUSED.get(word, f"starts no vLLM; record '{program.name} run … IMAGE …'")
        if word == "exec" and not compose:
            other = instead_of_exec(engine, argv[at + 1 :])
            why = f"{ENTERS}; {f'write: {other}' if other else IN_IMAGE}"
        if compose:
            _, end = scan_options(argv, at + 1, "-e -u -w --env --user --workdir --index")
            service = argv[end:] if word == "exec" else argv[end : end + 1]
            alone = [*argv[program.index : at], "run", "--rm", "--service-ports"]
            reason = ENTERS if word == "exec" else "starts no single service"
            why = f"{reason}; write: {shlex.join([*alone, *(service or ['SERVICE'])])}"
        raise CommandError(f"'{f'{program.name} {beside}{word}'.rstrip()}' {why}")
    return RunStart(at + 1, tuple(engine), compose)


def _kind(argv: Sequence[str], program: Program) -> str:
    arguments = argv[program.index + 1 :]
    word, name = argv[program.index], program.name
    if name in REFUSED:
        raise CommandError(f"{name!r} {REFUSED[name]}")
    if re.match(r"[A-Za-z_]\w*=", word):
        raise CommandError(f"{word!r} is an assignment, not a program; write 'env' in front of it")
    path = look_up(word) if program.local else None
    if name == "vllm":
        return _vllm_kind(arguments)
    if name in ENGINES:
        find_run(argv, program)
        return "container"
    if PYTHON.fullmatch(name):
        _check_python(arguments, program)
        return "python"
    if name in SHELLS and program.local:
        options, end = scan_options(arguments, 0, "-o -O --rcfile --init-file")
        if not {"-c", "-s"} & {option.name for option in options}:
            _check_script(word_at(arguments, end))
    if kind := KINDS.get(name) or script_kind(path):
        return kind
    raise CommandError(f"{name!r} does not start vLLM; give the command that does, as in {EXAMPLE}")


def _vllm_kind(arguments: Sequence[str]) -> str:
    subcommand = " ".join(arguments[: 2 if word_at(arguments, 0) == "bench" else 1])
    if subcommand in VLLM_REFUSED:
        raise CommandError(f"'vllm {subcommand}' {VLLM_REFUSED[subcommand]}")
    if subcommand not in VLLM_KINDS:
        name = f"vllm {subcommand}".rstrip()
        raise CommandError(f"{name!r} starts no engine; record one that does: {EXAMPLE}")
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
        _check_script(word_at(arguments, end))


def _check_script(word: str) -> None:
    if word not in ("", "-", "--") and not Path(word).exists():
        raise CommandError(f"{word!r} does not exist; check the path of the script")
