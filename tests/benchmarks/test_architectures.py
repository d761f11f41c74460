"""The matrix of architectures: what counts as wrong, the results file, the page, exit codes."""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import architectures
from benchmarks.architecture_compare import Owned, compare, decode_step
from benchmarks.architecture_results import Result
from benchmarks.architecture_table import ARCHITECTURES, config_of
from spark_prof import load
from spark_prof.analyzers.classify.classifier import is_gemm
from tests.rows import each_row

ROOT = Path(__file__).resolve().parents[2]
GEMM = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"
ROLES = {"self_attn.qkv_proj": "qkv", "self_attn.o_proj": "o_proj", "mlp.down_proj": "mlp"}
Steps = tuple[list[Owned], list[Owned]]


def owned(name: str, layer: int, component: str, role: str, basis: str) -> Owned:
    return Owned(name, name, layer, component, role, basis, layer, role, component, 1000.0)


def steps() -> Steps:
    """A decoder of two layers: eager, and with a norm that Inductor fused under another name."""
    eager, graph = [], []
    for layer in range(2):
        for role, component in ROLES.items():
            norm = owned("rms_norm", layer, "norm", "input_layernorm", "weight")
            if component == "qkv":
                eager.append(norm)
                graph.append(replace(norm, name="triton_fused", full_name="triton_fused"))
            product = owned(GEMM, layer, component, role, "weight")
            eager.append(replace(product, basis="range"))
            graph.append(product)
        write = owned("reshape_and_cache", layer, "kv_write", "self_attn.attn", "kv")
        eager.append(write)
        graph.append(write)
    return eager, graph


def test_the_same_owners_are_right() -> None:
    found = compare(*steps(), 2)
    assert found.wrong == ()
    assert (found.kernels, found.weight_kernels, found.compared) == (10, 8, 8)
    assert (found.not_comparable, found.layers_found) == (2, 2)
    assert found.shares == {"proven": 1.0, "derived": 0.0, "guessed": 0.0, "unknown": 0.0}
    assert found.component_difference == 0.0
    assert found.derived == {"right": 0, "wrong": 0, "not_comparable": 0}


def test_derived_owners_are_counted_apart() -> None:
    eager, graph = steps()
    derived = owned("silu_and_mul", 0, "mlp", "mlp.act_fn", "flow")
    fused = [replace(derived, name="triton_poi", layer=layer) for layer in range(2)]
    eager.append(derived)
    graph += [derived, *fused]
    found = compare(eager, graph, 2)
    assert found.derived == {"right": 1, "wrong": 0, "not_comparable": 2}
    graph[-3] = replace(derived, layer=1)
    found = compare(eager, graph, 2)
    assert (found.derived["wrong"], len(found.wrong)) == (1, 1)


def test_layers_of_one_kind_give_a_kernel_one_derived_owner() -> None:
    """As Falcon-H1's multiplication: attention's by memory used again in one layer alone."""
    eager, graph = steps()
    fused = [owned("triton_poi", n, "norm", "input_layernorm", "flow") for n in range(2)]
    other = [replace(fused[0], role="self_attn.attn", component="attention"), fused[1]]
    assert compare(eager, [*graph, *fused], 2).wrong == ()
    found = compare(eager, [*graph, *other], 2)
    assert found.derived == {"right": 0, "wrong": 1, "not_comparable": 1}
    assert "self_attn.attn" in found.wrong[0]
    # The compiler fuses otherwise in the first layer, or the layers are of two kinds.
    assert compare(eager, [*graph, *other, other[0]], 2).wrong == ()
    kinds = [k for k in (*eager, *other) if k.layer != 1 or k.component != "mlp"]
    assert compare([k for k in kinds if k not in other], kinds, 2).wrong == ()


