"""What a program said of its graphs' nodes, as PyTorch 2.15 writes it, and names of processes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.errors import CommandError
from spark_prof.importers.sources import open_source
from spark_prof.traces.formats import format_of
from spark_prof.traces.readers.graph_stacks import graph_stacks
from tests.importers.test_impossible_times import GRAPH, START, K, trace
from tests.rows import each_row

MARKS = ("model.layers.0.self_attn.qkv_proj", "model.layers.0.mlp", "model.layers.1.mlp", "phase A")
PLACES = [("qkv", 0), ("mlp", 0), ("mlp", 1), ("other", -1), ("other", -1)]


def marked(mark: str) -> dict[str, Any]:
    return {"name": mark, "dtype": "bf16"}


def listed(mark: str) -> dict[str, Any]:
    return {"annotation": [{"name": "whole"}, {"name": mark}]}


def written(mark: str) -> dict[str, Any]:
    return {"annotation": json.dumps([{"name": "whole"}, {"name": mark}])}


@each_row("say", [marked, listed, written])
@each_row("cut", [False, True])  # whether the exporter cuts the graph's number off the node's
def test_a_marked_node_tells_the_module_of_its_kernels(tmp_path: Path, say: Any, cut: bool) -> None:
    kernels = [
        K(START + 100 * lap + 12 * n, number=9 + lap, launched=START + 100 * lap - 50, name=f"k{n}")
        for lap in range(3)
        for n in range(5)
    ]
    document = json.loads(trace(kernels, launch=GRAPH))
    for event in document["traceEvents"]:
        if event["cat"] == "kernel":
            n = int(event["name"].removeprefix("k"))
            event["args"] |= {"graph id": 6, "graph node id": n if cut else 6 << 32 | n}
            event["args"] |= say(MARKS[n]) if n < len(MARKS) else {}
            if n == 0:
                event["name"] = MARKS[0]  # the first text of all
    document["traceEvents"].sort(key=lambda event: event["name"] != MARKS[0])
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    with open_source(path) as bundle:
        rows = place_kernels(bundle, 0, ["graph_node"])
        lost = bundle.meta.lost
    assert list(zip(rows["component"], rows["layer"], strict=True)) == PLACES * 3
    assert rows["graph_node"].tolist() == [6 << 32 | n for n in range(5)] * 3
    assert "6 kernels ran in CUDA graphs: the replay of a graph carries no layer" in lost


@each_row(
    ("names", "ranks"),
    [
        (("rank 3: NVIDIA GB10", "rank 1"), (1, 3)),
        (("python", "python"), (0,)),
        (("rank 0", "trainer"), (0,)),
    ],
)
def test_processes_that_are_called_ranks_are_ranks(
    tmp_path: Path, names: tuple[str, str], ranks: tuple[int, ...]
) -> None:
    events = json.loads(trace([K(START + 20 * n, launched=START) for n in range(9)]))
    event = events["traceEvents"]
    whole = [e | {"pid": 40 + pid, "ts": e["ts"] + 500 * pid} for pid in (0, 1) for e in event]
    whole += [{"ph": "M", "name": "process_name", "pid": 40 + pid, "args": {"name": name}}
              for pid, name in enumerate(names)]  # fmt: skip
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events | {"traceEvents": whole}))
    with open_source(path) as bundle:
        assert bundle.ranks == ranks
        assert sum(len(bundle.frame("kernels", rank)) for rank in ranks) == 18


LAYERS = "/opt/venv/lib/python3.12/site-packages/vllm/model_executor/layers"
STACKS = {
    1: f"{LAYERS}/layernorm.py:60:forward_cuda\n/app/run.py:3:main",
    # The innermost that tells something.
    2: f"{LAYERS}/linear.py:91:apply\n{LAYERS}/logits_processor.py:99:_get_logits",
    3: f"{LAYERS}/linear.py:91:apply\n/opt/vllm/model_executor/models/qwen3.py:180:forward",
    0: f"{LAYERS}/rotary_embedding/base.py:7:forward_cuda",  # marked: that says more
}


@each_row("packed", [False, True])
def test_stacks_of_nodes_tell_the_component_of_their_kernels(tmp_path: Path, packed: bool) -> None:
    kernels = [
        K(START + 12 * n, number=9, launched=START - 50, name=f"k{n}", node=6 << 32 | n)
        for n in range(5)
    ]
    document = json.loads(trace(kernels, launch=GRAPH))
    for event in document["traceEvents"]:
        if event["name"] == "k0":
            event["args"]["name"] = "model.layers.2.mlp"
    (tmp_path / "trace.json").write_text(json.dumps(document))
    text = json.dumps({str(6 << 32 | node): stack for node, stack in STACKS.items()})
    path = tmp_path / "stacks.json"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert format_of(path) == "graph-stacks"
    with open_source(tmp_path) as bundle:
        rows = place_kernels(bundle, 0)
    placed = list(zip(rows["component"], rows["layer"], strict=True))
    assert placed == [("mlp", 2), ("norm", -1), ("lm_head", -1), ("other", -1), ("other", -1)]
    with pytest.raises(CommandError, match="give the trace too"), open_source(path):
        pass


def test_only_numbers_that_a_recording_can_have_are_of_nodes(tmp_path: Path) -> None:
    path = tmp_path / "stacks.json"
    path.write_text(json.dumps({str(n): "/x/a.py:1:f" for n in (-1, 0, 1, 2**63 - 1, 2**63)}))
    assert list(graph_stacks(path)) == [1, 2**63 - 1]


def test_damaged_stacks_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "stacks.json"
    path.write_text(json.dumps({str(6 << 32): "/x/a.py:1:f"})[:-2])
    with pytest.raises(CommandError, match="holds no stacks of graph nodes"):
        graph_stacks(path)
