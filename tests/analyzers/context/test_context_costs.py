"""What context costs, against planted bases, slopes, windows and kinds of layers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_prof.analyzers.context.context_rows import ContextCost, LayerKindCost
from spark_prof.analyzers.context.robust_line import robust_line
from spark_prof.traces.bundle import Bundle
from tests.analyzers.reported import reported

from .contexts import FULL, Sized, Us, recorded

SWEEP = [context + at for context in (1024, 8192, 32768) for at in range(24)]
BANDWIDTH = 4.8e12  # of an H200's data sheet
TWO_LAYERS = 2 * 2 * 8 * 64 * 2  # bytes of a token in two layers of FULL


def linear(base: float, per_1k: float, scatter: float = 0.0) -> Us:
    """A layer's time on a line, each step off by as much as `scatter` at most, as a share."""

    def us(context: float, number: int) -> float:
        chance = random.Random(number).uniform(-scatter, scatter)
        return (base + per_1k * context / 1000) * (1 + chance)

    return us


def cost(bundle: Bundle) -> ContextCost:
    result = reported(bundle).context
    assert result is not None
    return result


def kind(bundle: Bundle, name: str) -> LayerKindCost:
    return next(row for row in cost(bundle).kinds if row.kind == name)


def sizes(contexts: list[int], **more: Any) -> list[Sized]:
    return [Sized(context, **more) for context in contexts]


def test_a_planted_line_is_told(tmp_path: Path) -> None:
    layers = [("attention", linear(6, 1.0)), ("attention", linear(4, 0.5))]
    result = cost(recorded(tmp_path / "b", sizes(SWEEP), layers))
    assert (result.batch, result.steps, result.why_not) == (1, len(SWEEP), "")
    (row,) = result.kinds
    assert (row.kind, row.layers, row.grows, row.why_not) == ("full", 2, True, "")
    assert row.base_us == pytest.approx(10, rel=0.001)
    assert row.slope_us == pytest.approx(1.5, rel=0.001)
    assert row.bytes_per_token == pytest.approx(TWO_LAYERS)
    assert row.bound_us == pytest.approx(1e9 * TWO_LAYERS / BANDWIDTH)
    assert row.of_bound == pytest.approx(1e9 * TWO_LAYERS / BANDWIDTH / 1.5, rel=0.001)


def test_a_mark_is_told_only_where_contexts_were_recorded(tmp_path: Path) -> None:
    layers = [("attention", linear(6, 1.0)), ("attention", linear(4, 0.5))]
    (row,) = cost(recorded(tmp_path / "b", sizes(SWEEP), layers)).kinds
    by_context = {mark.context: mark.us for mark in row.marks}
    assert by_context[8192] == pytest.approx(10 + 1.5 * 8.192, rel=0.001)
    assert by_context[65536] is None
    bounds = {mark.context: mark.bound_us for mark in row.marks}
    assert bounds[65536] == pytest.approx(1e6 * TWO_LAYERS * 65537 / BANDWIDTH)


def test_what_a_sequence_loses_is_bytes_kernel_and_rest(tmp_path: Path) -> None:
    layers = [("attention", linear(6, 1.0)), ("attention", linear(4, 0.5))]
    steps = [Sized(c, rest_us=100 + c / 4000) for c in SWEEP]
    result = cost(recorded(tmp_path / "b", steps, layers))
    speed, span = result.speed, (result.longest - result.shortest) / 1000
    assert speed is not None
    assert speed.bytes_us is not None
    assert speed.kernel_us is not None
    by_bytes = 1e9 * TWO_LAYERS / BANDWIDTH * span
    assert speed.bytes_us == pytest.approx(by_bytes, rel=0.001)
    assert speed.kernel_us == pytest.approx(1.5 * span - by_bytes, rel=0.005)
    assert speed.other_us == pytest.approx(0.25 * span, rel=0.02)
    assert speed.shortest_tokens_per_s == pytest.approx(1e6 / speed.shortest_us)
    assert speed.longest_us - speed.shortest_us == pytest.approx(1.75 * span, rel=0.005)


WINDOWED = {**FULL, "model_type": "gpt_oss", "sliding_window": 128}


def test_a_window_that_is_full_does_not_grow(tmp_path: Path) -> None:
    layers = [("attention", linear(5, 0.0, 0.01)), ("attention", linear(4, 2.0))]
    bundle = recorded(tmp_path / "b", sizes(SWEEP), layers, WINDOWED)
    window, full = kind(bundle, "window"), kind(bundle, "full")
    assert (window.layers, window.window, window.grows) == (1, 128, False)
    assert window.slope_us == pytest.approx(0, abs=0.01)
    assert window.bound_us == 0
    assert window.of_bound is None
    assert full.slope_us == pytest.approx(2.0, rel=0.001)
    assert full.bytes_per_token == pytest.approx(TWO_LAYERS / 2)


