"""What collectives serve: in captured graphs, where no module was open at their launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.summary import summarize
from spark_prof.datasets.opened import opened
from spark_prof.vocabulary import EXCHANGES
from tests.analyzers.attribution.memory import (
    PACKED,
    STRUCT,
    Line,
    Memory,
    calls_of_lines,
    placed_lines,
)
from tests.rows import each_row

SHARED = Path(__file__).resolve().parents[4] / "shared/traces/bundles"
TWO_RANKS = SHARED / "tp2-qwen3-30b-nvfp4-vllm033-h200.zip"

GEMM = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
SPLIT = "void cublasLt::splitKreduce_kernel<32, 16, int, float>(int)"
FILL = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIiEESt5arrayEEvv"
REDUCE = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, int)"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
DISPATCH = "void deep_ep::intranode::dispatch<(int)2, (int)768, (int)8192>(int4 *, float *)"
FUSED = (
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport"
    "<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 2, true>"
    "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionParams<__nv_bfloat16>)"
)

O_PROJ = {n: f"model.layers.{n}.self_attn.o_proj" for n in range(4)}
DOWN = {n: f"model.layers.{n}.mlp.down_proj" for n in range(4)}
NORM = {n: f"model.layers.{n}.post_attention_layernorm" for n in range(4)}
OPEN = [
    *({"path": path, "type": "", "layer": -1, "component": component}
      for path, component in (("step.prepare", "attention"), ("step.finish", "lm_head"),
                              ("step.sample", "sampler"), ("model", ""))),
    {"path": "model.layers.1.mlp.experts", "type": "", "layer": 1, "component": "experts"},
    {"path": "model.layers.1.self_attn.attn", "type": "", "layer": 1, "component": "attention"},
]  # fmt: skip
EXPERTS, ATTENTION = 4, 5


def memory() -> Memory:
    found = Memory()
    for weight in (*O_PROJ.values(), *DOWN.values()):
        found.add(weight)
    for weight in NORM.values():
        found.add(weight, shape="32")
    return found


def product(layer: int, holds: str = "", weights: dict[int, str] = O_PROJ, stream: int = 7) -> Line:
    role = weights[layer].partition(f"layers.{layer}.")[2]
    component = "o_proj" if weights is O_PROJ else "mlp"
    return Line(GEMM, (weights[layer],), holds, (component, layer, "weight", role), PACKED, stream)


def served(layer: int, name: str = REDUCE, holds: str = "", role: str = "self_attn.o_proj",
           basis: str = "stream", kind: str = "all_reduce", stream: int = 7) -> Line:  # fmt: skip
    text = f"{role}{EXCHANGES}{kind}" if role else kind
    return Line(name, (), holds, ("collective", layer, basis, text), stream=stream)


def norm(layer: int, holds: str) -> Line:
    place = ("norm", layer, "weight", "post_attention_layernorm")
    return Line("triton_red_fused_rms_norm_0", (NORM[layer],), holds, place)


def check(folder: Path, lines: Sequence[Line], modules: Sequence[int | None] = ()) -> None:
    """Of lines that were captured while those modules were open, each is placed as it says."""
    found = placed_lines(folder, memory(), lines, OPEN, calls_of_lines(modules))
    assert found == [line.place for line in lines]


FROM_O_PROJ = ("o_proj", 1, "flow", "self_attn.o_proj")


@each_row(
    ("what", "lines"),
    [
        ("what ran right before it, though its output lay in another layer's memory",
         [product(0, "a"), product(1, "b"), served(1, holds="a"), norm(1, "a")]),
        ("its reader reads what it serves, and is no collective",
         [product(1, "b"), served(1, holds="c"), Line("some_kernel", (), "c", FROM_O_PROJ)]),
        ("what adds up the parts of the product, and what fills memory, hides nothing",
         [product(1, "b"), Line(SPLIT, (), "b", FROM_O_PROJ), served(1, holds="c"),
          Line(FILL, (), "d", ("norm", 2, "flow", "post_attention_layernorm")),
          served(1, holds="c"), norm(2, "d")]),
        ("two in a row serve the same",
         [product(1, weights=DOWN), served(1, SCATTER, role="mlp.down_proj",
                                           kind="reduce_scatter"),
          served(1, GATHER, role="mlp.down_proj", kind="all_gather")]),
        ("data has told the owner of what ran before it",
         [product(1, "b"), Line("some_kernel", (), "b c", FROM_O_PROJ), served(1, basis="flow")]),
        ("an unknown kernel may be what it serves; its layer is the one around it",
         [product(1), Line("some_kernel", (), "", ("other", -1, "none", "")),
          served(1, role="", basis="flow"), norm(1, "a")]),
        ("between two layers not even that is known, and it takes nothing from others' data",
         [product(1, "b"), Line("some_kernel", (), "", ("other", -1, "none", "")),
          served(-1, holds="b", role="", basis="name"), norm(2, "a")]),
        ("nothing ran before it", [served(-1, role="", basis="name"), product(1)]),
        ("NCCL's own stream tells nothing, what was launched before it does",
         [product(0), served(0, NCCL, basis="flow", stream=20),
          product(1), served(1, NCCL, basis="flow", stream=20)]),
        ("what another stream does meanwhile is not what it serves",
         [product(1), product(1, weights=DOWN, stream=9), served(1)]),
        ("a stream that was last used for another layer is none of its own",
         [product(0, stream=20), product(1), product(2),
          served(2, NCCL, basis="flow", stream=20)]),
    ],
)  # fmt: skip
def test_what_a_collective_serves(tmp_path: Path, what: str, lines: list[Line]) -> None:
    assert what
    check(tmp_path, lines)


def fused(layer: int, place: tuple[str, int, str, str], style: str = STRUCT) -> Line:
    return Line(FUSED, (NORM[layer],), "a", place, style)


@pytest.mark.parametrize("style", ["pointer", STRUCT])
def test_one_that_norms_as_well_is_of_what_it_serves(tmp_path: Path, style: str) -> None:
    """The norm that is fused with it may be the next layer's; what fills memory for it is not."""
    norms = "all_reduce + post_attention_layernorm"
    zeros = Line("triton_poi_fused_zeros_like_0", (), "a",
                 ("norm", 1, "flow", "post_attention_layernorm"))  # fmt: skip
    lines = [
        product(0, weights=DOWN),
        zeros,
        fused(1, ("collective", 0, "stream", f"mlp.down_proj → {norms}"), style),
        product(1),
        fused(2, ("collective", 1, "stream", f"self_attn.o_proj → {norms}"), style),
    ]
    check(tmp_path, lines)


