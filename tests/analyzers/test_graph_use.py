"""Which CUDA graphs the steps ran: the model's in pieces, its drafter's, those of metadata."""

from __future__ import annotations

from pathlib import Path

from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.graph_use import GraphUse, graph_use, in_graphs_of
from spark_prof.dashboards.sections.run_section import graphs_told
from spark_prof.traces.bundle import Bundle
from tests.analyzers.attribution.memory import Line, Memory, placed_lines
from tests.analyzers.graphs import Captured, clone_of, graph_launch
from tests.analyzers.reported import reported
from tests.analyzers.test_placement import COMPILED
from tests.support import MODEL, Piece, Recorded, call, kineto, step

MODEL_KIND, DRAFTER, METADATA, MEMORY = 1, 2, 3, 6
FULL, BREAKABLE = 2, 3

CAPTURES = (
    (0, 90, 8, FULL, MEMORY, 0),
    # Three pieces of one breakable graph, of which the second has no kernel.
    (100, 190, 8, BREAKABLE, MODEL_KIND, 1), (200, 290, 8, BREAKABLE, MODEL_KIND, 1),
    (300, 390, 8, BREAKABLE, MODEL_KIND, 1),
    (400, 490, 4, FULL, MODEL_KIND, 2), (500, 590, 4, FULL, METADATA, 3),
    (600, 690, 4, FULL, DRAFTER, 4),
)  # fmt: skip
NODES = (150, 350, 450, 550, 650)
"""Two of the pieces, the full graph, the metadata's and the drafter's."""


def recorded(folder: Path, several: tuple[tuple[int, ...], ...] = CAPTURES) -> Bundle:
    """A mixed step in pieces, and two decode steps with metadata, model and a drafter, twice."""
    rows, correlation = [], 0
    for at, graphs in ((0, (0, 1)), (10_000, (3, 2, 4, 4)), (20_000, (3, 2, 4, 4))):
        for number, node in enumerate(graphs):
            correlation += 1
            begin = at + 1000 * number + 100
            rows += graph_launch(correlation, begin, ("gemm", node, begin + 20, 7))
    steps = [step(0, 0, 9000, phase="mixed"), step(1, 10_000, 19_000), step(2, 20_000, 29_000)]
    made = Recorded({0: [Piece(steps, (), kineto(*rows))]}, facts=COMPILED)
    return Captured(NODES, call(MODEL, 90, 500), several=several).assemble(made, folder / "b")


def test_a_breakable_graph_is_one_step_and_a_drafters_is_no_step(tmp_path: Path) -> None:
    bundle = recorded(tmp_path)
    assert graph_use(bundle, 0) == (
        GraphUse("model", "FULL", 2, 1, 1.0),
        GraphUse("model", "BREAKABLE", 1, 3, 3.0, 2.0),
        GraphUse("drafter", "FULL", 2, 1, 2.0),
        GraphUse("metadata", "FULL", 2, 1, 1.0),
    )
    report = reported(bundle)
    assert report.steps.count == 3
    assert graphs_told(report) == (
        "full (model), in 2 steps; breakable (model), 3 pieces, 2 eager breaks a step, in 1 step; "
        "full (drafter), 2 launches a step, in 2 steps; full (metadata), in 2 steps"
    )


def test_what_a_drafters_graph_runs_is_the_drafters(tmp_path: Path) -> None:
    placed = place_kernels(recorded(tmp_path), 0)
    nodes = recorded(tmp_path / "again").frame("kernels", 0)["graph_node"].to_numpy()
    theirs = in_graphs_of(recorded(tmp_path / "third"), 0, "drafter", nodes)
    assert theirs.sum() == 4
    assert set(nodes[theirs]) == {clone_of(4)}
    assert set(placed["role"].astype(str)[theirs]) == {"drafter"}
    assert not placed["role"].astype(str)[~theirs].str.startswith("drafter").any()
    prepared = placed[placed["role"].astype(str) == "step.prepare"]
    assert set(prepared["component"].astype(str)) == {"attention"}
    assert len(prepared) == 2


def test_an_older_recording_tells_modes_alone(tmp_path: Path) -> None:
    older = tuple((*row[:4], 0, 0) for row in CAPTURES)
    bundle = recorded(tmp_path, older)
    found = graph_use(bundle, 0)
    assert {(row.kind, row.pieces) for row in found} == {("", 1)}
    assert graphs_told(reported(bundle)) == ""
    assert not in_graphs_of(bundle, 0, "drafter", bundle.frame("kernels", 0)["graph_node"]).any()


def test_no_captures_no_graphs(tmp_path: Path) -> None:
    bundle = Recorded({0: [Piece([step(0, 0, 9000)], (), kineto())]}).assemble(tmp_path / "b")
    assert graph_use(bundle, 0) == ()


def test_the_models_matrix_is_the_drafters_where_the_drafter_multiplies_with_it(
    tmp_path: Path,
) -> None:
    """lm_head is the model's module; so is what follows the product, the drafter's argmax."""
    memory = Memory().add("lm_head", shape="100x64", bytes=12800)
    memory.add("drafter.model.layers.0.mlp.down_proj", shape="64x64", layer=-1, component="mlp")
    lines = (
        Line("gemm_down", ("drafter.model.layers.0.mlp.down_proj",), "a b",
             ("mlp", -1, "weight", "drafter.mlp.down_proj")),
        Line("gemm_head", ("lm_head",), "b c", ("lm_head", -1, "weight", "drafter.lm_head")),
        Line("argmax", (), "c d", ("lm_head", -1, "flow", "drafter.lm_head")),
    )  # fmt: skip
    assert placed_lines(tmp_path, memory, lines, kind=DRAFTER) == [line.place for line in lines]
