"""What slot `layer` takes of recorded models, and what is tried beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_prof.ab.sides import parse_side
from spark_prof.analyzers.model import Report
from spark_prof.tune.beside_layer import layer_components, slots_beside_layer, why_no_experts
from spark_prof.tune.candidates import Allowed, candidates_of
from spark_prof.tune.tune_trial import CandidateTable, UntriedCandidate
from tests.tune.test_candidates import _command, _recorded

_DEEPSEEK, _NEXT = "architectures/deepseek-v2/default", "architectures/qwen3-next/default"
_GPT, _DENSE = "h100-gpt-oss-20b-mxfp4-graphs", "code-h100/dense-nvfp4"
_TAKEN = {"moe", "router", "qkv", "mlp", "norm"}


def _stored(report: Report, component: str, dtype: str) -> Report:
    """The same model with a component's weights in another format."""
    rows = tuple(
        replace(row, dtype=dtype) if row.component == component else row for row in report.streamed
    )
    assert report.roofline is not None
    return replace(report, roofline=replace(report.roofline, weights=rows))


@pytest.mark.parametrize(
    ("name", "slots"),
    [(_DEEPSEEK, {"qkv", "mlp"}), (_NEXT, {"qkv"}), (_GPT, set()), (_DENSE, set())],
)
def test_slots_that_layer_leaves_something(name: str, slots: set[str]) -> None:
    report, facts = _recorded(name)
    assert slots_beside_layer(report, facts.architecture) == slots
    assert slots_beside_layer(replace(report, roofline=None), facts.architecture) == slots
    assert not slots_beside_layer(replace(report, modules=()), facts.architecture)
    assert not slots_beside_layer(report, "FalconMambaForCausalLM")  # which it does not know


def test_experts_that_layer_does_not_take_are_left_with_their_router() -> None:
    report, facts = _recorded(_GPT)
    other = _stored(report, "experts", "int4")
    assert slots_beside_layer(other, facts.architecture) == {"moe", "router"}
    report, facts = _recorded(_DEEPSEEK)
    for component in ("experts", "shared_experts"):  # one of which is in FP8
        other = _stored(report, component, "fp8")
        assert "formats differ" in why_no_experts(other, facts.architecture)
        left = slots_beside_layer(other, facts.architecture)
        assert left == {"qkv", "mlp", "moe", "router"}
    assert "groups" in why_no_experts(report, "DeepseekV3ForCausalLM")
    modules = tuple(replace(m, kernel="FlashInferExperts" * bool(m.kernel)) for m in report.modules)
    elsewhere = replace(report, modules=modules)
    assert "--moe-backend triton" in why_no_experts(elsewhere, facts.architecture)
    assert not why_no_experts(report, facts.architecture)


def test_components_are_those_of_the_part_that_is_replaced() -> None:
    assert "attention" not in layer_components("Qwen3NextForCausalLM")
    assert "attention" in layer_components("GptOssForCausalLM")


def _table(name: str, allowed: Allowed, *, measured: bool) -> CandidateTable:
    report, facts = _recorded(name)
    facts = replace(facts, batch_sizes=(1,), capability=facts.capability if measured else "12.1")
    if not measured:
        gpu = replace(report.gpu, compute_capability="12.1")
        report = replace(report, findings=(), gpu=gpu)
    return candidates_of(report, _command(("m",)), facts, allowed)


@pytest.mark.parametrize("name", [_DEEPSEEK, _NEXT, _GPT, _DENSE])
@pytest.mark.parametrize("measured", [True, False])
def test_no_candidate_has_a_slot_that_layer_takes_whole(name: str, measured: bool) -> None:
    for allowed in (Allowed(), Allowed(requantize=True)):
        table = _table(name, allowed, measured=measured)
        of_layer = [s for s in map(_slots, table.candidates) if "layer" in s]
        assert of_layer
        for slots in of_layer:
            assert slots.isdisjoint(_TAKEN - {*table.beside_layer})


def _slots(row: object) -> set[str]:
    return {swap.slot for swap in parse_side(getattr(row, "words", "")).swaps}


def test_layer_is_offered_with_what_it_leaves_where_its_experts_are_taken() -> None:
    table = _table(_DEEPSEEK, Allowed(), measured=False)
    assert table.beside_layer == ("mlp", "qkv")
    sets = [_slots(row) for row in table.candidates]
    assert {"layer", "qkv", "o", "mlp", "lm_head"} in sets
    table = _table(_DEEPSEEK, Allowed(requantize=True), measured=False)
    words = [row.words for row in table.candidates]
    assert "layer=mxfp4,qkv=mxfp4,o=mxfp4,mlp=mxfp4,lm_head=mxfp4" in words
    [row] = [row for row in table.candidates if row.words == "layer=spark_prof!"]
    assert "one engine a side" in row.condition
    report, facts = _recorded("architectures/deepseek-v3-mtp/default")
    left = candidates_of(report, _command(("m",)), facts, Allowed()).left_out
    [untried] = [row for row in left if row.words.startswith("layer")]
    assert isinstance(untried, UntriedCandidate)
    assert "groups" in untried.why