def test_a_lookup_of_rope_is_no_partner_of_one_in_the_embedding() -> None:
    """As GLM's drafter, whose rope is eager's fused kernel and compiled a lookup in its table."""
    eager, graph = steps()
    lookup = owned("indexSelect", -1, "embedding", "embed_tokens", "weight")
    rope = owned("indexSelect", -1, "rope", "drafter.self_attn", "weight")
    found = compare([*eager, lookup], [*graph, replace(rope, reads_weight=False)], 2)
    assert (found.wrong, found.compared) == ((), 8)
    assert len(compare([*eager, lookup], [*graph, rope], 2).wrong) == 1


def changed(step: int, kernel: int, **fields: object) -> Callable[[Steps], None]:
    def change(both: Steps) -> None:
        both[step][kernel] = replace(both[step][kernel], **fields)  # type: ignore[arg-type]

    return change


def split(kernel: int) -> Callable[[Steps], None]:
    """Another name for a graph's product, so that only what it reads can be compared."""

    def change(both: Steps) -> None:
        other = "nvjet_tst_128x8_64x12_2x1_v_bz_splitK_TNT"
        both[1][kernel] = replace(both[1][kernel], name=other, full_name=other)

    return change


WRONG: dict[str, list[Callable[[Steps], None]]] = {
    "a product in the next layer": [changed(1, 2, layer=1)],
    "a product of another module": [changed(1, 2, role="mlp.gate", component="router")],
    "a split product of another module": [split(2), changed(1, 2, role="mlp.gate")],
    "a split product in the next layer": [split(3), changed(1, 3, layer=1)],
    "a layer's weight missing": [split(2), changed(1, 2, basis="order")],
    "a KV write in another layer": [changed(1, 4, layer=1)],
    "a layer after a later one": [changed(1, 0, layer=1)],
    "eager: a weight that its range contradicts": [changed(0, 0, layer=1)],
    "eager: another module than its range": [changed(0, 0, role="mlp.gate", component="router")],
    "a product in a layer that has none": [split(8), changed(1, 8, layer=2)],
}


@each_row("name", WRONG)
def test_a_wrong_owner_is_found(name: str) -> None:
    both = steps()
    for change in WRONG[name]:
        change(both)
    assert compare(*both, 2).wrong


def test_modules_that_the_compiler_turned_around_are_right() -> None:
    """Parallel attention: the eager run has o_proj before the MLP, the compiled one after it."""
    eager, graph = steps()
    places = [i for i, one in enumerate(graph) if one.role in ("self_attn.o_proj", "mlp.down_proj")]
    for first, second in zip(places[::2], places[1::2], strict=True):
        graph[first], graph[second] = graph[second], graph[first]
    found = compare(eager, graph, 2)
    assert [line for line in found.wrong if "eager in the range" in line] == []
    # By flow, the order is all that tells.
    derived = [replace(one, basis="flow") if i in places else one for i, one in enumerate(graph)]
    assert any("eager in the range" in line for line in compare(eager, derived, 2).wrong)


def test_who_abstains_is_not_wrong() -> None:
    eager, graph = steps()
    graph[4] = replace(graph[4], layer=-1, role="", component="other", basis="none")
    found = compare(eager, graph, 2)
    assert found.wrong == ()
    assert found.shares["unknown"] == pytest.approx(0.1)


def test_a_kernel_inside_its_module_is_right() -> None:
    eager, graph = steps()
    eager[4] = replace(eager[4], range_role="self_attn")
    assert compare(eager, graph, 2).wrong == ()


def test_what_is_fused_over_modules_is_the_models_and_the_runs_agree() -> None:
    """DeepSeek-V3.2's embedding with the first norm, launched in the model's own forward."""
    eager, graph = steps()
    one = owned("_fused_embed_norm_kernel", 0, "norm", "input_layernorm", "weight")
    one = replace(one, range_layer=-1, range_role="model", range_component="", fused=True)
    assert compare([one, *eager], [one, *graph], 2).wrong == ()
    for wrong in (replace(one, role="self_attn.q_norm"), replace(one, layer=1)):
        assert compare([one, *eager], [wrong, *graph], 2).wrong
    alone = replace(one, fused=False)
    assert len(compare([alone, *eager], [alone, *graph], 2).wrong) == 2


