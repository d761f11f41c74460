"""From windows to a bundle."""

import pytest

from spark_prof.analyzers.summary import summarize
from spark_prof.errors import CommandError
from spark_prof.importers.sources import write_import
from spark_prof.traces.scopes import Scopes
from tests.importers.traces import foreign, window

STEP = "execute_context_0(0)_generation_1(1)"


def scopes():
    tree = Scopes()
    layer = tree.child(-1, "mod:model.layers.0")
    tree.child(layer, "mod:model.layers.0.self_attn")
    return tree


def test_kernels_get_step_module_and_layer(tmp_path):
    trace = foreign(
        [window([("k", 105, 120, 130, 1, 1), ("early", 50, 60, 70, -1, 2)],
                [(STEP, 100, 110)], [(0, 101, 109), (1, 102, 108)])],
        scopes(),
    )  # fmt: skip
    bundle = write_import("t", [trace], tmp_path / "b")
    kernels = bundle.frame("kernels", 0)
    modules = bundle.frame("modules", 0).set_index("module")
    assert kernels["name"].tolist() == ["early", "k"]
    assert kernels["step"].tolist() == [-1, 0]
    assert kernels["layer"].tolist() == [-1, 0]
    assert modules.loc[kernels["module"].iloc[1], "path"] == "model.layers.0.self_attn"
    assert bundle.imported
    assert bundle.frame("ranges", 0)["step"].tolist() == [0, 0]
    assert summarize(bundle).components[0].name == "attention"


def test_windows_of_one_process_are_written_one_after_another(tmp_path):
    parts = [
        window([("k", t, t + 5, t + 9, -1, t)], [(STEP, t - 1, t + 1)]) for t in (100, 200, 300)
    ]
    bundle = write_import("t", [foreign(parts)], tmp_path / "b")
    assert bundle.frame("kernels", 0)["step"].tolist() == [0, 1, 2]
    assert len(bundle.frame("steps", 0)) == 3


def test_many_windows_without_steps_are_one_step_that_ends_with_the_last(tmp_path):
    parts = [window([("k", t, t + 5, t + 9, -1, t)]) for t in (100, 200, 300)]
    bundle = write_import("t", [foreign(parts)], tmp_path / "b")
    steps = bundle.frame("steps", 0)
    assert (steps["start_ns"].tolist(), steps["end_ns"].tolist()) == ([105], [309])
    assert bundle.frame("kernels", 0)["step"].tolist() == [0, 0, 0]
    assert any("nothing tells the steps" in line for line in bundle.meta.lost)


def test_ranks_that_the_traces_do_not_tell_are_counted(tmp_path):
    traces = [foreign([window([("k", 1, 2, 3, -1, 1)])], rank=rank) for rank in (None, 0, None)]
    with pytest.raises(CommandError, match="two traces of rank 0"):
        write_import("t", traces, tmp_path / "b")
    assert not (tmp_path / "b").exists()
    traces = [foreign([window([("k", 1, 2, 3, -1, 1)])], rank=r) for r in (1, None, None)]
    assert write_import("t", traces, tmp_path / "b").ranks == (0, 1, 2)


def test_nothing_is_left_of_a_trace_that_is_damaged_half_way(tmp_path):
    def windows():
        yield window([("k", 1, 2, 3, -1, 1)])
        yield window([("k", 5, 6, 7, -1, 2)])
        raise CommandError("t is damaged")

    with pytest.raises(CommandError, match="damaged"):
        write_import("t", [foreign(windows())], tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_what_runs_around_the_model_counts_to_its_phase(tmp_path):
    tree = scopes()
    tree.child(-1, "mod:logits_processor")
    names = ["prepare", "inside", "gather", "logits", "sample"]
    times = [101, 111, 125, 131, 145]
    inside = [-1, 1, -1, 2, -1]
    kernels = [(n, t, t + 100, t + 101, s, t) for n, t, s in zip(names, times, inside, strict=True)]
    calls = [(0, 110, 120), (1, 110, 119), (2, 130, 140)]
    trace = foreign([window(kernels, [(STEP, 100, 150)], calls)], tree)
    bundle = write_import("t", [trace], tmp_path / "b")
    rows = bundle.frame("kernels", 0).set_index("name")
    modules = bundle.frame("modules", 0).set_index("module")["path"]
    assert [modules[rows.loc[name, "module"]] for name in names] == [
        "step.prepare", "model.layers.0.self_attn", "step.finish", "logits_processor",
        "step.sample",
    ]  # fmt: skip
    assert [rows.loc[name, "placed_by"] for name in names] == ["guess", "", "guess", "", "guess"]
