"""Kineto traces written by hand: dialects, modules, launches, operators, and what they lack."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from spark_prof.errors import CommandError
from spark_prof.traces.foreign import Foreign, Trace, Window
from spark_prof.traces.rank_files import RANK_NAMES
from spark_prof.traces.readers import kineto_collect
from spark_prof.traces.readers.kineto import kineto_trace
from spark_prof.traces.readers.kineto_collect import TraceText
from tests.rows import each_row
from tests.support import ORIGIN, THREAD, event, kernel, kineto, operator, refusal

PLACES = ("nn.Module: ", "mod:")


def names_module(name: str) -> bool:
    return name.startswith(PLACES)


Read = Callable[..., Foreign]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def reader(text: str | bytes, name: str = "trace.json") -> Foreign:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return kineto_trace(path, names_module)

    return reader


def window(found: Foreign) -> Window:
    (only,) = found.windows
    return only


def frame(name: str, start: int, end: int, tid: Any = THREAD) -> dict[str, Any]:
    return event("python_function", name, start, end, tid)


def paths(found: Foreign) -> list[str]:
    """The path of modules of each kernel, by its start."""
    return paths_of(found, window(found))


def paths_of(found: Foreign, seen: Window) -> list[str]:
    return ["/".join(found.processes[0].scopes.path(scope)) for scope in seen.scope.tolist()]


LAYERS = [
    frame("nn.Module: Model_0", 0, 1000), frame("model.py(7): forward", 0, 1000),
    frame("nn.Module: Layer_0", 100, 400), frame("nn.Module: Linear_0", 200, 300),
    frame("nn.Module: Layer_1", 500, 900),
]  # fmt: skip


@each_row(
    ("launched", "path"),
    [
        (50, "Model_0"), (150, "Model_0/Layer_0"), (200, "Model_0/Layer_0/Linear_0"),
        (300, "Model_0/Layer_0/Linear_0"), (301, "Model_0/Layer_0"), (450, "Model_0"),
        (600, "Model_0/Layer_1"), (1001, ""),
    ],
)  # fmt: skip
def test_a_kernel_belongs_to_the_module_that_launched_it(
    read: Read, launched: int, path: str
) -> None:
    found = read(kineto(LAYERS, kernel("gemm", 5000, 6000, 3, launched)))
    assert [p.replace("nn.Module: ", "") for p in paths(found)] == [path]


def test_modules_of_another_thread_or_process_do_not_count(read: Read) -> None:
    elsewhere = kernel("k", 5000, 6000, 3, 250)
    elsewhere[0]["pid"] = 2
    found = read(kineto(LAYERS, elsewhere, kernel("q", 5001, 6000, 4, 250, tid=77)))
    assert paths(found) == ["", ""]


def test_annotations_are_markers_and_those_of_modules_are_calls_too(read: Read) -> None:
    found = read(
        kineto(
            event("user_annotation", "execute_context_0(0)_generation_1(1)", 0, 900),
            event("user_annotation", "mod:model.layers.0", 100, 400),
            event("gpu_user_annotation", "mod:model.layers.0", 5000, 6000, 7),
            kernel("gemm", 5000, 6000, 3, 150),
        )
    )
    seen = window(found)
    assert seen.trace.markers["name"].tolist() == [
        "execute_context_0(0)_generation_1(1)", "mod:model.layers.0",
    ]  # fmt: skip
    assert seen.calls[["start_ns", "end_ns", "thread"]].to_numpy().tolist() == [
        [ORIGIN + 100, ORIGIN + 400, THREAD]
    ]
    assert paths_of(found, seen) == ["mod:model.layers.0"]


@pytest.mark.parametrize("number", [0, 9])
def test_a_kernel_without_a_launch_has_its_module_from_the_operator(
    read: Read, number: int
) -> None:
    op = operator("aten::mm", 250, 280)
    op["args"] = {"External id": number}
    beside = operator("aten::add", 260, 270)
    beside["args"] = {"External id": 11}
    orphan = event("kernel", "gemm", 5000, 6000, 7, correlation=3, **{"External id": number})
    other = event("kernel", "gemm", 7000, 8000, 7, correlation=4, **{"External id": 10})
    found = read(kineto(LAYERS, op, beside, orphan, other))
    seen = window(found)
    assert paths_of(found, seen)[0].endswith("Linear_0")
    assert seen.launch_ns.tolist() == [-1, -1]
    assert seen.scope.tolist()[1] == -1
    assert found.lost == [
        "2 kernels and copies have no launch in the trace; 1 of them have their module from the "
        "operator with the same External id"
    ]


def test_a_driver_call_inside_the_runtime_call_is_no_launch(read: Read) -> None:
    found = read(
        kineto(
            event("cuda_driver", "cuLaunchKernel", 20, 30, correlation=3),
            event("cuda_runtime", "cudaLaunchKernel", 10, 40, correlation=3),
            event("kernel", "gemm", 100, 200, 7, correlation=3),
        )
    )
    seen = window(found)
    assert seen.trace.launches["name"].tolist() == ["cudaLaunchKernel"]
    assert seen.launch_ns.tolist() == [ORIGIN + 10]
    assert found.lost == []


def test_a_number_that_is_used_again_belongs_to_the_latest_launch(read: Read) -> None:
    found = read(
        kineto(
            kernel("a", 100, 200, 3, 50), kernel("b", 500, 600, 3, 400), kernel("c", 10, 20, 4, 30)
        )
    )
    seen = window(found)
    assert dict(zip(seen.trace.gpu["name"], seen.launch_ns - ORIGIN, strict=True)) == {
        "c": 30, "a": 50, "b": 400,
    }  # fmt: skip
    assert len(found.lost) == 1
    assert "1 correlation numbers belong to several launches" in found.lost[0]


EVENTS = [e for e in LAYERS] + kernel("gemm", 5000, 6000, 3, 250) + [  # noqa: C416
    event("user_annotation", 'a "quoted" {name}, {"ph": [', 10, 20),
    event("cpu_op", "aten::mm", 240, 290, **{"Input Dims": [[1, 2], [3, {"name": "x"}]]}),
]  # fmt: skip

LAYOUTS = {
    "compact": lambda document: json.dumps(document, separators=(",", ":")),
    "spaced": json.dumps,
    "pretty": lambda document: json.dumps(document, indent=4),
    "tabs": lambda document: json.dumps(document, indent="\t"),
    "sorted": lambda document: json.dumps(document, sort_keys=True, indent=1),
    "lines": lambda document: json.dumps(document).replace('}, {"ph"', '}\r\n,\r\n{ "ph"'),
    "mark": lambda document: "\ufeff" + json.dumps(document),
}


def summary(found: Foreign) -> list[Any]:
    seen = window(found)
    trace = seen.trace
    frames = (trace.gpu, trace.launches, trace.markers, seen.calls)
    return [f.astype(object).to_numpy().tolist() for f in frames] + [found.lost]


@each_row("layout", LAYOUTS)
def test_the_layout_of_the_text_does_not_matter(read: Read, layout: str) -> None:
    document = {
        "deviceProperties": [{"id": 0, "name": "G"}, {"id": 1, "name": "H"}],
        "traceEvents": EVENTS * 40, "baseTimeNanoseconds": ORIGIN,
        "later": [{"name": "x", "list": [1, {"ph": "X"}, {"name": "]}"}]}, {"name": "y"}],
    }  # fmt: skip
    assert summary(read(LAYOUTS[layout](document))) == summary(
        read(kineto(EVENTS * 40, deviceProperties=document["deviceProperties"]))
    )


def test_a_bare_list_of_events(read: Read) -> None:
    assert window(read(f" {json.dumps(EVENTS)}\n")).trace.gpu["start_ns"].tolist() == [5000]


def test_the_dialect_of_2021(read: Read) -> None:
    found = read(
        json.dumps(
            {
                "traceEvents": [
                    event("Operator", "aten::conv2d", 100, 900, "5555", **{"External id": 8}),
                    event("Runtime", "cudaLaunchKernel", 200, 300, "5555", correlation=3),
                    event("Kernel", "cudnn", 1000, 2000, "stream 7", correlation=3, stream=7),
                    event("Memset", "Memset (Device)", 3000, 4000, "stream 7", bytes=64),
                    event("Memcpy", "Memcpy HtoD", 5000, 6000, "stream 7", bytes=32),
                ]
            }
        )
    )
    seen = window(found)
    assert seen.trace.gpu["kind"].tolist() == ["kernel", "memset", "memcpy"]
    assert seen.trace.gpu["bytes"].tolist() == [0, 64, 32]
    assert seen.thread.tolist() == [5555, -1, -1]


def test_an_amd_gpu_is_called_one(read: Read) -> None:
    found = read(
        kineto(
            event("cuda_runtime", "hipLaunchKernel", 1, 2, correlation=3, kernel="Cijk_Ailk"),
            event("kernel", "Cijk_Ailk", 10, 20, 0, correlation=3, device=0, stream=0,
                  kind="Dispatch Kernel", grid=[2, 1, 1], block=[256, 1, 1]),
            deviceProperties=[{"id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9,
                               "computeMinor": 4, "numSms": 304}],
        )
    )  # fmt: skip
    assert found.processes[0].facts["gpu"] == {
        "name": "AMD Instinct MI300X", "vendor": "AMD", "multiprocessors": 304,
    }  # fmt: skip
    assert found.lost == ["AMD GPU: kernels are labelled by name only, no tensor-core evidence"]
    assert window(found).trace.gpu["grid"].tolist() == ["2,1,1"]


def test_facts(read: Read) -> None:
    found = read(
        kineto(
            event("cuda_runtime", "cudaLaunchKernel", 100, 101, correlation=3),
            event("kernel", "gemm", 500, 900, 7, correlation=3, device=1),
            deviceProperties=[
                {"id": 0, "name": "NVIDIA A100"},
                {"id": 1, "name": "NVIDIA GB10", "computeMajor": 12, "computeMinor": 1,
                 "numSms": 48, "totalGlobalMem": 128},
            ],
            cuda_runtime_version=13010, cuda_driver_version=13000,
            distributedInfo={"rank": 5, "world_size": 8},
        ),
        "x_rank-2.json",
    )  # fmt: skip
    (process,) = found.processes
    assert process.rank == 5
    assert process.facts == {
        "gpu": {"name": "NVIDIA GB10", "compute_capability": "12.1", "multiprocessors": 48,
                "memory_bytes": 128, "vendor": "NVIDIA"},
        "cuda": "13.1", "cuda_driver": "13.0", "world_size": 8, "pid": 1,
    }  # fmt: skip


@each_row(
    ("name", "rank"),
    [
        *((name, rank) for _, name, rank in RANK_NAMES),
        ("decode_dp0_pp0_tp1.1767189312.pt.trace.json", 1), ("bench-tp2.json", 2),
        ("dp1_pp0_tp0_dcp0_ep0_rank4.1767.pt.trace.json.gz", 4), ("17-TP-3.trace.json.gz", 3),
        ("host_48213.1694128201545.pt.trace.json", None), ("run_dp1_pp0_tp3.json", None),
        ("dp10_tp3.json", None), ("1767189312-TP-1-DP-2.trace.json", None), ("trace.json", None),
        ("google__1016001.json", None), ("batch_bs1.json", None), ("frank-12.json", None),
        ("http-2024.json", None),
    ],
)  # fmt: skip
def test_the_rank_in_a_file_name(read: Read, name: str, rank: int | None) -> None:
    assert read(kineto(), name).processes[0].rank == rank


def test_only_without_a_gpu_the_operators_stand_for_kernels(read: Read) -> None:
    alone = read(kineto(operator("linear", 0, 100), operator("mm", 10, 20)))
    stretches = window(alone).trace.operators
    assert stretches["name"].tolist() == ["linear", "mm", "linear"]
    assert alone.lost == ["the trace has no device activity, operators of the CPU stand for them"]
    beside = read(kineto(operator("linear", 0, 100), kernel("gemm", 500, 900, 3, 50)))
    assert window(beside).trace.operators.empty


def test_begins_and_ends_are_folded_into_ranges(read: Read) -> None:
    def half(phase: str, moment: int, tid: int, **more: Any) -> dict[str, Any]:
        return {"ph": phase, "pid": 1, "tid": tid, "ts": moment / 1000} | more

    annotation = {"cat": "user_annotation"}
    found = read(
        kineto(
            half("B", 100, 1, name="outer", **annotation),
            half("B", 150, 2, name="elsewhere", **annotation),
            half("B", 200, 1, name="inner", **annotation),
            half("E", 300, 1),
            half("E", 450, 2),
            half("E", 400, 1),
            half("E", 500, 1),
            half("B", 600, 1, name="open", **annotation),
        )
    )
    markers = window(found).trace.markers
    rows = zip(
        markers["name"], markers["start_ns"] - ORIGIN, markers["end_ns"] - ORIGIN, strict=True
    )
    assert sorted(rows) == [("elsewhere", 150, 450), ("inner", 200, 300), ("outer", 100, 400)]
    assert "2 begin and end events have no counterpart and are left out" in found.lost


@each_row(
    ("text", "start", "length"),
    [
        ("7", 7000, 0), ("7.25", 7250, 0), ('"7.5"', 7500, 0), ("1e3", 1_000_000, 0),
        ("1767189312123456.789", 1_767_189_312_123_456_789, 0),
        ("1767189312123456", 1_767_189_312_123_456_000, 0),
        ('1767189312123456.789, "dur": 0.001', 1_767_189_312_123_456_789, 1),
        ('-5.001, "dur": "2.5"', -5001, 2500),
    ],
)  # fmt: skip
def test_times_of_every_kind_are_exact(read: Read, text: str, start: int, length: int) -> None:
    found = read(f'{{"traceEvents": [{{"ph": "X", "cat": "kernel", "name": "k", "ts": {text}}}]}}')
    gpu = window(found).trace.gpu
    assert gpu[["start_ns", "end_ns"]].to_numpy().tolist() == [[start, start + length]]


@each_row(
    "bad",
    ['"dur": NaN', '"dur": -1', '"dur": Infinity', '"ts": NaN', '"ts": "soon"', '"name": ""',
     '"ts": 1e30', '"ts": 1e999999999', '"dur": null', '"name": 7', '"cat": []'],
)  # fmt: skip
def test_events_that_cannot_be_used_are_counted(read: Read, bad: str) -> None:
    good = '"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2'
    found = read(f'{{"traceEvents": [{{{good}}}, {{{good}, {bad}}}]}}')
    trace = window(found).trace
    told = "1 events have no usable name, time or duration and are left out" in found.lost
    assert len(trace.gpu) == 1
    assert trace.unreadable + told == 1


@each_row("odd", [b"caf\xe9", b"tab\there", b"nul\0", b"\\ud800", b"\xed\xa0\x80"])
def test_names_that_are_no_text_are_read_as_far_as_they_are(read: Read, odd: bytes) -> None:
    text = kineto(kernel("gemm NAME", 500, 900, 3, 100)).encode()
    found = read(text.replace(b"NAME", odd))
    gpu = window(found).trace.gpu
    assert gpu["name"].tolist()[0].startswith("gemm ")
    gpu["name"].tolist()[0].encode()
    assert gpu["correlation"].tolist() == [3]


@each_row(
    "text",
    [
        "", "[]", "{}", "null", "7", '"x"', "[" * 100_000, '{"a":' * 100_000, "[1, 2]]", "[{}] x",
        '{"traceEvents": [{}]} {}', '{"x": {"traceEvents": [{}]}}', '{"traceEvents": [{}', "PK",
        '{"x": {"traceEvents": []}, "traceEvents": [{}]}',
        '{"traceEvents": [], "baseTimeNanoseconds": 1e400}', "\x00" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused_in_one_line(read: Read, text: str) -> None:
    with refusal():
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"traceEvents": [{"args": {"x": [' + '{"name": 1}, ' * 150_000,
        '{"traceEvents": [{"name": "' + '}, {\\"name\\": ' * 200_000,
        '{"x": "' + "y" * (7 << 20),
    ],
    ids=["nested", "text", "before"],
)
def test_an_event_without_end_is_refused_before_it_fills_the_memory(
    read: Read, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The same rule with smaller numbers, so that the test is quick.
    monkeypatch.setattr(kineto_collect, "_LARGEST_EVENT", 16 << 16)
    monkeypatch.setattr(kineto_collect, "_LARGEST", 64 << 16)
    with pytest.raises(CommandError, match=r"more than 16 MiB|no list of traceEvents"):
        read(text)


def text_of(seed: int) -> tuple[str, list[Any], dict[str, Any]]:
    """A trace, its events and what is around them; names and arguments look like borders."""
    chosen = random.Random(seed)
    words = ["aten::mm", "}, {", "\\", '"', '}, {"ph": "X"', "]", "[[", "\u00e9", '\\"}]', ""]
    nested = [{"name": 1}, {"ph": [{"cat": {}}, {"cat": []}]}, [], {}]

    def event() -> dict[str, Any]:
        keys = ["ph", "cat", "name", "ts", "pid"]
        chosen.shuffle(keys)
        found: dict[str, Any] = {key: chosen.choice(words) for key in keys}
        return found | {"args": chosen.choices(nested, k=chosen.randrange(4))}

    events = [event() for _ in range(chosen.randrange(200))]
    before = {"deviceProperties": [event(), event()]} if chosen.random() < 0.5 else {}
    after = {"later": [event() for _ in range(5)]} if chosen.random() < 0.5 else {}
    document = before | {"traceEvents": events} | after
    return json.dumps(document, indent=chosen.choice([None, 1])), events, before | after


def pieces(text: bytes, chosen: random.Random) -> Iterator[bytes]:
    position = 0
    largest = chosen.choice([3, 50, 1000, 100_000])
    while position < len(text):
        size = chosen.randrange(1, largest)
        yield text[position : position + size]
        position += size


@each_row("seed", range(150))
def test_every_event_comes_once_and_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = random.Random(seed)
    monkeypatch.setattr(kineto_collect, "_NEAR", chosen.choice([1, 40, 1 << 13]))
    text, events, around = text_of(seed)
    trace = TraceText(pieces(text.encode(), chosen))
    found = [event for block in trace.events(json.loads) for event in block]
    assert found == events
    assert trace.around() == around


def stretches(trace: Trace) -> list[tuple[str, int, int, int]]:
    rows = trace.operators.assign(
        start=trace.operators["start_ns"] - ORIGIN, end=trace.operators["end_ns"] - ORIGIN
    )
    columns = ["name", "part", "start", "end"]
    return list(rows.sort_values(["start", "end"])[columns].itertuples(index=False, name=None))


def test_only_calls_that_start_work_are_launches(read: Read) -> None:
    names = ["cudaLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync"]
    calls = [*names, "cudaStreamSynchronize", "cuSomethingNew"]
    found = read(
        kineto(
            # A kernel says that the last of these calls started it.
            event("kernel", "k", 10, 20, 7, correlation=5),
            *(event("cuda_driver", name, 1, 2, correlation=i) for i, name in enumerate(calls)),
        )
    )
    assert sorted(window(found).trace.launches["name"]) == sorted([*names, "cuSomethingNew"])


def _union(intervals: list[tuple[int, int]]) -> int:
    return len({moment for start, end in intervals for moment in range(start, end)})


@each_row("seed", range(12))
def test_stretches_never_overlap_and_sum_to_the_union(read: Read, seed: int) -> None:
    chosen = random.Random(seed)
    intervals = []
    for _ in range(40):
        start = chosen.randrange(200)
        intervals.append((start, start + chosen.randrange(40)))
    trace = window(read(kineto(*(operator(f"op{i}", *t) for i, t in enumerate(intervals))))).trace
    found = stretches(trace)
    for (*_, end), (_, _, start, _) in pairwise(found):
        assert end <= start
    assert sum(end - start for *_, start, end in found) == _union(intervals)
    assert sorted(name for name, part, *_ in found if part == 0) == sorted(
        f"op{i}" for i in range(40)
    )
