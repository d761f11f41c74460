"""Lets the user that a container runs as write into the bundle's folder, and nobody else.

As `docker run` says it: `--user`, else the image's own user, else root; with the numbers that this
host has for them where the engine maps users. Root writes anywhere. Another user becomes the
folder's owner where this process may say so, and gets an entry in its access control list where
not.
"""

from __future__ import annotations

import os
import pwd
import struct
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePath

from spark_prof.errors import CommandError
from spark_prof.profiler.compose import service_of
from spark_prof.profiler.run_line import read_run

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
