"""Proton's trees and traces: recorded ones against a plain reading, later dialects, and damage."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from spark_prof.traces.foreign import Foreign
from spark_prof.traces.readers.proton import proton_trace, proton_tree
from tests.rows import each_row
from tests.support import refusal

DATA = Path(__file__).parents[2] / "data" / "proton"
Rows = list[tuple[str, int, tuple[str, ...]]]


def is_module(name: str) -> bool:
    return name.startswith("model.")


def rows(foreign: Foreign) -> Rows:
    """Name, ns and scopes of each kernel."""
    return [
        (str(name), int(end - start), tuple(foreign.processes[0].scopes.path(scope)))
        for window in foreign.windows
        for name, start, end, scope in zip(
            *(window.trace.gpu[c] for c in ("name", "start_ns", "end_ns")),
            window.scope.tolist(),
            strict=True,
        )
    ]


def leaves(
    node: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, int, int, tuple[str, ...]]]:
    """Name, count, ns and modules of each kernel of a tree."""
    name, metrics = node["frame"]["name"], node["metrics"]
    if metrics.get("count"):
        yield name, metrics["count"], metrics["time (ns)"], tuple(filter(is_module, path))
    for child in node["children"]:
        yield from leaves(child, (*path, name))


@each_row("name", ["tree.hatchet", "python.hatchet"])
def test_a_recorded_tree_keeps_every_count_and_nanosecond(name: str) -> None:
    foreign = proton_tree(DATA / name, is_module)
    counts, times = Counter[Any](), Counter[Any]()
    for kernel, ns, scopes in rows(foreign):
        counts[kernel, scopes] += 1
        times[kernel, scopes] += ns
    expected = list(leaves(json.loads((DATA / name).read_text())[0]))
    assert sum(counts.values()) == sum(count for _, count, _, _ in expected) > 0
    for kernel in {(kernel, scopes) for kernel, _, _, scopes in expected}:
        mine = [row for row in expected if (row[0], row[3]) == kernel]
        assert counts[kernel] == sum(row[1] for row in mine)
        assert times[kernel] == sum(row[2] for row in mine)
    assert foreign.processes[0].facts["gpu"]["compute_capability"] == "9.0"
    assert foreign.processes[0].facts["summed"] is True


def test_a_recorded_trace_keeps_every_kernel() -> None:
    foreign = proton_trace(DATA / "trace.chrome_trace", is_module)
    events = json.loads((DATA / "trace.chrome_trace").read_text())["traceEvents"]
    expected = [
        (e["name"], round(e["dur"] * 1000), tuple(filter(is_module, e["args"]["call_stack"])))
        for e in sorted(events, key=lambda event: event["ts"])
    ]
    assert rows(foreign) == expected
    assert ("add", 1376, ("model.layers.0", "model.layers.0.mlp")) in expected
    assert "summed" not in foreign.processes[0].facts


def node(name: str, metrics: dict[str, Any], *children: Any) -> dict[str, Any]:
    return {"frame": {"name": name, "type": "function"}, "metrics": metrics,
            "children": list(children)}  # fmt: skip


def kernel(name: str, count: int, ns: int, device: str = "0") -> dict[str, Any]:
    return node(name, {"time (ns)": ns, "count": count, "device_id": device, "device_type": "CUDA"})


TREE = [
    node("ROOT", {"count": 0, "time (ns)": 0},
         node("<captured_at>", {},
              node("model.layers.3", {"flops": 1.5}, node("op", {}, kernel("gemm", 3, 1000)),
                   kernel("norm", 1, 7, "1"))),
         node("__proton_launch_metadata:op", {}, kernel("shape", 2, 50)),
         kernel("<metric>", 1, 5)),
    {"CUDA": {"0": {"arch": "121", "num_sms": 48}, "1": {"arch": "121", "num_sms": 48}}},
]  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Callable[[bytes | str], Path]:
    def write(content: bytes | str) -> Path:
        path = tmp_path / "proton"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@each_row("encode", [msgspec.json.encode, msgspec.msgpack.encode])
def test_a_tree_in_either_encoding(file: Any, encode: Callable[[Any], bytes]) -> None:
    foreign = proton_tree(file(encode(TREE)), is_module)
    assert rows(foreign) == [
        ("gemm", 334, ("model.layers.3",)),
        ("gemm", 333, ("model.layers.3",)),
        ("gemm", 333, ("model.layers.3",)),
        ("norm", 7, ("model.layers.3",)),
    ]
    assert foreign.processes[0].facts["gpu"]["compute_capability"] == "12.1"
    assert "3 kernels of Proton itself (55 ns) are left out" in foreign.lost


LATER_TRACE: list[dict[str, Any]] = [
    {"ph": "M", "pid": 0, "tid": 200007, "name": "thread_name", "args": {"name": "GPU Stream 7"}},
    {"ph": "M", "pid": 0, "tid": 3, "name": "thread_name", "args": {"name": "CPU Thread 3"}},
    {"ph": "X", "cat": "scope", "name": "model.layers.0", "ts": 0.0, "dur": 10.5, "tid": 3,
     "args": {"call_stack": ["ROOT", "model.layers.0"]}},
    {"ph": "X", "cat": "scope", "name": "model.layers.0.mlp", "ts": 1.0, "dur": 2.0, "tid": 3,
     "args": {"call_stack": ["ROOT", "model.layers.0", "model.layers.0.mlp"]}},
    {"ph": "X", "cat": "scope", "name": "captured", "ts": 12.0, "dur": 1.0, "tid": 100007},
    {"ph": "s", "cat": "flow", "id": 5, "tid": 3, "ts": 1.001, "name": "launch->kernel"},
    {"ph": "f", "cat": "flow", "id": 5, "tid": 200007, "ts": 12.345, "name": "launch->kernel"},
    {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 12.345, "dur": 0.001, "tid": 200007,
     "args": {"call_stack": ["ROOT", "model.layers.0", "gemm"], "metrics": {"flops": "1.0"}}},
]  # fmt: skip


def document(events: list[Any]) -> str:
    return json.dumps({"displayTimeUnit": "us", "traceEvents": events}) + "\n"


def test_a_later_trace_has_threads_and_launches(file: Any) -> None:
    foreign = proton_trace(file(document(LATER_TRACE)), is_module)
    (window,) = foreign.windows
    gpu = window.trace.gpu
    assert gpu[["start_ns", "end_ns", "device", "stream"]].to_numpy().tolist() == [
        [12345, 12346, 0, 7]
    ]
    assert (window.launch_ns.tolist(), window.thread.tolist()) == ([1001], [3])
    scopes = foreign.processes[0].scopes
    assert [scopes.path(s) for s in window.scope] == [["model.layers.0"]]
    assert [scopes.path(s) for s in window.calls["scope"]] == [
        ["model.layers.0"], ["model.layers.0", "model.layers.0.mlp"],
    ]  # fmt: skip
    assert window.calls[["start_ns", "end_ns", "thread"]].to_numpy().tolist() == [
        [0, 10500, 3], [1000, 3000, 3],
    ]  # fmt: skip
    assert window.trace.markers["name"].astype(str).tolist() == [
        "model.layers.0", "model.layers.0.mlp",
    ]  # fmt: skip


def test_a_trace_of_a_document_a_stream(file: Any) -> None:
    first = {**LATER_TRACE[-1], "tid": 9, "ts": 20.0}
    foreign = proton_trace(
        file(document([first]) + document([LATER_TRACE[-1] | {"tid": 7}])), is_module
    )
    (window,) = foreign.windows
    assert window.trace.gpu[["start_ns", "stream"]].to_numpy().tolist() == [[12345, 7], [20000, 9]]
    assert "2 kernels do not tell when they were launched" in foreign.lost


DEEP = "[" + '{"frame":{"name":"a"},"metrics":{},"children":[' * 5000 + "]}" * 5000 + ",{}]"


@each_row(
    "content",
    [
        b"", "[]", "{}", "[1, 2]", '[{"frame": 3}]', DEEP, "[" * 10_000,
        json.dumps([node("ROOT", {}), {}]),
        json.dumps([kernel("k", -1, 5)]), json.dumps([kernel("k", 1, -5)]),
        json.dumps([kernel("k", 1 << 40, 5)]), json.dumps([kernel("k", 1, 1 << 80)]),
        json.dumps([node("k", {"cycles": 5, "normalized_cycles": 1.5})]),
        b"\x92\x83\xa5frame\x82", b"\x92" + b"\x91" * 5000,
        msgspec.msgpack.encode(TREE)[:-20],
    ],
)  # fmt: skip
def test_no_tree_is_one_line(file: Any, content: bytes | str) -> None:
    with refusal():
        rows(proton_tree(file(content), is_module))


KERNEL = LATER_TRACE[-1]


@each_row(
    "content",
    [
        b"", "{}", "[]", "{", document([]), document([1]), document(LATER_TRACE)[:-9],
        document([KERNEL | {"ts": 1e300}]), document([KERNEL | {"dur": -1}]),
        document([KERNEL | {"tid": 1 << 80}]), document([KERNEL | {"args": {"call_stack": 5}}]),
        document([KERNEL | {"cat": "warp 0", "tid": "warp 0 (line 5)"}]),
    ],
)  # fmt: skip
def test_no_trace_is_one_line(file: Any, content: bytes | str) -> None:
    with refusal():
        rows(proton_trace(file(content), is_module))


def tree(folder: Path, *children: dict[str, Any], name: str = "t.hatchet", **devices: Any) -> Path:
    root = {"frame": {"name": "ROOT"}, "metrics": {"count": 0, "time (ns)": 0}}
    path = folder / name
    path.write_text(json.dumps([root | {"children": children}, devices]))
    return path


def ran(name: str, ns: int, device: str = "0", *inside: str) -> dict[str, Any]:
    """A kernel below scopes, the outermost first."""
    node: dict[str, Any] = {
        "frame": {"name": name}, "children": [],
        "metrics": {"count": 1, "time (ns)": ns, "device_id": device},
    }  # fmt: skip
    for scope in reversed(inside):
        node = {"frame": {"name": scope}, "metrics": {}, "children": [node]}
    return node


def test_a_kernel_of_a_graph_belongs_to_where_it_was_captured(tmp_path: Path) -> None:
    path = tree(
        tmp_path,
        ran("gemm", 500, "0", "model.replay", "<captured_at>", "run", "model.layers.3.mlp"),
        ran("norm", 70, "0", "model.layers.1.norm"),
        name="proton_dp0_pp0_tp3_dcp0_ep3_rank3_pid7_0a1b_run0.hatchet",
    )
    foreign = proton_tree(path, is_module)
    assert foreign.processes[0].rank == 3
    assert rows(foreign) == [
        ("gemm", 500, ("model.layers.3.mlp",)), ("norm", 70, ("model.layers.1.norm",)),
    ]  # fmt: skip


@each_row(
    ("used", "gpu"),
    [
        (("0", "0"), {"vendor": "AMD", "name": "gfx90a", "sms": 104}),
        (("1", "1"), {"vendor": "AMD", "name": "gfx942", "sms": 304}),
        (("0", "1"), {"vendor": "AMD"}),
    ],
)
def test_gpus_of_several_kinds_have_no_name(
    used: tuple[str, str], gpu: dict[str, Any], tmp_path: Path
) -> None:
    devices = {"0": {"arch": "gfx90a", "num_sms": 104}, "1": {"arch": "gfx942", "num_sms": 304}}
    path = tree(tmp_path, *(ran(f"k{n}", 9, n) for n in used), HIP=devices)
    assert proton_tree(path, is_module).processes[0].facts["gpu"] == gpu
