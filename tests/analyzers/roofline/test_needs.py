"""Bytes and operations of single pieces of work, by hand, and what they are held against."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers.counters.counter_batches import CounterBatch, CounterRow, Counters
from spark_prof.analyzers.roofline.device_ceilings import ceilings_of
from spark_prof.analyzers.roofline.needs import (
    ModelShape,
    StepLoad,
    attention,
    elementwise,
    reading,
    shape_of,
    state,
)
from spark_prof.analyzers.roofline.roofline_rows import Place, RooflineRow
from spark_prof.analyzers.roofline.rows import by_sampling, by_single_kernels, together
from spark_prof.analyzers.roofline.weight_bytes import Weights
from spark_prof.traces.measured import DeviceState, MeasuredMachine, Measurement
from tests.rows import each_row

GPT_OSS = {
    "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "num_hidden_layers": 4, "num_local_experts": 128, "num_experts_per_tok": 4,
    "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip


def test_heads_and_windows_of_a_model() -> None:
    shape = shape_of({"model_config": GPT_OSS, "dtype": "bfloat16"})
    assert (shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == (2880, 64, 8, 64)
    assert shape.kv_elements == 2 * 8 * 64
    assert [shape.window(layer) for layer in (-1, 0, 1, 2, 3, 4)] == [0, 128, 0, 128, 0, 0]


def test_latent_attention_is_counted_as_the_ceilings_of_a_checkpoint_count_it() -> None:
    sparse = {
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "num_hidden_layers": 2,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 64,
    }
    shape = shape_of({"model_config": sparse, "parallel": {"tensor": 4}, "dtype": "bfloat16"})
    assert (shape.kv_elements, shape.windows) == (512 + 64, (2048, 2048))
    # A score over latent and position, a sum over the latent alone.
    assert shape.pair_operations == 2 * 32 * (512 + 64 + 512)


@each_row(
    ("parallel", "here", "surely"),
    [
        ({"tensor": 4}, 128, 4), ({"tensor": 4, "whole": True}, 32, 0),
        ({"tensor": 1, "data": 2, "whole": True}, 64, 0), ({"whole": True}, 128, 4),
    ],
)  # fmt: skip
def test_experts_of_a_rank_that_a_token_surely_hits(
    parallel: dict[str, int], here: int, surely: int
) -> None:
    engine = {"parallel_config": {"enable_expert_parallel": parallel.get("whole", False)}}
    facts = {"model_config": GPT_OSS, "parallel": parallel, "engine_config": engine}
    shape = shape_of(facts)
    assert (shape.experts_here, shape.surely_chosen) == (here, surely)


SHAPE = ModelShape(hidden=2048, heads=32, kv_heads=4, head_dim=128, kv_elements=2 * 4 * 128,
              pair_operations=4 * 32 * 128, experts=128, chosen=8, windows=(0, 128),
              state_bytes=1000.0)  # fmt: skip
ONE = StepLoad(tokens=1, requests=1, sampled=1, context=500)


def weights(component: str, size: int, elements: int) -> Weights:
    return Weights(component, 0, "w", size, elements, "bfloat16")


def test_a_product_reads_its_weights_once_and_its_activations_each_token() -> None:
    qkv = weights("qkv", 20_971_520, 5120 * 2048)
    for tokens in (1, 7, 64):
        need = reading(qkv, StepLoad(tokens, tokens, tokens, 0), SHAPE).need
        assert need.streamed == 20_971_520
        assert need.other == tokens * (2048 + 5120) * 2
        assert need.operations == 2 * tokens * 5120 * 2048


def test_one_token_reads_its_experts_and_more_may_read_the_same() -> None:
    whole = 128 * 1_000_000
    all_of_them = weights("experts", whole, 128 * 768 * 2048)
    one = reading(all_of_them, ONE, SHAPE).need
    assert one.streamed == pytest.approx(8 * 1_000_000)
    assert (one.part, one.expected) == ("8 of 128 experts", False)
    assert one.operations == 2 * 8 * 768 * 2048
    four = reading(all_of_them, StepLoad(4, 4, 4, 0), SHAPE).need
    assert four.streamed == one.streamed
    assert (four.part, four.expected) == ("at least 8 of 128 experts", True)
    assert four.operations == 4 * one.operations
    # Dealt out to ranks, a token may be sent to experts of others only.
    local = replace(SHAPE, expert_ranks=4)
    quarter = weights("experts", whole // 4, 32 * 768 * 2048)
    apart = reading(quarter, ONE, local).need
    assert (apart.streamed, apart.operations, apart.expected) == (0.0, 0.0, True)
    assert apart.part == "at least 0 of 32 experts"


def test_no_routing_needs_less_than_the_bound() -> None:
    """Whatever a router chooses, its tokens hit at least as many experts of a rank as counted."""
    random = np.random.default_rng(0)
    for _ in range(300):
        ranks, tokens, each = (int(n) for n in random.integers(1, (4, 9, 9)))
        experts = ranks * each
        chosen = int(random.integers(1, experts + 1))
        shape = replace(SHAPE, experts=experts, chosen=chosen, expert_ranks=ranks)
        own = weights("experts", each, each * 2048)
        sent = [random.choice(experts, chosen, replace=False) for _ in range(tokens)]
        hit = {expert for one in sent for expert in one.tolist() if expert < each}
        need = reading(own, StepLoad(tokens, tokens, tokens, 0), shape).need
        assert need.streamed <= len(hit) + 1e-9
        assert need.expected or need.streamed == pytest.approx(len(hit))


def test_the_head_works_for_sampled_tokens_only() -> None:
    load = StepLoad(tokens=512, requests=1, sampled=1, context=0)
    prompt = reading(weights("lm_head", 1000, 1000 * 2048), load, SHAPE).need
    assert prompt.operations == 2 * 1000 * 2048
    assert prompt.other == 2048 * 2 + 1000 * 4


@each_row(
    ("layer", "load", "read", "pairs"),
    [
        (0, StepLoad(3, 3, 3, 500), 3 * 501, 3 * 501),
        # A window bounds what is read.
        (1, StepLoad(1, 1, 1, 100), 101, 101),
        (1, StepLoad(1, 1, 1, 100_000), 128, 128),
        # A prompt's tokens see themselves and those before.
        (0, StepLoad(100, 1, 1, 0), 100, 100 * 101 / 2),
    ],
)
def test_attention(layer: int, load: StepLoad, read: int, pairs: float) -> None:
    found, written = attention(layer, load, SHAPE)
    assert found.need.streamed == read * (2 * 4 * 128) * 2
    assert found.need.operations == pytest.approx(2 * pairs * 32 * 2 * 128)
    assert written.need.other == load.tokens * 2 * 4 * 128 * (2 + 2)
    assert ("128 tokens" in found.name) is (layer == 1)


def test_the_recurrent_state_of_each_request_is_read_and_written() -> None:
    need = state(0, StepLoad(tokens=16, requests=8, sampled=16, context=10_000), SHAPE).need
    assert (need.streamed, need.other) == (8000, 8000)


def test_small_kernels_have_activations_or_nothing() -> None:
    five = StepLoad(5, 5, 5, 0)
    norm = elementwise("norm", 0, five, SHAPE, norms=2)
    assert norm is not None
    # Read and written: the stream and the residual, for each of two norms.
    assert norm.need.other == 5 * 2 * 2 * 2 * 2048 * 2
    assert elementwise("sampler", -1, five, SHAPE) is None
    assert elementwise("norm", 0, five, ModelShape()) is None


GEMM = Place("qkv", "self_attn.qkv_proj", "gemm")


def counters(tokens: int, read: float | None) -> Counters:
    row = CounterRow("gemm", "qkv", 24.0, 10.0, read, None, None, None, None, None, None, None, 1.0)
    batch = CounterBatch(tokens, 30, True, 0.0, 1.0, None, (row,), ())
    return Counters(2.0, 1000, 1e6, (batch,), (), ())


def test_sampled_bytes_belong_to_steps_of_the_same_size() -> None:
    needed = {1: {GEMM: 24 * 1000.0}, 4: {GEMM: 48 * 1000.0}}
    others = [Place("mlp", "", "gemm"), Place("qkv", "", "norm")]
    ((place, found),) = by_sampling(counters(4, 2600.0), needed, [*others, GEMM]).items()
    assert place == GEMM
    assert (found.read, found.streamed, found.by) == (2600.0, 2000.0, "PM sampling")
    assert by_sampling(counters(2, 2600.0), needed, [GEMM]) == {}
    assert by_sampling(counters(1, None), needed, [GEMM]) == {}
    assert by_sampling(None, needed, [GEMM]) == {}
    # Counters do not tell which of a kernel's roles read how much, needed or not.
    assert by_sampling(counters(4, 2600.0), needed, [GEMM, GEMM._replace(role="")]) == {}


def metrics(*rows: tuple[str, str, float, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["name", "metric", "value", "unit"])


def test_nsight_compute_s_units_are_decimal() -> None:
    rows = [
        ("void f<128, 1>(T1)", "dram__bytes_read.sum", value, unit)
        for value, unit in ((2.0, "Mbyte"), (4e6, "byte"), (3e3, "Kbyte"), (0.003, "Gbyte"))
    ]
    needed = {GEMM._replace(name="void ns::f<(int)128, true>(int)"): 1e6}
    (found,) = by_single_kernels(metrics(*rows), needed).values()
    assert found.read == pytest.approx(3e6)
    assert (found.streamed, found.by) == (1e6, "Nsight Compute")


def test_what_does_not_tell_is_left_out() -> None:
    needed = {
        Place(*place): 1.0
        for place in (("qkv", "", "f"), ("o_proj", "", "g"), ("mlp", "", "g"),
                      ("experts", "mlp.experts.w13", "h"), ("experts", "mlp.experts.w2", "h"))
    }  # fmt: skip
    rows = metrics(
        ("f", "dram__bytes_read.sum", float("nan"), "byte"),
        ("f", "dram__bytes_read.sum", 5.0, "furlong"),
        ("f", "dram__bytes_write.sum", 5.0, "byte"),
        ("g", "dram__bytes_read.sum", 5.0, "byte"),
        ("h", "dram__bytes_read.sum", 5.0, "byte"),
    )
    assert by_single_kernels(rows, needed) == {}
    assert by_single_kernels(rows.iloc[:0], needed) == {}


H100 = "NVIDIA H100 80GB HBM3"
MEASURED = MeasuredMachine(
    device=H100,
    taken="2026-11-21T10:00:00+00:00",
    measurements=(
        Measurement("read", 2.9e12, "B/s", 2.8e12, 3.0e12, 20, "a reader"),
        Measurement("bf16", 7e14, "op/s", 7e14, 7e14, 20, "torch.mm"),
        Measurement("launch_graph", 1.2e-6, "s", 1e-6, 2e-6, 20, "empty kernels"),
    ),
    after=DeviceState(sm_mhz=1755, throttled=("power cap",)),
)


def test_what_was_measured_here_goes_first_and_says_when() -> None:
    found = ceilings_of(H100, "9.0", MEASURED)
    assert found.bandwidth is not None
    assert "2026-11-21" in found.bandwidth.source
    assert found.data_sheet is not None
    assert (found.bandwidth.value, found.data_sheet.value) == (2.9e12, 3.35e12)
    assert found.peak("bf16") == 7e14
    # A precision that was not measured keeps the printed peak.
    assert found.peak("fp8") == pytest.approx(1978.9e12)
    assert found.smallest_kernel_us == pytest.approx(1.2)
    assert "1755 MHz" in found.clocks


def test_an_unknown_device_has_ceilings_only_if_it_was_measured() -> None:
    assert ceilings_of("AMD EPYC", None).bandwidth is None
    measured = MeasuredMachine("AMD EPYC", "2026", MEASURED.measurements)
    found = ceilings_of("AMD EPYC", None, measured)
    assert found.data_sheet is None
    assert found.bandwidth is not None
    assert found.bandwidth.value == 2.9e12


@each_row(
    ("cache", "dtype", "width"),
    [("fp8", "", 1), ("fp8_e4m3", "bfloat16", 1), ("int8", "", 1), ("int8_per_token_head", "", 1),
     ("auto", "bfloat16", 2), ("auto", "float32", 4), ("bfloat16", "float32", 2),
     ("float32", "bfloat16", 4)],
)  # fmt: skip
def test_bytes_of_an_element_in_the_kv_cache(cache: str, dtype: str, width: int) -> None:
    engine = {"cache_config": {"cache_dtype": cache}}
    facts = {"model_config": GPT_OSS, "dtype": dtype, "engine_config": engine}
    assert shape_of(facts).kv_bytes == width


def test_of_several_roles_the_weakest_basis_is_told() -> None:
    one = RooflineRow("k", "qkv", 2.0, 8.0, 100.0, 100.0, 0.0, "w", "w", False, None, None, None,
                      1.0, "memory", 6.0, None, role="q_proj", owner_basis="weight")  # fmt: skip
    other = replace(
        one, calls=6.0, step_us=48.0, needed_bytes=None, role="k_proj", owner_basis="order"
    )
    for rows in ((one, other), (other, one)):
        [found] = together(rows).values()
        assert (found.owner_basis, found.role) == ("order", "k_proj")
        assert (found.calls, found.us, found.needed_bytes) == (8.0, 7.0, 25.0)