def test_a_window_is_a_line_until_it_is_full(tmp_path: Path) -> None:
    wide = {**WINDOWED, "sliding_window": 4096}
    filling = [32 * at + 1000 for at in range(60)]
    layers = [("attention", linear(5, 3.0)), ("attention", linear(4, 2.0))]
    bundle = recorded(tmp_path / "b", sizes([*filling, *SWEEP]), layers, wide)
    row = kind(bundle, "window")
    assert row.grows
    assert row.longest < 4096
    assert row.slope_us == pytest.approx(3.0, rel=0.001)
    assert row.bytes_per_token == pytest.approx(TWO_LAYERS / 2)


def test_a_state_does_not_grow(tmp_path: Path) -> None:
    hybrid = {
        **FULL, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
        "linear_key_head_dim": 32, "linear_num_value_heads": 4, "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
    }  # fmt: skip
    layers = [("ssm", linear(30, 0.0, 0.02)), ("attention", linear(4, 2.0))]
    bundle = recorded(tmp_path / "b", sizes(SWEEP), layers, hybrid)
    state = kind(bundle, "gdn")
    assert (state.layers, state.grows, state.of_bound) == (1, False, None)
    assert state.us == pytest.approx(30, rel=0.02)
    assert kind(bundle, "full").slope_us == pytest.approx(2.0, rel=0.001)


def test_latents_are_read_once(tmp_path: Path) -> None:
    latent = {**FULL, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    layers = [("attention", linear(6, 1.0))] * 2
    row = kind(recorded(tmp_path / "b", sizes(SWEEP), layers, latent), "mla")
    assert row.bytes_per_token == pytest.approx(2 * 576 * 2)


def test_of_chosen_tokens_the_index_alone_grows(tmp_path: Path) -> None:
    sparse = {
        **FULL, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_topk": 512,
        "index_head_dim": 128, "index_n_heads": 4,
    }  # fmt: skip
    layers = [("attention", linear(6, 1.0))] * 2
    row = kind(recorded(tmp_path / "b", sizes(SWEEP), layers, sparse), "sparse")
    assert (row.window, row.grows) == (512, True)
    assert row.bytes_per_token == pytest.approx(2 * 132)


def test_a_batch_reads_each_of_its_requests(tmp_path: Path) -> None:
    layers = [("attention", linear(6, 1.0)), ("attention", linear(4, 0.5))]
    steps = [*sizes([200] * 40), *sizes(SWEEP, requests=4)]
    result = cost(recorded(tmp_path / "b", steps, layers))
    assert result.batch == 4
    assert result.kinds[0].bytes_per_token == pytest.approx(4 * TWO_LAYERS)


def test_outliers_do_not_bend_the_line(tmp_path: Path) -> None:
    def us(context: float, number: int) -> float:
        return (10 + context / 1000) * (9 if number % 9 == 4 else 1)

    result = cost(recorded(tmp_path / "b", sizes(SWEEP), [("attention", us)] * 2))
    assert result.kinds[0].slope_us == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(
    ("contexts", "why"),
    [(SWEEP[:8], "few"), ([1000 + n for n in range(60)], "narrow")],
)
def test_what_is_not_told_has_a_reason(tmp_path: Path, contexts: list[int], why: str) -> None:
    layers = [("attention", linear(6, 1.0))] * 2
    result = cost(recorded(tmp_path / "b", sizes(contexts), layers))
    assert (result.why_not, result.kinds, result.speed) == (why, (), None)


def test_a_model_of_unknown_layers_tells_nothing(tmp_path: Path) -> None:
    layers = [("attention", linear(6, 1.0))] * 2
    assert cost(recorded(tmp_path / "a", sizes(SWEEP), layers, {})).why_not == "model"
    assert cost(recorded(tmp_path / "b", sizes(SWEEP), layers, placed=False)).why_not == "layers"


def test_steps_that_scatter_have_no_slope(tmp_path: Path) -> None:
    layers = [("attention", linear(100, 0.05, 0.5))] * 2
    result = cost(recorded(tmp_path / "b", sizes(SWEEP), layers))
    assert (result.kinds[0].why_not, result.kinds[0].slope_us, result.speed) == (
        "scatter",
        None,
        None,
    )


def test_an_interval_holds_the_planted_slope() -> None:
    """200 lines with noise that neighbours share: nine tenths of the intervals hold the slope."""
    chance = np.random.default_rng(7)
    inside = 0
    for _ in range(200):
        x = np.sort(chance.uniform(1000, 9000, 120))
        noise = chance.normal(0, 1, 120)
        for at in range(1, 120):
            noise[at] += 0.5 * noise[at - 1]
        line = robust_line(x, 5 + 0.002 * x + noise)
        assert line is not None
        inside += line.low <= 0.002 <= line.high
    assert inside >= 180


def test_a_bent_line_says_how_far_it_is_off() -> None:
    x = np.linspace(1000, 9000, 100)
    bent = robust_line(x, np.maximum(10.0, x / 500))
    assert bent is not None
    assert bent.off > 0.1
    straight = robust_line(x, 3 + x)
    assert straight is not None
    assert straight.off < 1e-9
