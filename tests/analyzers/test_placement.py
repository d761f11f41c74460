"""Which component and layer a kernel gets: its module, its exact name, the order, its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_prof.analyzers.attribution.order import CODES
from spark_prof.analyzers.attribution.owners import most_exact
from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.profiler.vllm_names import CALLS
from spark_prof.traces.bundle import Bundle, table_file
from spark_prof.traces.tables import TABLES
from tests.rows import each_row
from tests.support import (
    ATTENTION,
    EXPERTS,
    LAYER,
    MODEL,
    MODULES,
    PREPARE,
    SAMPLE,
    Piece,
    Recorded,
    call,
    event,
    kernel,
    kineto,
    layer_row,
    step,
)

from .graphs import Captured, graph_launch

GEMM = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn"
KV_WRITE = "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>"
ROUTER = "void vllm::topk_softmax<1>"
NORM = "rms_norm_kernel"
ROPE = "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(int)"
COLLECTIVE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
COPY = "Memcpy HtoD (Pinned -> Device)"
COMPILED = {"execution": "torch.compile (VLLM_COMPILE), CUDA graphs (FULL_AND_PIECEWISE)"}
PRODUCTS = [
    layer_row("model.layers.0.qkv", 0, "qkv"),
    layer_row("model.layers.0.o_proj", 0, "o_proj"),
    layer_row("model.layers.0.mlp.gate", 0, "router"),
]


def place(
    folder: Path,
    rows: Sequence[Any],
    calls: Sequence[tuple[int, int]] = (),
    facts: dict[str, str] | None = None,
    modules: Sequence[Any] = MODULES,
) -> list[tuple[Any, ...]]:
    """Component, layer, whether it is placed, and the basis of each kernel."""
    piece = Piece([step(0, 0, 10_000)], calls, kineto(*rows))
    recorded = Recorded({0: [piece]}, facts=facts or {}, layers=PRODUCTS, modules=modules)
    placed = place_kernels(recorded.assemble(folder / "b"), 0)
    columns = ["component", "layer", "placed", "basis"]
    return list(placed[columns].itertuples(index=False, name=None))


EAGER: tuple[tuple[int | None, str, str, int, bool], ...] = (
    (ATTENTION, "nothing_known", "attention", 0, True),
    (ATTENTION, GEMM, "attention", 0, True),
    (ATTENTION, KV_WRITE, "kv_write", 0, True),
    (ATTENTION, COLLECTIVE, "collective", 0, True),
    (ATTENTION, ROPE, "rope", 0, True),
    (ATTENTION, ROUTER, "attention", 0, True),
    (EXPERTS, ROUTER, "router", 0, True),
    (EXPERTS, NORM, "experts", 0, True),
    (EXPERTS, COLLECTIVE, "collective", 0, True),
    (SAMPLE, COLLECTIVE, "collective", -1, True),
    (None, COLLECTIVE, "collective", -1, False),
    (LAYER, NORM, "norm", 0, True),
    (LAYER, "nothing_known", "other", 0, True),
    (SAMPLE, "nothing_known", "sampler", -1, True),
    (SAMPLE, COPY, "sampler", -1, True),
    (PREPARE, "nothing_known", "attention", -1, True),
    (PREPARE, COPY, "memcpy", -1, True),
    (MODEL, NORM, "norm", -1, False),
    (MODEL, "nothing_known", "other", -1, False),
    (None, "nothing_known", "other", -1, False),
    (None, NORM, "norm", -1, False),
    (None, COPY, "memcpy", -1, True),
    (99, "nothing_known", "other", -1, False),
)
"""The module that launched a kernel, its name, and what is said of it."""


# Beside other kernels a collective is of what it serves.
ALONE = [[row] for row in EAGER if row[1] == COLLECTIVE]


@each_row("placed", [[row for row in EAGER if row[1] != COLLECTIVE], *ALONE])
def test_kernels_of_an_eager_model(
    tmp_path: Path, placed: list[tuple[int | None, str, str, int, bool]]
) -> None:
    rows, calls = [], []
    for number, (module, name, *_) in enumerate(placed):
        at = 400 * number
        calls += [] if module is None else call(module, at + 100, at + 200)
        category = "gpu_memcpy" if name == COPY else "kernel"
        launched = event("cuda_runtime", "cudaLaunchKernel", at + 150, at + 151, correlation=number)
        rows += [launched, event(category, name, at + 300, at + 350, 7, correlation=number)]
    assert [row[:3] for row in place(tmp_path, rows, calls)] == [row[2:] for row in placed]


LAYER_CALLS = [
    *call(MODEL, 0, 5000), *call(ATTENTION, 1000, 1100), *call(EXPERTS, 2000, 2100),
]  # fmt: skip


REST = "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(int)"


def _compiled_layer(api: str = "cudaLaunchKernel") -> list[Any]:
    """norm qkv | attention | o_proj norm router | experts | final norm, in launch order."""
    inside = [(NORM, 100), (GEMM, 200), ("attn", 1050), (GEMM, 1200), ("fused", 1300),
              (GEMM, 1400), ("moe", 2050), ("fused", 3000)]  # fmt: skip
    anchors = ("attn", "moe")
    return [
        kernel(name, at, at + 50, at, at, api="cudaLaunchKernel" if name in anchors else api)
        for name, at in inside
    ]


PLACED_LAYER = [
    ("norm", 0), ("qkv", 0), ("attention", 0), ("o_proj", 0), ("norm", 0), ("router", 0),
    ("experts", 0), ("norm", -1),
]  # fmt: skip


def test_a_compiled_model_is_placed_by_its_order(tmp_path: Path) -> None:
    found = place(tmp_path, _compiled_layer(), LAYER_CALLS, COMPILED)
    assert [row[:2] for row in found] == PLACED_LAYER
    # What the order alone places is no proof.
    anchors = ("attention", "experts")
    bases = ["range" if name in anchors else "order" for name, _ in PLACED_LAYER]
    assert [row[3] for row in found] == bases
    eager = place(tmp_path / "eager", _compiled_layer(), LAYER_CALLS, {"execution": "eager"})
    assert {row[0] for row in eager} & {"qkv", "o_proj"} == set()


def test_what_adds_up_a_split_product_goes_with_it_and_is_no_product_of_its_own(
    tmp_path: Path,
) -> None:
    rows, wanted = [], []
    for launched, row in zip(_compiled_layer(), PLACED_LAYER, strict=True):
        rows.append(launched)
        wanted.append(row)
        at = int(launched[0]["args"]["correlation"])
        if row[0] in ("qkv", "o_proj", "router"):
            rows.append(kernel(REST, at + 55, at + 60, at + 7, at + 7))
            wanted.append(row)
    assert [row[:2] for row in place(tmp_path, rows, LAYER_CALLS, COMPILED)] == wanted


def test_a_collective_of_a_compiled_model_is_of_what_it_serves(tmp_path: Path) -> None:
    """Without arguments: what o_proj is, is a guess, and so is whose its all-reduce is."""
    rows, wanted = [], []
    for launched, row in zip(_compiled_layer(), PLACED_LAYER, strict=True):
        rows.append(launched)
        wanted.append((*row, "range" if row[0] in ("attention", "experts") else "order"))
        at = int(launched[0]["args"]["correlation"])
        if row[0] in ("o_proj", "experts"):
            rows.append(kernel(COLLECTIVE, at + 55, at + 60, at + 7, at + 152))
            wanted.append(("collective", 0, "order" if row[0] == "o_proj" else "stream"))
    found = place(tmp_path, rows, LAYER_CALLS, COMPILED)
    assert [(name, layer, basis) for name, layer, _, basis in found] == wanted


MORE_EXACT = {
    ("attention", "kv_write"), ("attention", "rope"), ("experts", "router"),
    *((module, "collective") for module in CODES),
}  # fmt: skip


def test_a_name_is_more_exact_than_its_module_in_these_pairs_and_no_others() -> None:
    codes = {"": -1} | CODES
    for module, whole in codes.items():
        for name, part in codes.items():
            found = most_exact(np.array([whole]), np.array([part])).tolist()
            assert found == [part if (module, name) in MORE_EXACT else whole], (module, name)


@pytest.mark.parametrize(("mark", "basis"), [("aligned", "order"), ("guess", "name")])
def test_what_an_import_placed_by_a_guess_is_one(tmp_path: Path, mark: str, basis: str) -> None:
    launch = event("cuda_runtime", "cudaLaunchKernel", 150, 151, correlation=1)
    rows = [launch, event("kernel", "nothing_known", 300, 400, 7, correlation=1)]
    piece = Piece([step(0, 0, 10_000)], call(ATTENTION, 100, 200), kineto(*rows))
    bundle = Recorded({0: [piece]}, modules=MODULES).assemble(tmp_path / "b")
    assert place_kernels(bundle, 0)["basis"].tolist() == ["range"]
    path, schema = bundle.path / table_file("kernels", 0), TABLES["kernels"].schema
    marked = bundle.frame("kernels", 0).assign(placed_by=mark)
    pq.write_table(pa.Table.from_pandas(marked, schema=schema, preserve_index=False), path)
    found = place_kernels(Bundle(bundle.path), 0)
    assert (found["layer"].tolist(), found["basis"].tolist()) == ([0], [basis])


@each_row("api", ["cudaLaunchKernel", "cudaGraphLaunch"])
@each_row(
    "swapped",
    [{1: "qkv"}, {3: "o_proj"}, {5: "router"}, {1: "qkv", 3: "o_proj"}, {0: "norm"},
     {0: "norm", 1: "qkv", 3: "o_proj", 4: "norm"}],
)  # fmt: skip
def test_swapped_layers_of_a_compiled_model_count_as_what_they_are(
    tmp_path: Path, api: str, swapped: dict[int, str]
) -> None:
    """They are marked, whatever their kernels are called, and two of these are one product."""
    assert [c.holder for c in CALLS if c.whole and c.holder] == ["spark_prof_body"]
    modules, calls, rows, wanted = list(MODULES), list(LAYER_CALLS), [], []
    for index, (launched, row) in enumerate(zip(_compiled_layer(api), PLACED_LAYER, strict=True)):
        rows.append(launched)
        wanted.append(row)
        if index in swapped:
            path = f"model.layers.0.{swapped[index]}.spark_prof_body.run"
            modules.append({"path": path, "type": "", "layer": 0, "component": swapped[index]})
            at = int(launched[0]["args"]["correlation"])
            calls += call(len(modules) - 1, at - 5, at + 20)
            rows[-1] = kernel("somebodys_own", at, at + 5, at, at)
            rows.append(kernel("and_its_sum", at + 6, at + 9, at + 7, at + 7))
            wanted.append(row)
    found = place(tmp_path, rows, calls, COMPILED, modules)
    assert [row[:2] for row in found] == wanted


def test_one_graph_for_the_whole_model_leaves_only_the_names(tmp_path: Path) -> None:
    rows = [
        event("cuda_runtime", "cudaGraphLaunch", 1050, 1060, correlation=1),
        *(event("kernel", name, 2000 + at, 2050 + at, 7, correlation=1)
          for at, name in enumerate((NORM, GEMM, KV_WRITE))),
    ]  # fmt: skip
    found = place(tmp_path / "one", rows, LAYER_CALLS, COMPILED)
    assert [row[:3] for row in found] == [
        ("norm", -1, False), ("other", -1, False), ("kv_write", -1, False),
    ]  # fmt: skip
    (found,) = place(tmp_path / "none", [kernel(NORM, 100, 200, 1, 50)], modules=())
    assert found[:3] == ("norm", -1, False)


TWO_LAYERS = [
    *MODULES[: MODEL + 1],
    *(
        {"path": f"model.layers.{n}.{path}", "type": "", "layer": n, "component": component}
        for n in range(2)
        for path, component in (("self_attn.attn", "attention"), ("mlp.experts", "experts"))
    ),
]
ATTENTIONS, MOES = (4, 6), (5, 7)
GRAPH = [
    ("fused_add_norm", "norm", 0), (GEMM, "qkv", 0), ("rotary", "rope", 0),
    ("attn", "attention", 0), (GEMM, "o_proj", 0), ("fused", "norm", 0), (GEMM, "router", 0),
    ("moe_sort", "experts", 0), ("moe", "experts", 0),
    ("fused", "norm", 1), (GEMM, "qkv", 1), ("rotary", "rope", 1),
    ("attn", "attention", 1), (GEMM, "o_proj", 1), ("fused", "norm", 1), (GEMM, "router", 1),
    ("moe_sort", "experts", 1), ("moe", "experts", 1), ("fused", "norm", -1),
]  # fmt: skip
"""Two layers of a compiled model in the order of its code: name, and where each belongs."""

ATTENTION_AT = [number for number, row in enumerate(GRAPH) if row[0] == "attn"]
CAPTURED_CALLS = [
    *call(MODEL, 0, 2000),
    *(pair for module, at in zip(ATTENTIONS, ATTENTION_AT, strict=True)
      for pair in call(module, 100 * at - 50, 100 * at + 50)),
    *(pair for module, at in zip(MOES, ATTENTION_AT, strict=True)
      for pair in call(module, 100 * (at + 4) - 50, 100 * (at + 5) + 50)),
]  # fmt: skip
"""What was open while node n was created, at 100 n; the last norm still belongs to the model."""


def place_captured(
    tmp_path: Path, rows: Sequence[Any], mode: int, calls: Sequence[tuple[int, int]] = ()
) -> list[tuple[Any, ...]]:
    """Component and layer of each kernel, in order of their correlation and node as captured."""
    piece = Piece([step(0, 0, 10_000)], calls, kineto(*rows))
    recorded = Recorded({0: [piece]}, facts=COMPILED, layers=PRODUCTS, modules=TWO_LAYERS)
    captured = Captured([100 * number + 1 for number in range(len(GRAPH))], CAPTURED_CALLS, mode)
    bundle = captured.assemble(recorded, tmp_path / "b")
    placed = place_kernels(bundle, 0)
    found = bundle.frame("kernels", 0)
    order = (-found["graph_node"]).where(found["graph_node"] > 0, 0).argsort(kind="stable")
    columns = placed[["component", "layer"]].iloc[order]
    return list(columns.itertuples(index=False, name=None))


@each_row("streams", [1, 2])
def test_one_graph_for_the_whole_model_whose_capture_was_seen(tmp_path: Path, streams: int) -> None:
    """On two streams the kernels run in another order than the model's code."""
    numbers = range(len(GRAPH))
    starts = {n: 1000 + 20 * (n if streams == 1 else n ^ 3) for n in numbers}
    rows = [(GRAPH[n][0], n, starts[n], 7 + n % streams) for n in numbers]
    assert place_captured(tmp_path, graph_launch(1, 50, *rows), 2) == [row[1:] for row in GRAPH]
    # A node that was not seen takes no other one's place.
    unseen = ("nothing_known", len(GRAPH) + 5, 990, 7)
    found = place_captured(tmp_path / "unseen", graph_launch(1, 50, *rows, unseen), 2)
    assert found[:-1] == [row[1:] for row in GRAPH]


def test_pieces_of_a_graph_with_attention_in_between(tmp_path: Path) -> None:
    """As vLLM runs PIECEWISE: what lies between two attentions is one graph."""
    rows: list[Any] = []
    calls, first = list(call(MODEL, 0, 9000)), 0
    for number, at in enumerate([*ATTENTION_AT, len(GRAPH)]):
        begin = 1000 * number + 100
        rows += graph_launch(
            2 * number + 1, begin,
            *((GRAPH[n][0], n, begin + 20 * (n - first + 1), 7) for n in range(first, at)),
        )  # fmt: skip
        if at < len(GRAPH):
            calls += call(ATTENTIONS[number], begin + 500, begin + 510)
            # It starts on the device before the graph that was launched before it.
            rows += kernel("attn", begin + 10, begin + 20, 2 * number + 2, begin + 505, stream=8)
        first = at + 1
    found = place_captured(tmp_path, rows, 1, calls)
    attention = [row for row in found if row[0] == "attention"]
    assert sorted(attention) == [("attention", 0), ("attention", 1)]
    graphs = [row[1:] for row in GRAPH if row[1] != "attention"]
    assert [row for row in found if row[0] != "attention"] == graphs
