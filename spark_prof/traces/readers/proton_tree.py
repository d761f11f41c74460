"""Reads the call trees that Triton's profiler Proton writes: Hatchet's JSON, and its msgpack twin.

Format: third_party/proton/csrc/lib/Data/TreeData.cpp of triton-lang/triton. A list of the root and
of what is known about the devices; a node has a frame with a name, metrics of its own (those of
its children are not in them) and children. A kernel's node has `time (ns)` and `count`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from spark_prof.errors import CommandError
from spark_prof.traces.foreign import Foreign, NamesModule, Process
from spark_prof.traces.readers.proton_file import (
    FORMAT,
    ROOT,
    OwnWork,
    gpu_facts,
    read_whole,
    scope_of,
)
from spark_prof.traces.readers.windows import KernelSum, end_to_end
from spark_prof.traces.scopes import Scopes

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

    Args:
        path: what Proton wrote, such as ``proton.hatchet``.
        names_module: which frames name modules; they become scopes.

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
