"""What a step reads, and what changes of format make of it, of tiny models."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from spark_prof.analyzers.ceilings.ceiling_rows import (
    Architecture,
    CeilingStep,
    FormatWeights,
    Question,
    SequenceState,
    WeightsOfModel,
)
from spark_prof.analyzers.ceilings.checkpoint_ceilings import (
    CHANGES,
    ceiling_at,
    ceilings_on,
    changed,
    expected_experts,
    step_of,
)
from spark_prof.rules.gpus import GPUS, gpu_called
from tests.rows import each_row

DENSE = FormatWeights("qkv", "bf16", "decoder", 1_000, 2_000.0, 1, matrix=True)
EXPERTS = FormatWeights("experts", "mxfp4", "decoder", 128_000, 68_000.0, 1, matrix=True)
ROUTER = FormatWeights("router", "bf16", "decoder", 128, 256.0, 1, matrix=True)
EMBEDDING = FormatWeights("embedding", "bf16", "decoder", 5_000, 10_000.0, 1, matrix=False)
VISION = FormatWeights("other", "bf16", "encoder", 9_000, 18_000.0, 1, matrix=True)
WINDOW = SequenceState(2, "window", 16, heads=4, window=100, operations=64)
CACHE = SequenceState(3, "kv", 16, heads=4, operations=64)
LATENT = SequenceState(1, "latent", 10, operations=40)
RECURRENT = SequenceState(1, "recurrent", 500, bytes_per_element=4)


def model(*weights: FormatWeights, states: tuple[SequenceState, ...] = ()) -> WeightsOfModel:
    return WeightsOfModel(Architecture("X", 5, 10, 128, 4, 500, states), weights, seen=True)


def read(step: CeilingStep, component: str) -> float:
    return sum(row.read for row in step.rows if row.component == component)


@each_row("seed", range(5))
def test_the_expectation_is_what_happens_on_average(seed: int) -> None:
    dice = random.Random(seed)
    experts = dice.randrange(4, 200)
    taken, tokens = dice.randrange(1, experts), dice.randrange(1, 20)
    rounds = 400
    hits = sum(
        len({e for _ in range(tokens) for e in dice.sample(range(experts), taken)})
        for _ in range(rounds)
    )
    assert hits / rounds == pytest.approx(expected_experts(experts, taken, tokens), rel=0.06)


def test_a_step_of_one_token() -> None:
    step = step_of(model(DENSE, EXPERTS, ROUTER, EMBEDDING, VISION), Question())
    assert read(step, "qkv") == 2_000
    assert read(step, "experts") == 68_000 * 4 / 128
    assert read(step, "router") == 256
    assert read(step, "embedding") == 10_000 / 500
    assert step.read == pytest.approx(2_000 + 2_125 + 256 + 20)
    assert step.operations == pytest.approx({"bf16": 2 * 1_128, "mxfp4": 2 * 128_000 * 4 / 128})


def test_more_sequences_read_dense_weights_once_and_more_experts() -> None:
    few, many = (step_of(model(DENSE, EXPERTS), Question(batch=batch)) for batch in (1, 16))
    assert read(few, "qkv") == read(many, "qkv")
    assert read(many, "experts") / read(few, "experts") == pytest.approx(51.0 / 4, rel=0.001)
    assert many.operations["mxfp4"] == pytest.approx(16 * few.operations["mxfp4"])


def test_without_the_experts_of_a_token_all_are_read() -> None:
    unknown = model(EXPERTS)
    unknown = replace(unknown, architecture=replace(unknown.architecture, experts_per_token=0))
    step = step_of(unknown, Question())
    assert step.experts_hit is None
    assert step.read == 68_000


def test_the_cache_of_every_kind() -> None:
    states = (WINDOW, CACHE, LATENT, RECURRENT)
    step = step_of(model(DENSE, states=states), Question(context=1_000, batch=2))
    cache = 2 * 16 * 100 + 3 * 16 * 1_000 + 1 * 10 * 1_000
    assert read(step, "attention") == cache * 2 * 2
    assert read(step, "ssm") == 2 * 500 * 4 * 2
    narrow = step_of(model(DENSE, states=states), Question(context=1_000, batch=2, kv_bytes=1))
    assert read(narrow, "attention") == cache * 2
    assert read(narrow, "ssm") == read(step, "ssm")


@each_row(("ranks", "heads"), [(1, 1), (2, 2), (4, 4), (8, 4)])
def test_tensor_parallelism_shares_out_weights_and_heads(ranks: int, heads: int) -> None:
    whole, part = (
        step_of(
            model(DENSE, EXPERTS, ROUTER, states=(CACHE, LATENT)), Question(context=100, ranks=n)
        )
        for n in (1, ranks)
    )
    assert read(part, "qkv") == read(whole, "qkv") / ranks
    assert read(part, "experts") == read(whole, "experts") / ranks
    assert read(part, "router") == read(whole, "router")
    latent = 10 * 100 * 2
    assert read(part, "attention") - latent == (read(whole, "attention") - latent) / heads


def test_drafted_tokens_read_more_experts_and_the_same_cache() -> None:
    plain = step_of(model(DENSE, EXPERTS, states=(CACHE,)), Question(context=100))
    asked = Question(context=100, scheduled=3, accepted=2.4)
    drafted = step_of(model(DENSE, EXPERTS, states=(CACHE,)), asked)
    assert drafted.experts_hit == pytest.approx(expected_experts(128, 4, 3))
    assert read(drafted, "attention") == read(plain, "attention")
    rate = ceiling_at(drafted, 1e9, "", GPUS[0]).tokens_per_s
    assert rate == pytest.approx(2.4 * 1e9 / drafted.read)


def test_a_ceiling_is_the_slower_of_memory_and_arithmetic() -> None:
    h100 = gpu_called("h100")
    assert h100 is not None
    few, many = (ceilings_on(step_of(model(DENSE), Question(batch=n)), h100) for n in (1, 1_000))
    assert few.data_sheet.limit == "memory"
    assert few.data_sheet.step_us == pytest.approx(2_000 / 3.35e12 * 1e6)
    assert many.data_sheet.limit == "arithmetic"
    assert many.data_sheet.step_us == pytest.approx(2 * 1_000 * 1_000 / 989.4e12 * 1e6)
    assert many.data_sheet.total_tokens_per_s == pytest.approx(1_000 * many.data_sheet.tokens_per_s)
    assert few.read is not None
    assert few.read.step_us > few.data_sheet.step_us


PARAMETERS = 1_000_000


def weights(component: str, form: str, per_parameter: float, **more: object) -> FormatWeights:
    size = PARAMETERS * per_parameter
    made = FormatWeights(component, form, "decoder", PARAMETERS, size, 1, matrix=True)
    return FormatWeights(**{**made.__dict__, **more})


def change(name: str):
    return next(change for change in CHANGES if change.id == name)


@each_row("each", CHANGES)
def test_a_change_converts_its_components_and_leaves_the_rest(each) -> None:
    components = ("qkv", "o_proj", "ssm", "lm_head", "mlp", "shared_experts", "experts", "router")
    before = model(*(weights(component, "fp16", 2.0) for component in components))
    after = changed(before, each)
    assert after is not None
    for old, new in zip(before.weights, after.weights, strict=True):
        assert new.format == (each.format if old.component in each.components else "fp16")
        assert new.parameters == old.parameters
    assert after.weights[-1] == before.weights[-1]


def test_what_is_narrow_already_stays() -> None:
    before = model(weights("qkv", "nvfp4", 0.5625), weights("lm_head", "bf16", 2.0))
    after = changed(before, change("attention-head-mxfp4"))
    assert after is not None
    assert [w.format for w in after.weights] == ["nvfp4", "mxfp4"]


def test_a_change_of_nothing_is_none() -> None:
    assert changed(model(weights("experts", "mxfp4", 0.53125)), change("all-nvfp4")) is None
    assert changed(model(weights("qkv", "bf16", 2.0)), change("all-bf16")) is None
