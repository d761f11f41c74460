"""Real traces: modules, layers and components against what an independent reading says."""

from __future__ import annotations

import gzip
import re

import numpy as np
import orjson
import pytest

from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.summary import summarize
from spark_prof.importers.sources import import_files, open_source
from spark_prof.rules.components import component_of
from tests.importers.traces import DATA, SHARED
from tests.rows import each_row

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces are not here")
EAGER = "h100_vllm026_gptoss20b_mxfp4_eager_modhooks_bs1.json.gz"
GRAPH = "h100_vllm026_gptoss20b_mxfp4_graph_bs1.json.gz"


def placed(bundle, **columns):
    """The kernels of rank 0 with component, phase and us."""
    kernels = place_kernels(bundle, 0, ["module", "correlation"])
    phase = bundle.frame("steps", 0).set_index("step")["phase"].astype(str)
    kernels = kernels[kernels["kind"] == "kernel"]
    return kernels.assign(
        us=(kernels["end_ns"] - kernels["start_ns"]) / 1e3, phase=kernels["step"].map(phase)
    )


@needs_shared
def test_time_per_module_of_an_eager_run_on_b200():
    lines = (SHARED / "b200_vllm_eager_tp8_rank0.module_truth.txt").read_text().splitlines()
    rows = [re.match(r"\s*([\d.]+)\s+([\d.]+)% n=\s*(\d+) (\S+)", line) for line in lines]
    truth = {row[4]: float(row[1]) for row in rows if row}
    assert len(truth) == 13
    with open_source(SHARED / "b200_vllm_eager_tp8_rank0.json.gz") as bundle:
        kernels = placed(bundle)
        paths = bundle.frame("modules", 0).set_index("module")["path"].astype(str)
        report = summarize(bundle)
    names = kernels["module"].map(paths).fillna("(none)")
    names = names.where(~names.str.startswith("step."), "(none)")
    operators = names.str.replace(r"(\.vllm::\w+)+$", "", regex=True)
    classes = operators.str.replace(r"_\d+(?=\.|$)", "", regex=True).str.replace(".", "/")
    found = kernels.groupby(classes.to_numpy())["us"].sum()
    assert set(found.index) == set(truth)
    total = sum(truth.values())
    for name, us in truth.items():
        assert abs(found[name] - us) / total < 0.001, name
    # 74 of 768 kernels start before the one before them on their stream has ended: what they wait
    # is in the trace's sum, and in no figure of a report, whose sum is the union.
    books = report.all_steps
    assert kernels["us"].sum() == pytest.approx(10_862.916, abs=0.001)
    assert books.kernels_us == books.union_us == pytest.approx(10_793.638, abs=0.001)
    assert sum(row.us for row in report.components) == pytest.approx(10_793.638, abs=0.001)
    share = {row.name: row.share for row in report.components}
    # Of the experts' range, 70.7 %, a part is the all-reduce at its end, which is no expert.
    reduces = kernels["name"].astype(str).str.contains("all_reduce")
    assert (reduces.sum(), kernels["us"][reduces].sum()) == (73, pytest.approx(2_119.548))
    assert set(
        kernels["component"][kernels["name"].astype(str).str.contains("nccl") | reduces]
    ) == {"collective"}
    within = kernels["us"][reduces & classes.str.contains("FusedMoE")].sum() / total
    assert share["experts"] + share["router"] == pytest.approx(0.707 - within, abs=0.005)
    assert share["qkv"] == pytest.approx(0.026, abs=0.005)
    outer = (truth["GptOssForCausalLM/VocabParallelEmbedding"] - 14.3 + 22.0) / total
    assert share["o_proj"] + share["collective"] == pytest.approx(0.104 + outer + within, abs=0.005)


@needs_shared
def test_a_collective_inside_a_module_is_no_expert():
    """As vLLM runs it eagerly with tensor parallel 8: at the end of FusedMoE's forward."""
    with open_source(SHARED.parent / "cases/moe_all_reduce_in_module.json") as bundle:
        kernels = placed(bundle)
    found = kernels.groupby("component", observed=True)["us"].agg(["size", "sum"])
    assert tuple(found.loc["collective"]) == (8, pytest.approx(200))
    assert found.loc["experts", "sum"] == pytest.approx(280)