def test_a_norm_alone_tells_the_layer_where_nothing_else_does(tmp_path: Path) -> None:
    lines = [
        Line("some_kernel", (), "", ("other", -1, "none", "")),
        fused(1, ("collective", 1, "weight", "all_reduce + post_attention_layernorm")),
        product(1),
        fused(2, ("collective", 1, "stream",
                  "self_attn.o_proj → all_reduce + post_attention_layernorm")),
    ]  # fmt: skip
    check(tmp_path, lines)


def test_a_collective_works_on_no_matrix(tmp_path: Path) -> None:
    """What lies in NCCL's struct of 4,096 bytes was left there."""
    stale = [replace(served(n, NCCL), reads=(DOWN[n],), style=STRUCT) for n in (1, 2)]
    check(tmp_path, [product(1), stale[0], product(2), stale[1]])


def test_an_open_module_says_what_it_serves(tmp_path: Path) -> None:
    """Also of one between two: DeepEP's dispatch comes before what it serves."""
    lines = [
        product(1),
        served(1, DISPATCH, role="mlp.experts", basis="range", kind="dispatch"),
        served(1, GATHER, role="self_attn.attn", basis="range", kind="all_gather"),
    ]
    check(tmp_path, lines, [None, EXPERTS, ATTENTION])


def test_all_layers_run_the_same_collectives(tmp_path: Path) -> None:
    """Their outputs take four buffers in turn, as vLLM's custom all-reduce has them."""
    lines = [
        line
        for n in range(4)
        for line in (product(n, "x"), served(n, holds="abcd"[n]), norm(n, "abcd"[n]),
                     product(n, "y", DOWN),
                     served(n, holds="bcda"[n], role="mlp.down_proj"))
    ]  # fmt: skip
    check(tmp_path, lines)


@pytest.mark.slow
@pytest.mark.skipif(not TWO_RANKS.exists(), reason=f"{TWO_RANKS} is not there")
@pytest.mark.parametrize("rank", [0, 1])
def test_two_ranks_are_known_as_one_is(rank: int) -> None:
    with opened(str(TWO_RANKS)) as source:
        found = summarize(source, rank)
        placed = place_kernels(source, rank)
        steps = source.frame("steps", rank, ["step", "phase"]).set_index("step")["phase"]
    assert found.coverage.proven >= 0.95
    assert found.coverage.proven + found.coverage.derived >= 0.99
    assert not found.failed("layers-")
    assert not any("capture was not seen" in note for note in found.notes)
    decode = placed[placed["step"].map(steps.astype(str)) == "decode"]
    exchanged = decode[decode["component"] == "collective"]
    wanted = {"embed_tokens → all_reduce": {-1}, "logits_processor → all_gather": {-1},
              "self_attn.o_proj → all_reduce": set(range(48)),
              "mlp.experts → all_reduce": set(range(48))}  # fmt: skip
    assert {
        role: set(rows["layer"]) for role, rows in exchanged.groupby("role", observed=True)
    } == wanted
    calls = exchanged.groupby(["role", "layer"], observed=True).size()
    assert set(calls) == {decode["step"].nunique()}
