"""Rules about drafts that cost more than they bring, are too many or too few, or leave graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spark_prof.analyzers.findings import format_conversions
from spark_prof.analyzers.findings.format_conversions import FP8_OF_16_BITS, drafted_head_us
from spark_prof.analyzers.findings.rule import (
    Observation,
    decode_steps_us,
    is_at_least,
    ms_per_token,
    rule,
)
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.speculation.speculation_rows import DraftCost, Speculation
from spark_prof.rules import thresholds
from spark_prof.rules.components import LM_HEAD

_ENOUGH = thresholds.VERIFICATIONS.value
_MATTERS = thresholds.DRAFT_SHARE.value
_HARDLY = thresholds.HARDLY_ACCEPTED.value
_SELDOM = thresholds.SELDOM_ACCEPTED.value
_NEARLY_ALWAYS = thresholds.NEARLY_ALWAYS_ACCEPTED.value
_MOST_DRAFTS = thresholds.MOST_DRAFTS.value
_MUCH_OUTSIDE = thresholds.OUTSIDE_GRAPHS.value
_WIDE = ("bfloat16", "float16")
_ONE_BY_ONE = ("mtp", "eagle", "eagle3", "draft_model")
"""Methods whose drafter runs once for each draft; others make all at once."""


def _enough(report: Report) -> tuple[Speculation, DraftCost] | None:
    speculation = report.speculation
    if (
        speculation is None
        or speculation.cost is None
        or speculation.verified < _ENOUGH
        or not speculation.positions
    ):
        return None
    return speculation, speculation.cost


@rule("drafts-do-not-pay", "steps",
      "a decode step with drafts takes longer than the tokens that it gives would without, also if "
      "as many are accepted as the interval allows")  # fmt: skip
def _loss(report: Report) -> Iterator[Observation]:
    if (measured := _enough(report)) is None:
        return
    speculation, cost = measured
    most = cost.plain_high_us if cost.plain_high_us is not None else cost.plain_most_us
    if most is None:
        yield from _hardly_any(speculation)
        return
    at_best = cost.step_us / (1 + _upper(speculation))
    if at_best <= most * (1 + _MATTERS) or cost.token_us <= most * (1 + _MATTERS):
        return
    least = cost.plain_low_us if cost.plain_low_us is not None else most
    drafting = ""
    if cost.drafter_us is not None:
        share = 100 * cost.drafter_us / cost.step_us
        drafting = f", {share:.0f} % of it drafting"
    needed = cost.break_even or 0.0
    fewer = _fewer(speculation, cost)
    lower = "" if fewer is None or fewer[1] >= most else f", or num_speculative_tokens: {fewer[0]}"
    yield Observation(
        (cost.token_us - least) / 1e3,
        f"Drafts cost more than they bring: {_of(speculation)} are accepted, and a step with them "
        f"pays from {needed:.2f} on. It takes {cost.step_us / 1e3:.2f} ms{drafting}; a token takes "
        f"{cost.token_us / 1e3:.2f} ms, without drafts at most {most / 1e3:.2f}.",
        f"Leave --speculative-config out{lower}; compare tokens/s.",
        (*_by_position(speculation),
         "Without drafts: a step with them without its drafting, which is more than one takes "
         "without." if cost.plain_by != "steps" else
         f"Without drafts: {cost.plain_steps} steps that had none."),
    )  # fmt: skip


def _hardly_any(speculation: Speculation) -> Iterator[Observation]:
    """A finding for recordings in which the cost of drafting is unknown."""
    if _upper(speculation) < _HARDLY:
        yield Observation(None,
            f"Hardly any draft is accepted: {_of(speculation)}. What drafting takes is not known.",
            "Leave --speculative-config out and compare tokens/s, or try another drafter.",
            tuple(_by_position(speculation)),
        )  # fmt: skip


@rule("drafts-too-many", "steps",
      "later drafts are accepted so seldom that a token would take 2 % less with fewer, or hardly "
      "ever")  # fmt: skip
def _too_many(report: Report) -> Iterator[Observation]:
    if (measured := _enough(report)) is None or next(iter(_loss.look(report)), None) is not None:
        return
    speculation, cost = measured
    best = _fewer(speculation, cost)
    now = cost.step_us / cost.tokens_per_step
    if best is not None and best[1] <= now * (1 - _MATTERS):
        keep, us = best
        gain: float | None = (now - us) / 1e3
        alternative = f"with {keep} it would take about {us / 1e3:.2f} ms"
    else:
        seldom = [place.position for place in speculation.positions if place.high < _SELDOM]
        keep = min(seldom, default=0) - 1
        if keep < 1 or keep >= len(speculation.positions):
            return
        gain, alternative = None, "what they cost is not known"
    last = speculation.positions[keep]
    yield Observation(
        gain,
        f"Drafts from the {_ordinal(keep + 1)} on are seldom accepted ({100 * last.share:.0f} % of "
        f"{last.proposed}); a token takes {now / 1e3:.2f} ms, {alternative}.",
        f"Set num_speculative_tokens to {keep} in --speculative-config.",
        tuple(_by_position(speculation)),
    )  # fmt: skip


@rule("drafts-too-few", "steps",
      "the last draft is accepted nearly always, so that more would bring tokens")  # fmt: skip
def _too_few(report: Report) -> Iterator[Observation]:
    if (measured := _enough(report)) is None:
        return
    speculation, cost = measured
    last = speculation.positions[-1]
    most = speculation.most or last.position
    if last.position < most or most >= _MOST_DRAFTS or last.low < _NEARLY_ALWAYS:
        return
    before = speculation.positions[-2].share if len(speculation.positions) > 1 else 1.0
    follows = min(last.share / before, 1.0) if before else 0.0
    draft_us = _each_us(speculation, cost)
    step_us, tokens, accepted = cost.step_us, cost.tokens_per_step, last.share
    now = best = (step_us / tokens, tokens, most)
    for drafts in range(most + 1, _MOST_DRAFTS + 1):
        accepted *= follows
        step_us, tokens = step_us + (draft_us or 0.0), tokens + accepted
        best = min(best, (step_us / tokens, tokens, drafts))
    if best[0] > now[0] * (1 - _MATTERS):
        return
    us, tokens, drafts = best
    yield Observation(
        (now[0] - us) / 1e3 if draft_us is not None else None,
        f"The last of {most} drafts is accepted in {100 * last.share:.0f} % of {last.proposed} "
        f"verifications: more would bring tokens. With {drafts}, accepted as the last one is, "
        f"a step gives {tokens:.1f} tokens instead of {now[1]:.1f}.",
        f"Set num_speculative_tokens to {drafts} in --speculative-config, and compare tokens/s.",
        (*_by_position(speculation), "A wider step is taken to cost no more than its drafting."),
    )  # fmt: skip


@rule("drafts-outside-graphs", "steps",
      "a tenth of the steps with drafts ran outside of CUDA graphs while others ran inside",
      ("launch_gaps", "host"))  # fmt: skip
def _outside(report: Report) -> Iterator[Observation]:
    cost = report.speculation.cost if report.speculation else None
    if cost is None or cost.outside_graphs < _MUCH_OUTSIDE * cost.steps:
        return
    share = cost.outside_graphs / cost.steps
    us = cost.outside_us * share / cost.tokens_per_step
    yield Observation(us / 1e3 if us else None,
        f"{cost.outside_graphs} of {cost.steps} steps with drafts ran outside of CUDA graphs, "
        f"{cost.outside_us / 1e3:.2f} ms longer each than those inside.",
        "Give --cudagraph-capture-sizes with requests x (1 + drafts) among them, for the numbers "
        "of requests that occur.",
        (f"A step with drafts computes {cost.width:.1f} tokens of a request.",),
    )  # fmt: skip


@rule("drafter-lm-head", "kernels",
      "a drafter's products with a 16-bit lm_head take 4 % of the decode steps of a model that is "
      "not quantized itself, on vLLM 0.33 or later")  # fmt: skip
def _wide_head(report: Report) -> Iterator[Observation]:
    speculation = report.speculation
    heads = [row for row in report.modules if row.component == LM_HEAD and row.bytes]
    # One of its own is another matrix than the model's, and of that vLLM makes no copy.
    shared = bool(heads) and not any(row.part for row in heads)
    wide = all(row.weight_dtype in _WIDE and not row.format for row in heads)
    if speculation is None or not shared or not wide or not _takes_a_copy(report, speculation):
        return
    us, whole = drafted_head_us(report), decode_steps_us(report)
    saved_us = us * (1 - FP8_OF_16_BITS)
    unquantized = next(iter(format_conversions.not_quantized.look(report)), None)
    if unquantized is not None or not whole or saved_us < _MATTERS * whole:
        return
    yield Observation(ms_per_token(report, saved_us),
        f"The drafter reads lm_head in {heads[0].weight_dtype} for each of its drafts: that takes "
        f"{us / report.steps.decode:,.1f} us of a decode step, {100 * us / whole:.1f} %.",
        "Set draft_lm_head_quantization to fp8 in --speculative-config: a copy in 8 bits for the "
        "drafter alone. The model still decides each token.",
        (f"FP8 reads {100 * FP8_OF_16_BITS:.0f} % of its bytes; a copy takes memory of its own.",),
        components=(LM_HEAD,),
    )  # fmt: skip


def _takes_a_copy(report: Report, speculation: Speculation) -> bool:
    """Whether this vLLM can give the drafter a narrow copy of the model's head."""
    method = speculation.method.lower()
    copies_head = method in ("mtp", "eagle", "eagle3") or method.endswith("_mtp")
    return copies_head and is_at_least(report, 0, 33) and report.run.mode.runner == "V2"


