"""What the two kinds of files of Triton's profiler Proton have in common.

Format: third_party/proton of triton-lang/triton, 3.0 to 3.9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_prof.errors import CommandError
from spark_prof.traces.compressed import open_stream
from spark_prof.traces.foreign import NamesModule
from spark_prof.traces.scopes import NO_SCOPE, Scopes

FORMAT = "proton"

ROOT = "ROOT"
"""The name of a call path's beginning."""

_METADATA = "__proton_launch_metadata"
"""The scope of kernels that compute what a launch hook tells about the next launch."""
_METRIC = "<metric>"
"""The frame of kernels that copy a metric out of the GPU."""

_VENDORS = {"CUDA": "NVIDIA", "HIP": "AMD"}


class OwnWork:
    """Kernels that Proton itself launched: they are no part of the program, and left out."""

    def __init__(self) -> None:
        self._kernels = self._ns = 0

    def takes(self, path: Sequence[str], kernels: int, ns: int) -> bool:
        """Whether kernels with that call path are Proton's; if so they are counted."""
        own = any(name == _METRIC or name.partition(":")[0] == _METADATA for name in path)
        if own:
            self._kernels += kernels
            self._ns += ns
        return own

    def lost(self) -> list[str]:
        """What to say about them."""
        if not self._kernels:
            return []
        return [f"{self._kernels} kernels of Proton itself ({self._ns} ns) are left out"]


def read_whole(path: Path, most: int) -> bytearray:
    """The content of a file, decompressed.

    Raises:
        CommandError: it cannot be read, or holds more than `most` bytes.
    """
    data = bytearray()
    with open_stream(path) as blocks:
        for block in blocks:
            data += block
            if len(data) > most:
                raise CommandError(
                    f"{path} holds more than {most >> 20} MiB; record fewer steps with Proton"
                )
    return data


def scope_of(path: Sequence[str], scopes: Scopes, names_module: NamesModule) -> int:
    """The innermost scope of a call path, NO_SCOPE where no frame names a module."""
    scope = NO_SCOPE
    for name in path:
        if names_module(name):
            scope = scopes.child(scope, name)
    return scope


def gpu_facts(devices: Mapping[str, Any]) -> dict[str, Any]:
    """What is known about the first GPU, with the keys of Process.facts.

    Args:
        devices: the last element of a tree: by vendor's name and device number the clock rates,
            the architecture and the multiprocessors.
    """
    for kind, vendor in _VENDORS.items():
        found = devices.get(kind)
        if not isinstance(found, dict) or not found:
            continue
        gpu: dict[str, Any] = {"vendor": vendor}
        first = found[min(found)]
        arch = str(first.get("arch", "")) if isinstance(first, dict) else ""
        if vendor == "NVIDIA" and arch.isdecimal() and 2 <= len(arch) <= 3:
            gpu["compute_capability"] = f"{arch[:-1]}.{arch[-1]}"
        elif vendor == "AMD" and arch:
            gpu["name"] = arch
        if isinstance(first, dict) and isinstance(first.get("num_sms"), int):
            gpu["sms"] = first["num_sms"]
        return {"gpu": gpu}
    return {}
