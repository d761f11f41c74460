"""A whole report of a small bundle, figure by figure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_prof.analyzers.model import RankRow
from spark_prof.dashboards.render import RENDERERS
from spark_prof.errors import CommandError
from spark_prof.traces.assemble import assemble
from spark_prof.traces.bundle import Bundle, table_file
from tests.analyzers.reported import reported
from tests.rows import each_row
from tests.support import (
    Piece,
    Recorded,
    eager_decode,
    engine,
    kineto,
    layer_row,
    operator,
    step,
)

FACTS: Mapping[str, Any] = {
    "vllm": "0.32.0", "torch": "2.13.0", "model": "/models/tiny/", "quantization": "mxfp4",
    "model_config": {"architectures": ["TinyForCausalLM"]}, "execution": "eager",
    "model_runner": "V1", "async_scheduling": True,
    "gpu": {"name": "NVIDIA GB10", "compute_capability": "12.1"},
}  # fmt: skip
LAYERS = [
    layer_row("model.layers.0.qkv", 0, "qkv"), layer_row("model.layers.0.kv", 0, "qkv"),
    layer_row("model.layers.0.o", 0, "o_proj", bytes=900),
]  # fmt: skip


def recorded(**more: Any) -> Recorded:
    """Two decode steps of 1000 ns on each of two ranks, the second slower by nothing."""
    engines = {0: [engine(0, -50, 950), engine(1, 960, 1950, output_tokens=2)]}
    ranks = {0: [eager_decode()], 1: [eager_decode()]}
    return Recorded(ranks, engines, FACTS, LAYERS, **more)


def test_modules_by_component_type_and_shape(tmp_path: Path) -> None:
    report = reported(recorded().assemble(tmp_path / "b"))
    assert [(m.component, m.count, m.bytes) for m in report.modules] == [
        ("o_proj", 1, 900), ("qkv", 2, 200),
    ]  # fmt: skip


def test_a_cpu_engine_has_operators(tmp_path: Path) -> None:
    piece = Piece([step(0, 0, 1000)], trace=kineto(operator("linear", 100, 500),
                                                   operator("mm", 200, 400)))  # fmt: skip
    report = reported(Recorded({0: [piece]}).assemble(tmp_path / "b"))
    assert report.run.units == "op"
    assert [(k.name, k.calls, k.us) for k in report.kernels] == [
        ("linear", 1, pytest.approx(0.2)), ("mm", 1, pytest.approx(0.2)),
    ]  # fmt: skip
    assert report.summed_steps[0].sums.overlap_us == 0


def test_what_has_no_kernels_and_what_has_no_steps(tmp_path: Path) -> None:
    pieces = {0: [Piece([])], 1: [eager_decode()], 2: [Piece([step(0, 0, 1000)])]}
    bundle = Recorded(pieces).assemble(tmp_path / "b")
    with pytest.raises(CommandError, match="no step of rank 0"):
        reported(bundle)
    assert reported(bundle, 1).ranks[0] == RankRow(0, 0, 0.0, 0.0, 0.0)
    report = reported(bundle, 2)
    assert report.summed_steps[0].sums.gap_us == pytest.approx(1.0)
    assert (report.kernels, report.coverage.layer) == ((), 0.0)
    for render in RENDERERS.values():
        assert render(report)
    for rank in (-1, 3, 10**30):
        with pytest.raises(CommandError, match="it has 0, 1"):
            reported(bundle, rank)


@pytest.fixture
def whole(tmp_path: Path) -> Bundle:
    return Recorded({0: [eager_decode()]}).assemble(tmp_path / "b")


@each_row(
    "facts",
    [
        {}, {"gpu": None}, {"gpu": "H100"}, {"model_config": None}, {"model_config": []},
        {"model_config": {"architectures": None}}, {"model_config": {"architectures": "Tiny"}},
        {"model_config": {"architectures": [None]}}, {"model": None}, {"execution": 3},
        {"quantization": {"a": 1}},
    ],
)  # fmt: skip
def test_facts_of_any_kind_make_a_report(whole: Bundle, facts: dict[str, Any]) -> None:
    whole.meta = replace(whole.meta, facts={"rank0": {"process": "rank0", "rank": 0} | facts})
    assert reported(whole).steps.count == 2


def test_a_command_is_shown_so_that_it_can_be_typed_again(tmp_path: Path) -> None:
    folder = recorded().write(tmp_path / "b")
    command = ["vllm", "serve", "m", "--config", '{"a": 1}']
    (folder / "recording.json").write_text(json.dumps({"command": command}))
    report = reported(assemble(tmp_path / "b", state="complete"))
    assert report.run.command == "vllm serve m --config '{\"a\": 1}'"


def _as_imported(bundle: Bundle, **settings: Any) -> Bundle:
    bundle.meta = replace(bundle.meta, backend="imported: kineto", command=(), settings=settings)
    return bundle


def test_what_a_foreign_trace_does_not_tell_is_left_out(tmp_path: Path) -> None:
    gpu = {"name": "Instinct MI300X", "vendor": "AMD", "compute_capability": "gfx942"}
    facts = {"gpu": gpu, "steps_by": "ranges"}
    piece = Piece([step(0, 0, 1000, phase="unknown")], trace=eager_decode().trace)
    report = reported(_as_imported(Recorded({0: [piece]}, facts=facts).assemble(tmp_path / "b")))
    assert (report.run.vllm, report.run.torch, report.run.execution) == ("", "", "")
    assert report.steps.unknown == 1
    assert report.steps.unknown_us is not None
    assert report.components[0].unknown_us == report.components[0].us
    assert [row.phase for row in report.summed_steps] == ["all", "unknown"]
    text = RENDERERS["text"](report)
    assert "AMD Instinct MI300X (architecture gfx942)" in text
    for word in ("NVIDIA", "CUDA", "tensor cores", "unknown,", "scheduler's own record"):
        assert word not in text


def test_sums_without_times_have_no_times(tmp_path: Path) -> None:
    bundle = _as_imported(recorded().assemble(tmp_path / "b"), summed=True)
    report = reported(bundle)
    assert (report.accounts, report.wall_us, report.ranks) == ((), None, ())
    assert [row.name for row in report.components] == ["attention", "qkv"]
    document = json.loads(RENDERERS["json"](report))
    assert document["time"]["sum_us"] == pytest.approx(1.2)
    assert {document["time"][key] for key in ("union_us", "wall_us", "gap_us", "step_us")} == {None}
    assert document["steps"]["decode_us"]["median"] is None
    for render in RENDERERS.values():
        assert render(report)


@pytest.mark.parametrize("word", ["aligned", "guess"])
def test_a_guess_is_no_coverage(tmp_path: Path, word: str) -> None:
    bundle = recorded().assemble(tmp_path / "b")
    path = bundle.path / table_file("kernels", 0)
    table = pq.read_table(path, partitioning=None)
    # Of four kernels of 200 and 400 ns, one of 400.
    marks = [word if name == "flash_fwd" else "" for name in table["name"].to_pylist()]
    marks[marks.index(word)] = ""
    column = table.schema.get_field_index("placed_by")
    values = pa.array(marks).cast(table.schema.field("placed_by").type)
    pq.write_table(table.set_column(column, table.schema.field("placed_by"), values), path)
    report = reported(bundle)
    third = pytest.approx(1 / 3)
    found = report.coverage
    assert (found.proven, found.guessed, found.placed) == (pytest.approx(2 / 3), third, 1.0)
    assert (found.layer, found.component) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    for name, draw in RENDERERS.items():
        assert ('"guessed": 0.333' if name == "json" else "guessed 33.3 %") in draw(report)
