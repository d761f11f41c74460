"""Layers out of what repeats."""

import numpy as np
import pandas as pd
import pytest

from spark_prof.importers.repeats import guess_layers
from spark_prof.vocabulary import COMPONENTS

GEMM = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
ATTENTION = "flash_fwd_splitkv_kernel"
NORM = "void vllm::rms_norm_kernel<c10::BFloat16>(int)"
LAYER = [NORM, GEMM, "rope_kernel", ATTENTION, GEMM, NORM, GEMM, "_matmul_ogs_swiglu"]


def guess(*steps, graph=None):
    names = [name for step in steps for name in step]
    number = np.repeat(np.arange(len(steps)), [len(step) for step in steps])
    kernels = pd.DataFrame({"name": pd.Categorical(names), "step": number})
    inside = np.zeros(len(names), bool) if graph is None else np.array(graph)
    found = guess_layers(kernels, np.full(len(names), -1), inside)
    if found is None:
        return None
    component, layer = found
    words = np.array([*COMPONENTS, ""])[component]
    return list(zip(words.tolist(), layer.tolist(), strict=True))


def test_a_layer_is_what_lies_around_one_attention():
    found = guess(LAYER * 3 + [NORM, GEMM, "argmax_kernel"])
    for layer in range(3):
        mine = found[8 * layer : 8 * layer + 8]
        assert [place for _, place in mine] == [layer] * 8
        assert [name for name, _ in mine] == [
            "norm", "qkv", "rope", "attention", "o_proj", "norm", "router", "experts",
        ]  # fmt: skip
    assert found[25] == ("lm_head", -1)


def test_steps_of_another_number_of_layers_stay_unplaced():
    found = guess(LAYER * 3, LAYER * 3, LAYER * 2)
    assert {layer for _, layer in found[48:]} == {-1}
    assert {layer for _, layer in found[:48]} == {0, 1, 2}


@pytest.mark.parametrize(
    "steps", [[[GEMM] * 9], [LAYER], [["_chunk_scan_fwd_kernel", *LAYER * 3]], [["a", "b"]]]
)
def test_what_does_not_repeat_as_layers_is_no_guess(steps):
    assert guess(*steps) is None


def test_what_ran_outside_the_model_s_graph_has_no_layer():
    step = ["slots_kernel", ATTENTION, *LAYER * 2, GEMM]
    found = guess(step, graph=[False, False, *[True] * 16, False])
    assert [layer for _, layer in found[:2]] == [-1, -1]
    assert [layer for _, layer in found[2:18]] == [0] * 8 + [1] * 8
