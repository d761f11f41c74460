"""Stands in for docker and podman: notes what it is asked, and runs a container's words here.

usage: container_stand_in.py NAME WORDS...

Only what a container would see is there: of the environment what -e says, of the mounts nothing
where a folder is absent. STAND_IN names the file of notes, STAND_IN_ENTRYPOINT what an image runs.
Where STAND_IN_IMAGE names folders, the words run in a root of their own that has the system's
folders, these, and what is mounted (which needs root). `compose` follows its file for one service.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from spark_prof.profiler.compose import COMPOSE_VALUED, VALUED
from spark_prof.profiler.program import COMPOSE_OPTIONS, scan_options
from tests.support import program

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/dev")


def stand_in(path: Path) -> None:
    """Makes a program of that name which does what this file does."""
    root = Path(__file__).parents[1]
    python = f'PYTHONPATH="{root}" exec "{sys.executable}"'
    program(path, f'{python} -m tests.container_stand_in "$0" "$@"')


def can_change_root() -> bool:
    """Whether this process may give a container a root of its own."""
    words = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    return os.geteuid() == 0 and subprocess.run(words, capture_output=True).returncode == 0


def image_folders(*folders: Path) -> str:
    """A STAND_IN_IMAGE with these folders, and with those that this Python needs."""
    needed = (Path(__file__).parents[1], Path(sys.prefix), Path(sys.base_prefix))
    return ":".join(str(folder.resolve()) for folder in (*needed, *folders))


def main(words: list[str]) -> None:
    """Does what docker would, and ends with its exit code."""
    with open(os.environ["STAND_IN"], "a", encoding="utf-8") as notes:
        notes.write(json.dumps(words) + "\n")
    if words[:2] == ["image", "inspect"]:
        asks_entrypoint = "Entrypoint" in words[3]
        print(os.environ.get("STAND_IN_ENTRYPOINT", "null") if asks_entrypoint else "")
    elif words[0] == "compose":
        _compose(words)
    elif words[0] == "run":
        options, end = scan_options(words, 1, VALUED)
        if words[end] == "absent":
            print("docker: Error response from daemon: No such image: absent", file=sys.stderr)
            sys.exit(125)
        _run([(name, str(value)) for name, value, _ in options], [], words[end + 1 :])


def _compose(words: list[str]) -> None:
    import yaml

    given, at = scan_options(words, 1, COMPOSE_OPTIONS)
    path = Path(next((str(o.value) for o in given if o.name in ("-f", "--file")), "compose.yaml"))
    content = yaml.safe_load(path.read_text())
    if words[at] == "config":
        print(json.dumps({"name": "stand-in", **content}))
        return
    assert words[at] == "run", words
    options, end = scan_options(words, at + 1, COMPOSE_VALUED)
    service = content["services"][words[end]]
    of_file = [("-v", str(path.absolute().parent / v)) for v in service.get("volumes", [])]
    of_file += [("-e", f"{k}={v}") for k, v in service.get("environment", {}).items()]
    command = words[end + 1 :] or _split(service.get("command"))
    typed = [(name, str(value)) for name, value, _ in options]
    _run([*of_file, *typed], _split(service.get("entrypoint")), command)


def _split(value: Any) -> list[str]:
    return shlex.split(value) if isinstance(value, str) else [*(value or ())]


def _run(options: list[tuple[str, str]], entry: list[str], command: list[str]) -> None:
    environment = {name: os.environ.get(name, "") for name in ("PATH", "FAKE_ENGINE")}
    mounts: dict[str, str] = {}
    for name, value in options:
        if name == "-v":
            source, target = value.split(":")[:2]
            assert Path(source).exists(), f"docker would make an empty folder of {source}"
            mounts[target] = source
        elif name == "-e":
            key, _, text = value.partition("=")
            environment[key] = text
        elif name == "--entrypoint":
            entry = [value]
    words = [*entry, *command]
    if image := os.environ.get("STAND_IN_IMAGE"):
        words = _in_root([*SYSTEM, *image.split(":")], mounts, words)
    else:  # no mount is made: names inside become those of here
        for target, source in mounts.items():
            environment = {k: text.replace(target, source) for k, text in environment.items()}
    os.execvpe(words[0], words, environment)


def _in_root(image: list[str], mounts: dict[str, str], words: list[str]) -> list[str]:
    """The words that run others in a root of their own, which is gone when they have ended."""
    root = tempfile.mkdtemp(dir=Path(os.environ["STAND_IN"]).parent)
    lines = [f"mount -t tmpfs none {root}", f"mkdir {root}/tmp"]
    for target, source in {**dict(zip(image, image, strict=True)), **mounts}.items():
        if not os.path.exists(source):
            continue
        place = shlex.quote(f"{root}{target}")
        if os.path.isdir(source):
            lines.append(f"mkdir -p {place}")
        else:
            lines.append(f"mkdir -p {shlex.quote(os.path.dirname(root + target))}; touch {place}")
        lines.append(f"mount --rbind {shlex.quote(source)} {place}")
    lines.append(f'exec /usr/sbin/chroot {root} "$@"')
    return ["unshare", "-m", "--propagation", "private", "sh", "-ec", "\n".join(lines), "-", *words]


if __name__ == "__main__":
    main(sys.argv[2:])