def test_an_attention_may_be_known_by_its_sinks_or_by_its_cache() -> None:
    """GPT-OSS with EAGLE-3, whose head calls the same kernel without sinks as every other layer."""
    for name in ("flash_fwd", GEMM + "2"):  # MLA's absorbed products have no cache in common
        eager, graph = steps()
        for layer, basis in ((1, "kv"), (0, "weight")):
            one = owned(name, layer, "attention", "self_attn.attn", basis)
            for step in (eager, graph):
                last = [place for place, kernel in enumerate(step) if kernel.layer == layer][-1]
                step.insert(last + 1, replace(one, full_name=name.rstrip("2")))
        assert bool(compare(eager, graph, 2).wrong) == (name != "flash_fwd")


def test_a_product_of_the_eager_run_may_have_a_name_that_tells_none() -> None:
    """Nemotron-H's gate on vLLM 0.33: compiled by cuBLAS, eager by a kernel for few tokens."""
    eager, graph = steps()
    for layer in range(2):
        gate = owned("ll_gate", layer, "router", "mlp.gate", "range")
        for step, one in (
            (eager, gate),
            (graph, replace(gate, name=f"{GEMM}2", full_name=GEMM, basis="weight")),
        ):
            step.insert(next(n for n, k in enumerate(step) if k.role == "mlp.down_proj" and
                             k.layer == layer), one)  # fmt: skip
    assert compare(eager, graph, 2).wrong == ()
    # In a layer that does not call it, it is wrong, and so is a second product of one module.
    assert compare([k for k in eager if k.name != "ll_gate"], graph, 2).wrong
    again = [replace(k, role="self_attn.qkv_proj") if "2" in k.name else k for k in graph]
    assert compare(eager, again, 2).wrong


def test_a_top_k_may_read_the_gate_s_bias() -> None:
    eager, graph = steps()
    ranged = owned("grouped_topk", 0, "router", "mlp.experts.router.select_experts", "range")
    eager.append(ranged)
    graph.append(replace(ranged, role="mlp.gate", basis="flow"))
    assert compare(eager, graph, 2).wrong == ()
    product = [replace(k, name=GEMM, full_name=GEMM) for k in (eager.pop(), graph.pop())]
    assert compare([*eager, product[0]], [*graph, product[1]], 2).wrong


def test_a_recording_of_a_gpu() -> None:
    """Its graphs were captured under ranges of few modules; most owners stand on order."""
    data = Path(__file__).resolve().parents[1] / "data"
    recordings = (f"h100-gpt-oss-20b-mxfp4-{kind}" for kind in ("eager", "graphs"))
    eager, graph = (decode_step(load(data / name)) for name in recordings)
    assert (len(eager), len(graph)) == (450, 472)
    assert {k.range_role for k in eager if k.component == "o_proj"} == {"attn.o_proj"}
    roles = {"qkv": "attn.qkv_proj", "o_proj": "attn.o_proj", "router": "mlp.router"}
    roles["experts"] = "mlp.experts"
    known = [
        replace(k, basis="weight" if is_gemm(k.full_name) else "flow", role=roles[k.component])
        if k.component in roles
        else replace(k, basis="range")
        for k in graph
    ]
    found = compare(eager, known, 24)
    assert found.wrong == ()
    assert found.weight_kernels == 5 * 24
    assert found.compared > 300
    # The fault of DeepSeek-V2: a layer's o_proj is the next layer's second qkv.
    place = next(n for n, k in enumerate(known) if k.role == "attn.o_proj")
    known[place] = replace(known[place], role="attn.qkv_proj", component="qkv", layer=1)
    assert len(compare(eager, known, 24).wrong) > 1


