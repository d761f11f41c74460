"""Layers out of what repeats, and where nothing does."""

import numpy as np
import pandas as pd
import pytest

from spark_prof.importers.repeats import guess_layers
from spark_prof.vocabulary import COMPONENTS

GEMM = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
REST = "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(int)"
ATTENTION = "flash_fwd_splitkv_kernel"
WRITE = "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(int)"
NORM = "void vllm::rms_norm_kernel<c10::BFloat16>(int)"
EXPERTS = "_matmul_ogs_swiglu"
LAYER = [NORM, GEMM, "rope_kernel", WRITE, ATTENTION, GEMM, NORM, GEMM, EXPERTS]
DENSE = [NORM, GEMM, "rope_kernel", WRITE, ATTENTION, GEMM, NORM, GEMM, "silu_kernel", GEMM]
LOGITS = "void deep_gemm::sm90_fp8_paged_mqa_logits<1u, 64u>(unsigned int)"
MLA = "void flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576> >(int)"
FOREACH = (
    "void at::native::multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<long> >(int)"
)


def guess(*steps, graph=None, generates=False, phases=None):
    """Component and layer of each kernel, and the notes."""
    names = [name for step in steps for name in step]
    number = np.repeat(np.arange(len(steps)), [len(step) for step in steps])
    phase = np.array(phases or ["decode"] * len(steps), object)[number]
    kernels = pd.DataFrame({"name": pd.Categorical(names), "step": number, "phase": phase})
    inside = np.zeros(len(names), bool) if graph is None else np.array(graph)
    found = guess_layers(kernels, np.full(len(names), -1), inside, generates)
    words = np.array([*COMPONENTS, ""])[found.component]
    return list(zip(words.tolist(), found.layer.tolist(), strict=True)), found.notes


def layers(found):
    return {layer for _, layer in found}


def test_a_layer_is_what_lies_around_one_attention():
    found, notes = guess(LAYER * 3 + [NORM, GEMM, "argmax_kernel"])
    for layer in range(3):
        mine = found[9 * layer : 9 * layer + 9]
        assert [place for _, place in mine] == [layer] * 9
        assert [name for name, _ in mine] == [
            "norm", "qkv", "rope", "kv_write", "attention", "o_proj", "norm", "router", "experts",
        ]  # fmt: skip
    assert found[28] == ("lm_head", -1)
    assert notes == ()


def test_what_adds_up_a_split_product_goes_with_it_and_is_no_product_of_its_own():
    layer = [part for name in LAYER for part in ([name, REST] if name == GEMM else [name])]
    found, notes = guess(layer * 3 + [NORM, GEMM, REST, "argmax_kernel"])
    words = ["norm", "qkv", "qkv", "rope", "kv_write", "attention", "o_proj", "o_proj", "norm",
             "router", "router", "experts"]  # fmt: skip
    for number in range(3):
        assert found[12 * number : 12 * number + 12] == [(word, number) for word in words]
    assert found[37] == ("lm_head", -1)
    assert notes == ()


REDUCE = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, int)"


def test_a_collective_is_of_the_layer_that_it_serves():
    layer = [*LAYER[:6], REDUCE, *LAYER[6:], REDUCE]
    found, notes = guess([REDUCE, *layer * 3, NORM, GEMM, "argmax_kernel"])
    for number in range(3):
        mine = found[1 + 11 * number : 12 + 11 * number]
        assert [place for _, place in mine] == [number] * 11
        assert [name for name, _ in mine] == [
            "norm", "qkv", "rope", "kv_write", "attention", "o_proj", "collective", "norm",
            "router", "experts", "collective",
        ]  # fmt: skip
    assert found[0] == ("collective", -1)
    assert notes == ()


def test_a_dense_model_after_a_dense_first_layer_of_a_mixture():
    found, notes = guess(DENSE + LAYER * 3 + [NORM, GEMM])
    assert [name for name, _ in found[5:10]] == ["o_proj", "norm", "mlp", "mlp", "mlp"]
    assert [layer for _, layer in found[:-2]] == [0] * 10 + [1] * 9 + [2] * 9 + [3] * 9
    assert found[-1] == ("lm_head", -1)
    assert notes == ()


def test_an_own_product_for_each_of_q_k_and_v_is_no_mlp():
    layer = [NORM, GEMM, GEMM, GEMM, WRITE, ATTENTION, GEMM, NORM, GEMM, GEMM, GEMM]
    found, _ = guess(layer * 4 + [NORM, GEMM])
    for number in range(4):
        assert found[11 * number + 1 : 11 * number + 4] == [("qkv", number)] * 3
        assert found[11 * number + 8 : 11 * number + 11] == [("mlp", number)] * 3
    assert found[-1] == ("lm_head", -1)


def test_the_indexer_of_a_sparse_attention_is_no_attention():
    """DeepSeek-V3.2 and GLM-5: 78 layers, of which 21 choose tokens, are not 99."""
    before = [NORM, GEMM, GEMM, NORM, "void vllm::concat_and_cache_mla_kernel<bf16>(int)"]
    index = [GEMM, LOGITS, "void vllm::topKPerRowDecode<512, true>(float const*)"]
    after = [GEMM, MLA, GEMM, GEMM, NORM, GEMM, EXPERTS]
    chosen = {n for n in range(78) if n % 4 == 0 or n == 77}
    assert len(chosen) == 21
    step = [k for n in range(78) for k in before + (index if n in chosen else []) + after]
    found, notes = guess(step, step)
    assert layers(found) == {-1, *range(78)}
    attention = [layer for name, (_, layer) in zip(step * 2, found, strict=True) if name == MLA]
    assert attention == [*range(78)] * 2
    # MLA's products are in another order, so what lies between has no layer but for experts.
    loose = [row for name, row in zip(step * 2, found, strict=True) if name in (GEMM, NORM)]
    assert {layer for _, layer in loose} == {-1}
    assert {name for name, _ in loose} == {"", "norm"}
    assert any("not in the order of a plain decoder" in note for note in notes)


