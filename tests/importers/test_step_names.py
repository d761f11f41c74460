"""Every row of the rule table is tested by its own examples."""

import pytest

from spark_prof.importers.steps import RULES, batch_of, rule_of

EXAMPLES = [(i, name, batch) for i, rule in enumerate(RULES) for name, batch in rule.examples]


@pytest.mark.parametrize(("rule", "name", "batch"), EXAMPLES)
def test_examples(rule, name, batch):
    assert rule_of(name) == rule
    assert batch_of(name, rule) == batch


@pytest.mark.parametrize(
    "name",
    [
        "",
        "aten::mm",
        "mod:model.layers.0",
        "forward",
        "step",
        "decoder",
        "decode",
        "prefill",
        "x" * 100_000,
        "step[]",
    ],
)
def test_what_is_no_step(name):
    assert rule_of(name) == -1


def test_a_number_that_no_engine_counts_to_is_bounded():
    name = f"execute_context_0(0)_generation_1({'9' * 40})"
    assert batch_of(name, rule_of(name)).decode_tokens == (1 << 31) - 1
