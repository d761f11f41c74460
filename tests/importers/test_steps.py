"""Which step a launch belongs to, and the alignment of kernel sequences."""

import numpy as np
import pandas as pd
import pytest

from spark_prof.importers.imported_layers import align
from spark_prof.importers.imported_steps import OVERLONG, ImportedSteps, steps_by_graphs
from spark_prof.traces.foreign import IMPOSSIBLE
from tests.importers.traces import window
from tests.rows import each_row


def markers(*rows):
    frame = pd.DataFrame(rows, columns=["name", "start_ns", "end_ns"])
    return frame.assign(name=frame["name"].astype("category"))


def decode(start, end):
    return ("execute_context_0(0)_generation_1(1)", start, end)


def of(steps, *times):
    return steps.of(np.array(times, np.int64)).tolist()


def test_what_vllm_launches_after_its_range_belongs_to_the_step_until_the_next_one():
    steps = ImportedSteps()
    steps.add_markers(markers(decode(100, 110), decode(130, 140)))
    assert of(steps, 99, 100, 110, 129, 130, 140, 159, 160) == [-1, 0, 0, 0, 1, 1, 1, -1]


def test_pytorch_says_itself_where_its_steps_end():
    steps = ImportedSteps()
    steps.add_markers(markers(("ProfilerStep#3", 100, 110), ("ProfilerStep#4", 120, 130)))
    assert of(steps, 105, 115, 125) == [0, -1, 1]
    assert steps.frame()["phase"].tolist() == ["unknown", "unknown"]


def test_the_engine_s_own_ranges_go_before_the_profiler_s():
    steps = ImportedSteps()
    steps.add_markers(markers(("ProfilerStep#3", 0, 1000), decode(100, 110), decode(200, 210)))
    assert len(steps) == 2


def test_of_ranges_that_overlap_the_first_is_kept():
    steps = ImportedSteps()
    steps.add_markers(markers(decode(100, 200), decode(150, 160), decode(200, 250)))
    assert steps.frame()["start_ns"].tolist() == [100, 200]


def test_few_ranges_that_reach_over_several_others_are_left_out():
    steps = ImportedSteps()
    ends = {10: 1500, 20: 2500}
    steps.add_markers(markers(*(decode(100 * n, ends.get(n, 100 * n + 50)) for n in range(30))))
    assert len(steps) == 28
    assert steps.lost == [f"{IMPOSSIBLE} 2 {OVERLONG}"]


def test_steps_may_come_window_by_window():
    whole, parts = ImportedSteps(), ImportedSteps()
    rows = [decode(100 * i, 100 * i + 50) for i in range(10)]
    whole.add_markers(markers(*rows))
    for row in rows:
        parts.add_markers(markers(row))
    pd.testing.assert_frame_equal(whole.frame(), parts.frame())


@pytest.mark.parametrize(
    ("kernels", "count"),
    [
        (["flash_fwd_kernel", "gemm", "flash_fwd_kernel", "norm"], None),
        (["reshape_and_cache_flash_kernel", "flash_fwd_kernel"] * 2, 5),
        (["gemm", "gemm"], None),
    ],
    ids=["a diffusion model", "a decoder", "no attention"],
)
def test_a_graph_is_a_decode_step_only_where_a_cache_is_written(kernels, count):
    rows, launches = [], []
    for graph in range(5):
        begin = 1000 * graph + 100
        launches.append(("cudaGraphLaunch", begin, begin + 5, graph + 1))
        rows += [
            (name, begin, begin + 10 * n + 10, begin + 10 * n + 15, -1, graph + 1)
            for n, name in enumerate(kernels)
        ]
    steps = steps_by_graphs(window(rows, launches=launches))
    assert (steps and len(steps)) == count


@each_row("seed", range(10))
def test_what_was_left_out_has_no_partner_and_the_rest_has_its_own(seed):
    random = np.random.default_rng(seed)
    names = [f"kernel_{chr(97 + i)}" for i in random.integers(0, 26, 120)]
    kept = np.sort(random.choice(120, 90, replace=False))
    partner = align([names[i] for i in kept], names)
    assert (partner >= 0).all()
    assert (np.diff(partner) > 0).all()
    assert [names[i] for i in partner] == [names[i] for i in kept]


def test_products_of_other_tile_sizes_are_partners():
    eager = ["nvjet_sm90_tst_64x8_64x16_4x1_v_bz_bias_TNT", "_topk_forward"]
    graph = ["nvjet_sm90_tst_512x8_64x3_2x1_v_bz_TNT", "_topk_forward"]
    assert align(graph, eager).tolist() == [0, 1]


def test_what_a_compiler_fused_stands_for_a_norm():
    eager = ["void vllm::rms_norm_kernel<c10::BFloat16>(int)", "_topk_forward"]
    assert align(["triton_red_fused_fused_add_rms_norm_0", "_topk_forward"], eager).tolist() == [
        0,
        1,
    ]


def test_what_adds_up_a_split_product_is_no_product():
    product = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT"
    rest = "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(int)"
    assert align([product, rest, product], [product, product]).tolist() == [0, -1, 1]
    assert align([product, rest], [product, rest]).tolist() == [0, 1]