def test_a_single_layer_that_deviates_has_no_place():
    odd = [*LAYER[:7], GEMM, *LAYER[7:]]
    found, notes = guess(LAYER * 10 + odd + LAYER * 10)
    rows = found[90:]
    assert [layer for _, layer in rows[:5]] == [10] * 5
    # What follows its attention, up to the next one, is not known; all others are.
    assert {layer for _, layer in rows[5:14]} == {-1}
    assert [layer for _, layer in rows[14:19]] == [11] * 5
    assert [sum(layer == n for _, layer in found) for n in range(21)] == [
        9 if n not in (10, 11) else 5 for n in range(21)
    ]  # fmt: skip
    assert any("1 of 21 layers deviate" in note for note in notes)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        pytest.param([[GEMM] * 9], "no kernel is an attention", id="no attention"),
        pytest.param([LAYER], "same number of attentions", id="one layer"),
        pytest.param([["_chunk_scan_fwd_kernel", *LAYER * 3]], "Mamba", id="a hybrid"),
        pytest.param([["a", "b"]], "no kernel is an attention", id="nothing known"),
        pytest.param([LAYER * 4 + ["flash_bwd_dq_dk_dv_kernel"]], "training", id="gradients"),
        pytest.param(
            [LAYER * 4 + ["void cutlass::device_kernel<flash::FlashAttnBwd<int> >(int)"]],
            "training",
            id="gradients of FlashAttention 3",
        ),
        pytest.param(
            [LAYER * 4 + ["multi_tensor_apply_kernel<FusedAdamMathFunctor<float> >"]], "training",
            id="an optimizer",
        ),
        pytest.param(
            [[GEMM, ATTENTION, GEMM, NORM, GEMM, GEMM, NORM] * 12], "no KV cache", id="an encoder"
        ),
        pytest.param(
            [[NORM, GEMM, ATTENTION, GEMM, NORM, GEMM, GEMM] * 24
             + [NORM, NORM, GEMM, GEMM, ATTENTION, GEMM, GEMM, GEMM, GEMM] * 38],
            "no KV cache", id="a text encoder before a diffusion transformer",
        ),
        pytest.param(
            [[*LAYER, *LAYER[:7], GEMM, *LAYER[7:]] * 8], "does not repeat", id="every other odd"
        ),
        pytest.param(
            [LAYER * 16 + [WRITE, ATTENTION, GEMM, *LAYER]], "does not repeat",
            id="an attention inside a layer",
        ),
        pytest.param(
            [LAYER * 3, LAYER * 2, LAYER * 3, LAYER * 2, LAYER * 3, LAYER * 3],
            "same number of attentions", id="steps of one phase with different numbers",
        ),
    ],
)  # fmt: skip
def test_what_does_not_repeat_as_layers_has_none_and_says_why(steps, reason):
    found, notes = guess(*steps)
    assert layers(found) == {-1}
    assert len(notes) == 1
    assert notes[0].startswith("no layers: ")
    assert reason in notes[0]


def test_copies_of_many_tensors_are_no_training():
    """SGLang's decode fills its buffers with `_foreach_copy_`."""
    found, _ = guess([FOREACH, *LAYER * 36])
    assert layers(found) == {-1, *range(36)}
    assert [layer for _, layer in found].count(-1) == 1


def test_an_engine_that_says_that_it_generates_needs_no_kernel_that_writes_a_cache():
    step = [name for name in LAYER if name != WRITE] * 4
    assert layers(guess(step)[0]) == {-1}
    assert layers(guess(step, generates=True)[0]) == {0, 1, 2, 3}


def test_attention_and_mlp_side_by_side_are_counted_but_not_placed():
    """Falcon and Cohere: one norm for both."""
    found, notes = guess([NORM, GEMM, WRITE, ATTENTION, GEMM, GEMM, GEMM] * 8)
    assert layers(found[3::7]) == set(range(8))
    assert {row for row in found if row[0] in ("", "o_proj", "mlp", "qkv")} == {("", -1)}
    assert any("plain decoder" in note for note in notes)


def test_a_cut_step_at_the_end_stays_unplaced():
    found, notes = guess(LAYER * 3, LAYER * 3, LAYER * 2)
    assert layers(found[54:]) == {-1}
    assert layers(found[:54]) == {0, 1, 2}
    assert any("1 steps have no layers" in note for note in notes)


def test_a_phase_whose_steps_disagree_stays_unplaced_alone():
    steps = [LAYER * 3] * 5 + [LAYER * 3, LAYER * 2] * 2 + [LAYER * 3]
    found, _ = guess(*steps, phases=["decode"] * 5 + ["prefill"] * 4 + ["decode"])
    assert layers(found[: 5 * 27]) == layers(found[-27:]) == {0, 1, 2}
    assert layers(found[5 * 27 : -27]) == {-1}


def test_what_ran_outside_the_model_s_graph_has_no_layer():
    step = ["slots_kernel", ATTENTION, *LAYER * 2, GEMM]
    found, _ = guess(step, graph=[False, False, *[True] * 18, False])
    assert [layer for _, layer in found[:2]] == [-1, -1]
    assert [layer for _, layer in found[2:20]] == [0] * 9 + [1] * 9
