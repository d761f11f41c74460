"""The time of a token over any steps is time over tokens, and its parts add up to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_prof.analyzers.token_time import FEWEST_TIMED, TokenTime, headline_of, token_times

MANY = settings(max_examples=12 * settings().max_examples)


class StepRow(NamedTuple):
    """One step of a table."""

    phase: str
    decode_requests: int
    prefill_requests: int
    output_requests: float  # NaN where the scheduler's row is not there, as the tokens
    output_tokens: float
    step_us: float
    first_use: bool = False

    @property
    def given(self) -> tuple[float, float]:
        """Sequences that got their next token, and how many tokens those were."""
        if math.isnan(self.output_requests):
            return self.decode_requests, self.decode_requests
        first = min(max(self.output_requests - self.decode_requests, 0), self.prefill_requests)
        return self.output_requests - first, self.output_tokens - first

    @property
    def counts(self) -> bool:
        """Whether it decodes, and is no first use of a kernel."""
        return self.phase != "prefill" and not self.first_use


Draw = Callable[[st.SearchStrategy[Any]], Any]


@st.composite
def step_rows(
    draw: Draw, phases: Sequence[str] = ("decode", "decode", "mixed", "prefill")
) -> StepRow:
    phase = draw(st.sampled_from(phases))
    decoding = 0 if phase == "prefill" else draw(st.sampled_from([1, 1, 2]))
    prompts = 0 if phase == "decode" else draw(st.integers(1, 2))
    requests = draw(st.integers(0, decoding + prompts))
    tokens = requests + draw(st.integers(0, 2)) * min(requests, decoding)
    known = draw(st.integers(0, 5)) > 0
    return StepRow(phase, decoding, prompts, requests if known else math.nan,
                   tokens if known else math.nan, draw(st.integers(1, 4000)) / 4,
                   draw(st.integers(0, 7)) == 0)  # fmt: skip


def frame(rows: Sequence[StepRow]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(StepRow._fields))


def over_tokens(rows: Sequence[StepRow]) -> float | None:
    """Time over tokens."""
    tokens = sum(row.given[1] for row in rows)
    return sum(row.step_us * row.given[0] for row in rows) / tokens if tokens else None


def agrees(found: TokenTime, rows: Sequence[StepRow]) -> None:
    giving = [row for row in rows if row.given[0] > 0]
    decode = [row for row in rows if row.phase == "decode"]
    assert found.steps == len(giving)
    assert found.mixed == sum(row.phase == "mixed" for row in giving)
    assert found.token_us == pytest.approx(over_tokens(giving))
    alone = over_tokens([row for row in giving if row.phase == "decode"])
    assert found.decode_only_us == (None if alone is None else pytest.approx(alone))
    assert found.requests == pytest.approx(np.mean([row.decode_requests for row in giving]))
    assert found.tokens_per_s_sequence == pytest.approx(1e6 / found.token_us)
    tokens, took = sum(row.given[1] for row in giving), sum(row.step_us for row in giving)
    assert found.tokens_per_s == pytest.approx(1e6 * tokens / took)
    parts = found.typical_us, found.uneven_us, found.prompts_us, found.unprofiled_us
    assert sum(parts) == pytest.approx(found.token_us)
    assert found.unprofiled_us == pytest.approx(0.0, abs=1e-6)
    of_decode = sum(row.given[1] for row in decode)
    if of_decode:
        factor = sum(row.given[0] for row in decode) / of_decode
        assert found.steps_per_token == pytest.approx(factor)
        assert found.typical_us == pytest.approx(factor * np.median([r.step_us for r in decode]))
        assert found.typical_us + found.uneven_us == pytest.approx(over_tokens(decode))
    else:
        assert found.steps_per_token is None
        assert (found.typical_us, found.uneven_us) == (0.0, 0.0)
    assert (found.profiled_us, found.timed_steps, found.timed_share) == (None, 0, 0.0)


@MANY
@given(st.lists(step_rows(), max_size=12))
def test_of_profiled_steps(rows: list[StepRow]) -> None:
    whole, sizes = token_times(frame(rows))
    counted = [row for row in rows if row.counts]
    giving = [row for row in counted if row.given[0] > 0]
    assert (whole is None) is (not giving)
    if whole is None:
        assert sizes == ()
        assert headline_of(whole, sizes) is None
        return
    assert whole.batch is None
    agrees(whole, counted)
    assert [time.batch for time in sizes] == sorted({row.decode_requests for row in giving})
    for time in sizes:
        agrees(time, [row for row in counted if row.decode_requests == time.batch])
    told = headline_of(whole, sizes)
    assert told is not None
    assert {told.time, told.screen} <= {whole, *sizes}


@MANY
@given(st.lists(step_rows(("decode", "mixed")), min_size=1, max_size=8),
       st.lists(step_rows(("decode", "decode", "mixed")), max_size=24))  # fmt: skip
def test_beside_steps_that_were_only_timed(rows: list[StepRow], other: list[StepRow]) -> None:
    whole, sizes = token_times(frame(rows), frame(other))
    counted = [row for row in other if row.counts and row.given[0] > 0]
    own = [row for row in rows if row.counts]
    weights = []
    for time in sizes:
        of_size = [row for row in counted if row.decode_requests == time.batch]
        profiled = [row for row in own if row.decode_requests == time.batch]
        enough = sum(row.phase == "decode" for row in of_size) >= FEWEST_TIMED
        assert time.timed_steps == (len(of_size) if enough else 0)
        stands_on = of_size if enough else [row for row in profiled if row.given[0] > 0]
        assert time.token_us == pytest.approx(over_tokens(stands_on))
        weights.append(sum(row.given[1] for row in (*of_size, *profiled)))
        parts = time.typical_us, time.uneven_us, time.prompts_us, time.unprofiled_us
        assert sum(parts) == pytest.approx(time.token_us)
    if whole is None or not any(time.timed_steps for time in sizes):
        return
    both = list(zip(sizes, weights, strict=True))
    tokens = sum(weights)
    assert whole.timed_steps == sum(time.timed_steps for time in sizes)
    assert whole.timed_share == pytest.approx(sum(n for t, n in both if t.timed_steps) / tokens)
    assert whole.token_us == pytest.approx(sum(time.token_us * n for time, n in both) / tokens)
    took = sum(n / time.tokens_per_s for time, n in both)
    assert whole.tokens_per_s == pytest.approx(tokens / took)
    parts = whole.typical_us, whole.uneven_us, whole.prompts_us, whole.unprofiled_us
    assert sum(parts) == pytest.approx(whole.token_us)
