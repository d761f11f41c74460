"""What prompts take, against planted pairs, products and chunks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.prefill_costs import (
    ChunkCost,
    Prefill,
    PromptAttention,
    PromptProduct,
)
from spark_prof.dashboards.outline import outline
from spark_prof.dashboards.sections.prefill_section import sections
from spark_prof.traces.bundle import Bundle
from tests.analyzers.context.contexts import Sized, Us, recorded
from tests.analyzers.reported import reported
from tests.dashboards.sample import SAMPLES

LENGTHS = [256 * (1 + at % 16) for at in range(48)]
FEW = [("attention", lambda context, number: 5.0)]


def prefill(bundle: Bundle) -> Prefill:
    result = reported(bundle).prefill
    assert result is not None
    return result


def prompts(lengths: list[int]) -> list[Sized]:
    return [Sized(0, 0, "prefill", length) for length in lengths]


def quadratic(lengths: list[int], base: float, per_million: float) -> Us:
    return lambda _, number: base + per_million * lengths[number] * (lengths[number] + 1) / 2e6


def test_the_planted_quadratic_part_is_told(tmp_path: Path) -> None:
    layers = [("attention", quadratic(LENGTHS, 5, 30)), ("attention", quadratic(LENGTHS, 5, 10))]
    result = prefill(recorded(tmp_path / "b", prompts(LENGTHS), layers))
    attention = result.attention
    assert attention is not None
    assert (attention.steps, attention.shortest, attention.longest) == (48, 256, 4096)
    assert attention.layers == 2
    assert attention.pair_us == pytest.approx(40, rel=0.001)
    assert attention.base_us == pytest.approx(10, rel=0.01)
    assert attention.longest_us == pytest.approx(40 * 4096 * 4097 / 2e6, rel=0.001)
    # Both products of 8 heads of 64, a multiply-add counted as two.
    assert attention.operations == pytest.approx(1e6 * 2 * 2 * 2 * 8 * 64)


@pytest.mark.parametrize(("lengths", "why"), [(LENGTHS[:9], "few"), ([1000, 1100] * 20, "narrow")])
def test_a_reason_stands_for_what_is_not_told(tmp_path: Path, lengths: list[int], why: str) -> None:
    layers = [("attention", quadratic(lengths, 5, 30))] * 2
    result = prefill(recorded(tmp_path / "b", prompts(lengths), layers)).attention
    assert result is not None
    assert (result.why_not, result.pair_us) == (why, None)


def test_a_chunk_costs_what_a_mixed_step_is_longer(tmp_path: Path) -> None:
    steps = []
    for at in range(60):
        batch = 1 + at % 2
        mixed = at % 5 == 4
        tokens = (512 if at % 10 == 4 else 100) if mixed else 0
        rest = 100.0 * batch + 0.5 * tokens
        steps.append(
            Sized(100, batch, "mixed" if mixed else "decode", tokens, rest_us=rest)
        )  # fmt: skip
    result = prefill(recorded(tmp_path / "b", steps, FEW))
    assert (result.steps, result.mixed, result.prefill_only_us) == (0, 12, None)
    assert [(row.low, row.high, row.steps) for row in result.chunks] == [
        (100, 100, 6),
        (512, 512, 6),
    ]
    for row in result.chunks:
        assert row.extra_us == pytest.approx(0.5 * row.low, abs=0.2)
        assert row.token_us == pytest.approx(0.5, rel=0.01)


def test_chunks_without_decode_steps_to_hold_against_are_left_out(tmp_path: Path) -> None:
    steps = [Sized(100, 3, "mixed", 512) for _ in range(20)] + [Sized(100, 1)] * 20
    assert prefill(recorded(tmp_path / "b", steps, FEW)).chunks == ()


def test_without_prompts_there_is_nothing(tmp_path: Path) -> None:
    assert reported(recorded(tmp_path / "b", [Sized(100)] * 20, FEW)).prefill is None


FOUND = Prefill(
    40, 12, 900.0, 5000.0, 2500.0,
    (PromptProduct("experts", "w13", "bf16", 1000.0, 4.0e11, 9.895e14),
     PromptProduct("mlp", "down_proj", "", 500.0, 1.0e11, None)),
    PromptAttention(40, 128, 4096, 24, 300.0, 20.0, 40.0, 38.0, 42.0, 335.0, 9.6e9, "bf16",
                    9.895e14),
    (ChunkCost(512, 1024, 12, 7.5, 900.0, 1900.0, 1000.0, 1.25),), 1.1, 2048,
)  # fmt: skip


def report(result: Prefill | None) -> Report:
    return replace(SAMPLES["mixture_of_experts"], prefill=result)


def test_the_sections_say_shares_of_the_peak_and_what_decodes_wait() -> None:
    section, products, chunks = sections(report(FOUND))
    text = " ".join(str(row[0]) for row in section.rows)
    assert "its lower bound is 50.0 % of that" in text
    assert "24.3 % of the peak in bf16" in text
    assert "makes each of the 7.5 decodes beside it wait 1.00 ms longer" in text
    assert "2,048 tokens at most" in text
    assert "40.4 %" in products.rows[0]
    assert [column.title for column in products.columns].index("Of the peak") == 6
    assert products.rows[1][6] == "-"
    assert chunks.rows[0][0] == "512 to 1,024"
    names = [section.id for section in outline(report(FOUND)).sections]
    assert {"prefill", "prefill-products", "prefill-chunks"} <= {*names}
    assert sections(report(None)) == ()


def test_what_is_not_known_is_said() -> None:
    assert FOUND.attention is not None
    unknown = replace(FOUND.attention, pair_us=None, longest_us=None, why_not="narrow")
    section = sections(report(replace(FOUND, products=(), chunks=(), attention=unknown)))[0]
    text = " ".join(str(row[0]) for row in section.rows)
    assert "Operations of its products are not known" in text
    assert "record short and long ones" in text
    assert "What a chunk costs the decodes beside it is not told" in text
