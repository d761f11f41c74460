"""Ranges of torch.compile are no operators; what runs inside them is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from spark_prof.analyzers.classify.classifier import classify, short_name, short_names
from spark_prof.rules.operator_ranges import RANGES, ranges_among
from spark_prof.traces.readers.kineto import read_kineto
from tests.rows import each_row
from tests.support import kineto, operator

KEY = "fgshjysb76fvawq22qfgzq7ijs76t4mvvbgjtrvuwhrqaxhd3mng"
GRAPH = f"## Call CompiledFxGraph {KEY} ##"


@each_row(("pattern", "example"), RANGES)
def test_each_row_has_its_example(pattern: str, example: str) -> None:
    assert ranges_among([example]) == {example}


@each_row(
    "name",
    ["aten::mm", "_C::onednn_mm", "vllm::unified_attention", GRAPH, "detach", "backend_compile",
     "CompiledFunction", "c10d::allreduce_", "my TorchDynamo Cache Lookup", "dynamo"],
)  # fmt: skip
def test_what_computes_is_kept(name: str) -> None:
    assert ranges_among([name]) == frozenset()


def test_a_phase_of_compiling_is_known_by_its_second_range() -> None:
    found = ranges_among(["aten::mm", "backend_compile", "backend_compile (dynamo_timed)"])
    assert found == {"backend_compile", "backend_compile (dynamo_timed)"}


def test_the_time_of_operators_is_theirs_and_the_rest_a_gap(tmp_path: Path) -> None:
    """As torch 2.13 nests them on a CPU."""
    path = tmp_path / "rank0.00000.kineto.json"
    path.write_text(
        kineto(
            operator("TorchDynamo Cache Lookup", 0, 50),
            operator("Torch-Compiled Region: 0/0", 60, 900),
            operator("Pregraph bytecode", 70, 90),
            operator("AOTDispatcher Runtime Wrapper Prologue", 100, 120),
            operator(GRAPH, 150, 800),
            operator("aten::addmm", 200, 400),
            operator("aten::copy_", 250, 300),
        )
    )
    rows = read_kineto(path).operators
    assert sorted(set(rows["name"])) == [GRAPH, "aten::addmm", "aten::copy_"]
    took = (rows["end_ns"] - rows["start_ns"]).groupby(rows["name"].astype(str)).sum()
    assert took.to_dict() == {GRAPH: 450, "aten::addmm": 150, "aten::copy_": 50}
    assert set(rows["thread"]) == {4242}


def test_a_compiled_graph_has_a_plain_name() -> None:
    assert short_name(GRAPH) == "CompiledFxGraph"
    other = GRAPH.replace("fgsh", "abcd")
    assert short_names([GRAPH, other, "aten::mm"]) == {
        GRAPH: "CompiledFxGraph<fgshjysb>", other: "CompiledFxGraph<abcdjysb>",
        "aten::mm": "aten::mm",
    }  # fmt: skip
    assert short_name("## Call CompiledFxGraph None ##") == "CompiledFxGraph"
    assert classify(GRAPH).component is None


def test_a_real_compiled_module_leaves_no_range(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from spark_prof.profiler.backends.torch import TorchBackend

    if torch.cuda.is_available():
        pytest.skip("watches operators on a CPU only")
    backend = TorchBackend(tmp_path, "rank0")
    compiled = torch.compile(lambda value: (value @ value).relu(), backend="aot_eager")
    value = torch.ones(4, 4)
    compiled(value)
    backend.start(0)
    compiled(value)
    backend.stop()
    [path] = tmp_path.iterdir()
    recorded = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
    # Its first number counts what the process has compiled.
    assert any(re.fullmatch(r"Torch-Compiled Region: \d+/0", name or "") for name in recorded)
    names = set(map(str, read_kineto(path).operators["name"]))
    assert "aten::mm" in names
    assert not [name for name in names if " " in name and "CompiledFxGraph" not in name]