def _upper(speculation: Speculation) -> float:
    """Accepted drafts of a verification, at most: by the interval of each place."""
    return (
        sum(place.high * place.proposed for place in speculation.positions) / speculation.verified
    )


def _fewer(speculation: Speculation, cost: DraftCost) -> tuple[int, float] | None:
    """With how many drafts fewer a token takes least, and how long; None where nothing tells.

    What is left out is taken to be accepted as often as its interval allows.
    """
    draft_us = _each_us(speculation, cost)
    if draft_us is None or not speculation.verified:
        return None
    times: list[tuple[float, int]] = []
    lost = saved = 0.0
    for place in reversed(speculation.positions[1:]):
        share = place.proposed / speculation.verified
        lost, saved = lost + place.high * share, saved + draft_us * share
        tokens = cost.tokens_per_step - lost
        if tokens > 1:
            times.append(((cost.step_us - saved) / tokens, place.position - 1))
    if not times:
        return None
    us, keep = min(times)
    return keep, us


def _each_us(speculation: Speculation, cost: DraftCost) -> float | None:
    """What one draft more takes the drafter; None where nothing tells."""
    method = speculation.method.lower()
    one_by_one = method in _ONE_BY_ONE or method.endswith("_mtp")
    if cost.drafter_us is None or cost.drafter_by != "kernels" or not one_by_one:
        return None
    return cost.drafter_us / speculation.proposed_each if speculation.proposed_each else None


def _of(speculation: Speculation) -> str:
    return f"{speculation.accepted_each:.2f} of {speculation.proposed_each:.1f} drafts"


def _by_position(speculation: Speculation) -> Sequence[str]:
    shares = ", ".join(f"{place.accepted} of {place.proposed}" for place in speculation.positions)
    return (f"Accepted by position: {shares}.",)


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