@pytest.mark.slow
@needs_shared
def test_every_kernel_has_the_layer_and_component_of_its_module_range():
    events = orjson.loads(gzip.decompress((SHARED / EAGER).read_bytes()))["traceEvents"]
    whole = [e for e in events if e.get("ph") == "X"]
    launch = {
        e["args"]["correlation"]: e["ts"]
        for e in whole
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e["args"]
    }
    ranges = [e for e in whole if e["name"].startswith("mod:") and e["cat"] == "user_annotation"]
    start = np.array([e["ts"] for e in ranges])
    end = start + np.array([e["dur"] for e in ranges])
    with open_source(SHARED / EAGER) as bundle:
        kernels = placed(bundle)
    found = kernels.set_index("correlation")
    checked = 0
    for kernel in whole:
        if kernel.get("cat") != "kernel":
            continue
        time = launch[kernel["args"]["correlation"]]
        inside = np.flatnonzero((start <= time) & (time <= end))
        if not len(inside):
            continue
        around = sorted(inside, key=lambda i: end[i] - start[i])
        paths = [ranges[i]["name"].removeprefix("mod:") for i in around]
        layers = [int(m[1]) for p in reversed(paths) if (m := re.search(r"layers\.(\d+)", p))]
        row = found.loc[kernel["args"]["correlation"]]
        assert row["layer"] == (layers[0] if layers else -1), paths
        # The block around router and experts is a mixture of experts; names are more exact.
        kind = "MoE" if paths[0].endswith(".mlp") else ""
        exact = {"attention": {"kv_write", "rope"}, "experts": {"router"}}
        component = component_of(paths[0], kind)
        known = {component} | exact.get(component, set())
        if component:
            assert row["component"] in known, paths
        checked += 1
    assert checked > 5_000


@needs_shared
def test_layers_of_the_eager_run_are_carried_onto_the_graphs(tmp_path):
    bundle = import_files([SHARED / GRAPH], tmp_path / "graph", SHARED / EAGER)
    kernels = placed(bundle)
    decode = kernels[kernels["phase"] == "decode"]
    assert (decode["step"].nunique(), decode["layer"].max()) == (23, 23)
    aligned = decode[decode["placed_by"] == "aligned"]
    assert aligned["us"].sum() >= 0.98 * decode["us"].sum()
    # Every layer of every step runs the same kernels, but for the norm that ends the model.
    counts = aligned[aligned["layer"] >= 0].groupby(["step", "layer"]).size().unstack()
    assert (counts.nunique() == 1).all()
    experts = aligned[aligned["component"] == "experts"]["name"].astype(str)
    assert experts.str.contains("_matmul_ogs").sum() == 23 * 24 * 2


@needs_shared
@pytest.mark.parametrize("name", ["gaunernst_bert", "google_owlv2", "Qwen_Qwen1.5"])
def test_encoders_have_no_layers_that_are_guessed(name, tmp_path):
    """BERT and OWLv2 without their modules' ranges; nor has what keeps its cache unseen."""
    (path,) = SHARED.glob(f"{name}*.json.gz")
    whole = orjson.loads(gzip.decompress(path.read_bytes()))
    events = [e for e in whole["traceEvents"] if e.get("cat") != "python_function"]
    bare = tmp_path / "bare.json"
    bare.write_bytes(orjson.dumps(whole | {"traceEvents": events}))
    with open_source(bare) as bundle:
        kernels = placed(bundle)
        notes = [line for line in bundle.meta.lost if line.startswith("no layers: ")]
    assert (kernels["layer"] == -1).all()
    assert len(notes) == 1


@pytest.mark.parametrize("model", ["gpt-oss", "qwen3"])
def test_captures_and_repeats_say_what_an_eager_run_says(model, tmp_path):
    graphs = DATA / f"{model}-graphs"
    told = placed(import_files([graphs], tmp_path / "told"))
    like = DATA / f"{model}-eager.json.gz"
    carried = placed(import_files([graphs / "rank0.pt.trace.json.gz"], tmp_path / "like", like))
    assert (told["start_ns"].to_numpy() == carried["start_ns"].to_numpy()).all()
    decode = (told["phase"] == "decode").to_numpy() & (carried["layer"] >= 0).to_numpy()
    told, carried = told[decode], carried[decode]
    same = told["component"].astype(str).to_numpy() == carried["component"].astype(str).to_numpy()
    same &= told["layer"].to_numpy() == carried["layer"].to_numpy()
    assert carried["us"][same].sum() / carried["us"].sum() > 0.97
    captured = told["placed_by"] == "aligned"
    assert captured.any()
    assert same[captured.to_numpy()].mean() > 0.95


@each_row("name", ["gpt-oss-graphs", "qwen3-graphs"])
def test_the_first_layer_of_a_prefill_is_whole(name: str) -> None:
    """Operators name the attention of each layer, and what is before the first is its layer's."""
    with open_source(DATA / name / "rank0.pt.trace.json.gz") as bundle:
        rank = bundle.ranks[0]
        phases = bundle.frame("steps", rank).set_index("step")["phase"].astype(str)
        rows = place_kernels(bundle, rank)
    rows = rows[(phases.reindex(rows["step"]) == "prefill").to_numpy()]
    for component in ("qkv", "o_proj"):
        counts = rows.loc[rows["component"] == component, "layer"].value_counts()
        assert sorted(counts.index) == [0, 1, 2, 3]
        assert counts.nunique() == 1