RECORDED = Path(__file__).parents[1] / "data" / "architectures"


@pytest.mark.slow
@each_row("name", sorted(path.name for path in RECORDED.iterdir()))
def test_recorded_on_an_h200(name: str) -> None:
    """Every owner is proven or derived, and none is another than the eager run's."""
    [row] = [one for one in ARCHITECTURES if one.name == name]
    eager, default = (decode_step(load(RECORDED / name / run)) for run in ("eager", "default"))
    found = compare(eager, default, row.layers)
    assert found.wrong == ()
    assert found.layers_found == row.layers
    assert found.weight_kernels >= 7 * row.layers // 2
    assert found.derived["wrong"] == 0
    assert found.shares["proven"] >= 0.93
    assert found.shares["proven"] + found.shares["derived"] == pytest.approx(1.0)


def test_the_page_is_that_of_the_results() -> None:
    from benchmarks.architecture_results import page_of, read_results
    from benchmarks.architectures import in_order

    results = read_results(ROOT / "benchmarks" / "results" / "architectures" / "h200.jsonl")
    shown = in_order(results)
    # A row may wait for a GPU; a result of the table has its row.
    assert {one.name for one in shown if not one.whole} <= {row.name for row in ARCHITECTURES}
    assert len(results) > 36
    page = (ROOT / "benchmarks/results/architectures/README.md").read_text(encoding="utf-8")
    assert page == page_of(shown)


def result(name: str = "llama", **fields: object) -> Result:
    about = {"gpu": "GPU", "vllm": "0.26", "torch": "2.11", "date": "2026-11-22"}
    found = Result(name, "Llama", "LlamaForCausalLM", 2, "", about=about)
    return replace(found, comparison=asdict(compare(*steps(), 2)), **fields)  # type: ignore[arg-type]


def registered(vllm: Path) -> set[str]:
    """The architectures in the registry of a vLLM whose sources lie there, and their drafters."""
    source = (vllm / "model_executor" / "models" / "registry.py").read_text(encoding="utf-8")
    keys = [
        key.value
        for table in ast.walk(ast.parse(source))
        if isinstance(table, ast.Dict)
        for key in table.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    ]
    return set(keys)


def test_each_row_is_an_architecture_of_the_installed_vllm() -> None:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed here")
    known = registered(Path(spec.origin).parent)
    drafters = [name for row in ARCHITECTURES for name in row.drafter.get("architectures", ())]
    # What vLLM makes of an EAGLE head's own name.
    drafters = [name if name.endswith("Eagle3") else f"Eagle{name}" for name in drafters]
    assert {row.model_class for row in ARCHITECTURES} | set(drafters) <= known


def test_the_table() -> None:
    names = [row.name for row in ARCHITECTURES]
    assert len(set(names)) == len(names) >= 44
    drafting = [row for row in ARCHITECTURES if "speculative_config" in row.engine]
    assert len(drafting) >= 6
    for row in ARCHITECTURES:
        config = config_of(row)
        kinds = config.get("layer_types") or config.get("mlp_layer_types")
        assert kinds is None or len(kinds) == row.layers, row.name
        assert row.kind == config["model_type"]


def test_a_drafter_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def run(this: Any, command: list[str], log: Path, *rest: Any, **variables: str) -> int:
        seen.append(json.loads(command[command.index("--engine") + 1]))
        log.write_text("RuntimeError: no engine here")
        return 1

    monkeypatch.setattr(architectures.Engines, "run", run)
    asked = ["--only", "llama-eagle", "-o", str(tmp_path / "o"), "--keep", str(tmp_path)]
    architectures.main(asked)
    (engine,) = seen
    folder = tmp_path / "llama-eagle" / "model" / "drafter"
    assert engine["speculative_config"]["model"] == str(folder)
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 1
    (row,) = [row for row in ARCHITECTURES if row.name == "llama-eagle"]
    assert "model" not in row.engine["speculative_config"]
