"""Reads the call trees that Triton's profiler Proton writes: Hatchet's JSON, and its msgpack twin.

Format: third_party/proton/csrc/lib/Data/TreeData.cpp of triton-lang/triton. A list of the root and
of what is known about the devices; a node has a frame with a name, metrics of its own (those of
its children are not in them) and children. A kernel's node has `time (ns)` and `count`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from spark_prof.errors import CommandError
from spark_prof.traces.compressed import open_stream
from spark_prof.traces.foreign import Foreign, KernelSum, NamesModule, Process, end_to_end
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


_MOST_BYTES = 256 << 20
_BEGIN = 1024
_DEVICES = frozenset(map(str, range(64)))


class Frame(msgspec.Struct, gc=False):
    """A place in the call path."""

    name: str


class Node(msgspec.Struct):
    """A node of the tree."""

    frame: Frame
    metrics: dict[str, Any] = {}
    children: list[Node] = []


def proton_tree(path: Path, names_module: NamesModule) -> Foreign:
    """Reads a tree, JSON or msgpack, plain or compressed.

    Raises:
        CommandError: it is no whole tree, or holds no time.
    """
    root, devices = _decoded(path)
    facts = {"summed": True, "tool": "proton", "execution": "unknown"}
    process = Process(None, facts | gpu_facts(devices))
    own = OwnWork()
    sums = _sums(root, process.scopes, names_module, own)
    if not sums:
        raise CommandError(
            f"{path} holds no kernel times; record with Proton's backend cupti or roctracer, "
            "not with its instrumentation"
        )
    lost = [
        "a tree of sums: the order of the kernels, the gaps between them, steps and launches are "
        "unknown; each instance of a kernel is given its mean time",
        *own.lost(),
    ]
    if process.facts.get("gpu", {}).get("vendor") == "AMD":
        lost.append("AMD GPU: kernels are labelled by name only, no tensor-core evidence")
    return Foreign(FORMAT, [process], end_to_end(0, sums, path), lost)


def _decoded(path: Path) -> tuple[Node, dict[str, Any]]:
    data = read_whole(path, _MOST_BYTES)
    codec: Any = msgspec.json if data[:_BEGIN].lstrip()[:1] == b"[" else msgspec.msgpack
    try:
        root, *rest = codec.decode(data, type=list[msgspec.Raw])
        devices = codec.decode(rest[0], type=dict[str, Any]) if rest else {}
        return codec.decode(root, type=Node), devices
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CommandError(f"{path} is not a whole tree of Proton ({error})") from error


def _sums(root: Node, scopes: Scopes, names_module: NamesModule, own: OwnWork) -> list[KernelSum]:
    """The kernels in the order of the tree."""
    sums: list[KernelSum] = []
    pending: list[tuple[Node, tuple[str, ...]]] = [(root, ())]
    while pending:
        node, path = pending.pop()
        name = node.frame.name
        inside = path if not path and name == ROOT else (*path, name)
        pending.extend((child, inside) for child in reversed(node.children))
        metrics = {key.lower(): value for key, value in node.metrics.items()}
        time, count = metrics.get("time (ns)"), metrics.get("count")
        if not isinstance(time, int) or not isinstance(count, int) or (time, count) == (0, 0):
            continue
        if own.takes(inside, count, time):
            continue
        device = str(metrics.get("device_id", metrics.get("deviceid", "0")))
        scope = scope_of(path, scopes, names_module)
        number = int(device) if device in _DEVICES else 0
        sums.append(KernelSum(name, count, time, number, scope=scope))
    return sums
