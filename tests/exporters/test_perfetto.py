"""The exported trace: every kernel is in it, exact to the nanosecond, and viewers can show it."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_prof.analyzers.layer_consistency import label_kernels
from spark_prof.errors import CommandError
from spark_prof.exporters.perfetto import write_perfetto
from spark_prof.exporters.table_folder import Selection, parse_steps
from spark_prof.importers.sources import open_source
from spark_prof.traces.bundle import Bundle, table_file
from spark_prof.traces.tables import TABLES
from tests.rows import each_row
from tests.support import (
    ORIGIN,
    Piece,
    Recorded,
    call,
    eager_decode,
    kernel,
    kineto,
    layer_row,
    step,
)

DATA = Path(__file__).parents[1] / "data"
CAPTURES = sorted(path.name for path in DATA.glob("h100-*"))
GPU = ("kernel", "gpu_memcpy", "gpu_memset")


def exported(bundle: Bundle, selection: Selection | None = None) -> dict[str, Any]:
    """The trace, with times as decimal numbers, which are exact."""
    file = io.BytesIO()
    write_perfetto(bundle, selection or Selection(), file)
    document: dict[str, Any] = json.loads(file.getvalue(), parse_float=Decimal)
    return document


def of(document: dict[str, Any], *categories: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event.get("cat") in categories]


def start_ns(document: dict[str, Any], event: dict[str, Any]) -> int:
    found = Decimal(event["ts"]) * 1000
    assert found == int(found)
    return int(document["baseTimeNanoseconds"]) + int(found)


def span(event: dict[str, Any]) -> tuple[Decimal, Decimal]:
    return Decimal(event["ts"]), Decimal(event["ts"]) + Decimal(event["dur"])


@cache
def whole(capture: str) -> dict[str, Any]:
    return exported(Bundle(DATA / capture))


@pytest.mark.slow
@each_row("capture", CAPTURES)
def test_every_kernel_is_there_once_and_exact(capture: str) -> None:
    bundle, document = Bundle(DATA / capture), whole(capture)
    rows = label_kernels(bundle, 0)
    expected = sorted(
        zip(rows["name"], rows["start_ns"], rows["end_ns"] - rows["start_ns"], rows["stream"],
            rows["component"], rows["layer"], strict=True)
    )  # fmt: skip
    found = sorted(
        (
            event["name"], start_ns(document, event), int(event["dur"] * 1000),
            event["args"]["stream"], event["args"]["component"],
            -1 if event["args"]["layer"] is None else event["args"]["layer"],
        )
        for event in of(document, *GPU)
    )  # fmt: skip
    assert found == expected


@each_row("capture", CAPTURES)
def test_slices_of_a_track_nest_or_are_apart(capture: str) -> None:
    tracks = defaultdict(list)
    for event in whole(capture)["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(span(event))
    for spans in tracks.values():
        stack: list[Decimal] = []
        for begin, end in sorted(spans, key=lambda pair: (pair[0], -pair[1])):
            while stack and stack[-1] <= begin:
                stack.pop()
            assert not stack or end <= stack[-1], "a viewer drops this slice"
            stack.append(end)


def test_kernels_that_overlap_are_on_lanes_of_their_stream(tmp_path: Path) -> None:
    # Each begins before the one before it has ended, as with PDL.
    ran = [kernel(f"k{i}", 100 + 50 * i, 160 + 50 * i, i + 1, 10 + i) for i in range(8)]
    piece = Piece([step(0, 0, 900)], call(3, 5, 800), kineto(*ran))
    document = exported(Recorded({0: [piece]}).assemble(tmp_path / "b"))
    events = of(document, "kernel")
    names = {
        event["tid"]: event["args"]["name"]
        for event in document["traceEvents"]
        if event.get("name") == "thread_name"
    }
    assert len(events) == 8
    assert {names[event["tid"]] for event in events} == {"stream 7", "stream 7 (overlap 1)"}
    assert {event["args"]["stream"] for event in events} == {7}


@pytest.mark.slow
@each_row("capture", CAPTURES)
def test_imported_again_the_kernels_are_the_same(capture: str, tmp_path: Path) -> None:
    bundle = Bundle(DATA / capture)
    path = tmp_path / "trace.json"
    with open(path, "wb") as file:
        write_perfetto(bundle, Selection(), file)
    columns = [
        "start_ns", "end_ns", "name", "kind", "device", "stream", "correlation", "grid", "block",
        "registers", "shared_bytes", "bytes",
    ]  # fmt: skip
    with open_source(path) as again:
        found = again.frame("kernels", again.ranks[0], columns).astype({"name": str, "kind": str})
    expected = bundle.frame("kernels", 0, columns).astype({"name": str, "kind": str})
    order = ["start_ns", "end_ns", "name"]
    found, expected = (f.sort_values(order, ignore_index=True) for f in (found, expected))
    for column in columns:
        assert found[column].tolist() == expected[column].tolist(), column


def test_arrows_lead_from_a_launch_to_a_kernel() -> None:
    document = whole(CAPTURES[0])
    launches = {(e["tid"], e["ts"]) for e in of(document, "cuda_runtime", "cuda_driver")}
    kernels = {(e["tid"], e["ts"]) for e in of(document, *GPU)}
    flows = of(document, "ac2g")
    begins = {e["id"]: (e["tid"], e["ts"]) for e in flows if e["ph"] == "s"}
    ends = {e["id"]: (e["tid"], e["ts"]) for e in flows if e["ph"] == "f"}
    assert begins
    assert begins.keys() == ends.keys()
    assert set(begins.values()) <= launches
    assert set(ends.values()) <= kernels
    assert len(set(ends.values())) == len(ends)


def test_layers_and_components_cover_their_kernels() -> None:
    document = whole(CAPTURES[0])
    for track, word in (("layer", "layer"), ("component", "component")):
        spans = sorted((*span(event), event["name"]) for event in of(document, track))
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        shown = sum(event["args"]["kernels"] for event in of(document, track))
        assert shown == sum(e["args"][word] is not None for e in of(document, *GPU))


def test_only_the_selected_steps() -> None:
    bundle = Bundle(DATA / CAPTURES[0])
    document = exported(bundle, Selection(first=1, stop=3))
    rows = bundle.frame("kernels", 0, ["step"])
    assert {event["args"]["step"] for event in of(document, *GPU)} == {1, 2}
    assert len(of(document, *GPU)) == rows["step"].isin([1, 2]).sum()
    assert len(of(document, "step")) == 2
    every = {(e["name"], e["ts"], e["dur"]) for e in of(whole(CAPTURES[0]), "step")}
    assert {(e["name"], e["ts"], e["dur"]) for e in of(document, "step")} <= every


def test_ranks_are_processes_of_their_own(tmp_path: Path) -> None:
    bundle = Recorded({0: [eager_decode()], 1: [eager_decode(begin=7)]}).assemble(tmp_path / "b")
    events = of(exported(bundle), "kernel")
    assert {event["pid"] for event in events} == {1, 2}
    only = exported(bundle, Selection(ranks=(1,)))
    assert {event["pid"] for event in of(only, "kernel")} == {2}
    assert only["distributedInfo"]["rank"] == 1
    with pytest.raises(CommandError, match="has no rank 5"):
        exported(bundle, Selection(ranks=(5,)))


@each_row("name", ['"}],"x":[', "a\nb\x00\x1b[2J", "</script><b>", "ünï \U0001f600", "\\", "{}%s'"])
def test_hostile_names_stay_names(name: str, tmp_path: Path) -> None:
    piece = Piece([step(0, 0, 900)], call(3, 5, 800), kineto(kernel(name, 100, 200, 1, 10)))
    modules = [{"path": name, "type": "", "layer": -1, "component": ""}] * 8
    recorded = Recorded({0: [piece]}, modules=modules, layers=[layer_row(name, 0, "qkv")])
    document = exported(recorded.assemble(tmp_path / "b"))
    assert [event["name"] for event in of(document, "kernel")] == [name]
    assert [event["name"] for event in of(document, "user_annotation")] == [name]


def test_sums_have_no_time_line() -> None:
    with (
        open_source(DATA / "proton" / "tree.hatchet") as bundle,
        pytest.raises(CommandError, match="without times"),
    ):
        exported(bundle)


def test_counters_are_sampled_where_they_were(tmp_path: Path) -> None:
    bundle = Recorded({0: [eager_decode()]}).assemble(tmp_path / "b")
    # Two intervals next to each other, a pause, and one in which a counter was not read.
    begin = [ORIGIN, ORIGIN + 100, ORIGIN + 500]
    nothing = float("nan")
    table = pa.table(
        {
            "start_ns": begin,
            "end_ns": [time + 100 for time in begin],
            "dram_read_bytes": [200.0, 300.0, nothing],
            "dram_write_bytes": [0.0, 0.0, 0.0],
            "tensor_active": [0.5, 0.25, 0.125],
            "sm_active": [1.0, 1.0, 1.0],
            "warps_active": [nothing] * 3,
        },
        schema=TABLES["counters"].schema,
    )
    name = table_file("counters", 0)
    pq.write_table(table, bundle.path / name)
    replace(bundle.meta, tables=bundle.meta.tables | {name: 3}).write(bundle.path)
    document = exported(Bundle(bundle.path))
    found = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "C":
            at = start_ns(document, event) - ORIGIN
            found[event["name"]].append((at, float(event["args"]["value"])))
    assert sorted(found["DRAM read (GB/s)"]) == [(0, 2.0), (100, 3.0), (200, 0.0)]
    tensor = [(0, 50.0), (100, 25.0), (200, 0.0), (500, 12.5), (600, 0.0)]
    assert sorted(found["tensor pipe busy (%)"]) == tensor
    assert "occupancy (%)" not in found


@each_row("text", ["", "3", "a:b", "5:3", "3:3", "-1:2", "1:2:3", "9" * 30 + ":"])
def test_steps_are_read_or_refused(text: str) -> None:
    read = [parse_steps(text) for text in ("3:5", ":5", "3:", ":")]
    assert read == [(3, 5), (None, 5), (3, None), (None, None)]
    with pytest.raises(CommandError):
        parse_steps(text)
