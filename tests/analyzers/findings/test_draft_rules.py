"""What the rules about drafts find, on acceptance and times made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from spark_prof.analyzers.model import ModuleRow, Report
from spark_prof.analyzers.roofline.roofline_rows import (
    Ceilings,
    Roofline,
    RooflinePhase,
    RooflineRow,
)
from spark_prof.analyzers.speculation.acceptance import interval
from spark_prof.analyzers.speculation.speculation_rows import (
    DraftCost,
    DraftPosition,
    Speculation,
)

from .reports import HEALTHY, STEP_US, executed, found

GEMM = "nvjet_tst_64x8_64x16_4x1_v_bz_TNN"
RULES = ("drafts-do-not-pay", "drafts-too-many", "drafts-too-few", "drafts-outside-graphs")


def report(
    accepted: Sequence[int], of: int = 200, *, drafter_us: float | None = 300.0,
    method: str = "eagle", plain: bool = True, outside: int = 0,
) -> Report:  # fmt: skip
    """Steps of 1000 us whose drafts were accepted so often at each place, in so many steps."""
    tokens = 1 + sum(accepted) / of
    most = None if drafter_us is None else 1000.0 - drafter_us
    known = most if plain else None
    cost = DraftCost(
        steps=of, plain_steps=0, step_us=1000.0, width=1 + len(accepted), requests=1.0,
        tokens_per_step=tokens, token_us=1000.0 / tokens, drafter_us=drafter_us,
        drafter_by="" if drafter_us is None else "kernels", plain_most_us=most, plain_low_us=known,
        plain_high_us=known, plain_by="drafter" if plain and most else "",
        outside_graphs=outside, outside_us=500.0 if outside else 0.0,
    )  # fmt: skip
    places = tuple(
        DraftPosition(n, of, yes, *interval(yes, of)) for n, yes in enumerate(accepted, 1)
    )
    total = of * len(accepted)
    return replace(
        HEALTHY,
        speculation=Speculation(
            method, len(accepted), 4, of, 0, total, sum(accepted), places, cost=cost
        ),
    )


def fired(one: Report) -> dict[str, float | None]:
    """The rules that find something, each with its gain in ms."""
    return {
        name: None if (gain := rows[0].ms_per_token) is None else round(gain, 3)
        for name in RULES
        if (rows := found(one, name))
    }


def test_good_drafts_are_left_alone() -> None:
    assert fired(report([170, 140, 110])) == {}


@pytest.mark.parametrize("plain", [True, False])
def test_a_drafter_whose_drafts_are_refused(plain: bool) -> None:
    """0 of 60 drafts in 30 steps, 45 % of which the drafter takes."""
    one = report([0, 0], of=30, drafter_us=450.0, plain=plain)
    assert fired(one) == {"drafts-do-not-pay": 0.45}
    [finding] = found(one, "drafts-do-not-pay")
    assert "0.00 of 2.0 drafts are accepted" in finding.text
    assert "pays from 0.82 on" in finding.text
    assert "45 % of it drafting" in finding.text
    assert "Leave --speculative-config out" in finding.fix
    assert "num_speculative_tokens" not in finding.fix


def test_drafts_that_a_grammar_ruled_out_prove_nothing() -> None:
    one = report([0, 0], of=30, drafter_us=450.0)
    assert one.speculation is not None
    assert fired(replace(one, speculation=replace(one.speculation, positions=()))) == {}


def test_break_even_is_not_yet_a_loss() -> None:
    """A step of 1 ms pays from 0.43 accepted drafts on where one without drafts takes 0.7."""
    assert "drafts-do-not-pay" not in fired(report([100, 0, 0]))
    assert fired(report([20, 0, 0])) == {"drafts-do-not-pay": pytest.approx(0.209, abs=1e-3)}


def test_fewer_drafts_may_pay_where_all_of_them_do_not() -> None:
    """The first draft is worth its 150 us; the other six are not."""
    one = report([90, 0, 0, 0, 0, 0, 0], drafter_us=7 * 60.0)
    [finding] = found(one, "drafts-do-not-pay")
    assert "num_speculative_tokens: 1" in finding.fix


def test_drafts_that_are_accepted_up_to_a_place() -> None:
    one = report([180, 160, 2, 0, 0], drafter_us=400.0)
    [finding] = found(one, "drafts-too-many")
    assert "from the third on" in finding.text
    assert "Set num_speculative_tokens to 2 " in finding.fix
    assert finding.ms_per_token is not None
    # With 2 drafts: 1000 us less 3 x 80 us over at least 2.63 tokens.
    assert 0.07 < finding.ms_per_token < (1000 - 760) / 1000
    assert fired(one).keys() == {"drafts-too-many"}


def test_where_all_drafts_come_at_once_only_their_place_is_told() -> None:
    [finding] = found(report([180, 160, 2, 0, 0], of=400, method="dflash"), "drafts-too-many")
    assert finding.ms_per_token is None
    assert "Set num_speculative_tokens to 2 " in finding.fix
    assert found(report([180, 160, 40, 30, 20], method="dflash"), "drafts-too-many") == []


def test_the_last_draft_is_accepted_nearly_always() -> None:
    one = report([198, 196], drafter_us=100.0)
    [finding] = found(one, "drafts-too-few")
    assert "The last of 2 drafts is accepted in 98 %" in finding.text
    assert "Set num_speculative_tokens to 7 " in finding.fix
    assert finding.ms_per_token is not None
    assert fired(one).keys() == {"drafts-too-few"}


def test_more_drafts_are_not_advised_without_need() -> None:
    assert found(report([198, 150], drafter_us=100.0), "drafts-too-few") == []
    assert found(report([200] * 7, drafter_us=100.0), "drafts-too-few") == []
    # Each takes as long as all the rest of the step.
    assert found(report([200], drafter_us=900.0), "drafts-too-few") == []


def test_what_drafting_takes_is_unknown_and_nothing_is_accepted() -> None:
    one = report([3, 0], drafter_us=None)
    assert fired(one) == {"drafts-do-not-pay": None}
    [finding] = found(one, "drafts-do-not-pay")
    assert "What drafting takes is not known" in finding.text
    assert fired(report([90, 60], drafter_us=None)) == {}


def test_steps_with_drafts_outside_of_graphs() -> None:
    one = report([170, 140, 110], outside=40)
    tokens = 1 + 420 / 200
    assert fired(one) == {"drafts-outside-graphs": round(0.5 * 0.2 / tokens, 3)}
    assert fired(report([170, 140, 110], outside=10)) == {}


def reading_a_head(own: str = "", stored: str = "bfloat16", vllm: str = "0.33.0") -> Report:
    """A drafter whose products with the model's head, or its own, take a tenth of a step."""
    runner = HEALTHY.run.execution.replace("runner V1", "runner V2")
    base = executed(report([170, 140, 110]), runner, vllm=vllm)
    row = RooflineRow(
        GEMM, "lm_head", 1.0, 0.1 * STEP_US, None, 0.0, 0.0, "", "", False, None, None, None, None,
        None, None, None, role="drafter.lm_head",
    )  # fmt: skip
    phase = RooflinePhase("decode", 1, 1.0, STEP_US, STEP_US, 0.0, None, 0.0, 0.0, 0.0, (row,))
    heads = [ModuleRow("lm_head", "ParallelLMHead", "", "", stored, "", 1, 1_000_000_000)]
    if own:
        heads.append(replace(heads[0], part=own))
    return replace(base, roofline=Roofline(Ceilings(""), (phase,), ()), modules=tuple(heads))


def test_a_drafter_that_reads_the_models_head_in_16_bits() -> None:
    [finding] = found(reading_a_head(), "drafter-lm-head")
    assert "100.0 us of a decode step, 10.0 %" in finding.text
    assert "draft_lm_head_quantization to fp8" in finding.fix
    assert finding.ms_per_token == pytest.approx(0.05)
    for other in (
        reading_a_head(own="drafter"),  # of which vLLM makes no copy
        reading_a_head(stored="float8_e4m3fn"),
        reading_a_head(vllm="0.32.1"),  # has no such option
        replace(reading_a_head(), speculation=report([170], method="draft_model").speculation),
    ):
        assert found(other, "drafter-lm-head") == []
