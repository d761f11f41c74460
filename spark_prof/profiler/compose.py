"""What a compose file says of a service: its command, user, variables and folders.

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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from spark_prof.errors import CommandError, one_line
from spark_prof.profiler.run_line import RunLine

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
