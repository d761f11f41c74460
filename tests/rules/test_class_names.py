"""Every row of the rule table is tested by its own examples."""

import pytest

from spark_prof.rules.components import CLASS_RULES, component_of_class, is_layer_class
from spark_prof.vocabulary import COMPONENTS

EXAMPLES = [(rule.component, *example) for rule in CLASS_RULES for example in rule.examples]


@pytest.mark.parametrize(("component", "name", "around"), EXAMPLES)
def test_examples(component, name, around):
    assert component_of_class(name, around) == component


@pytest.mark.parametrize(
    ("name", "component"),
    [("Qwen3MoeAttention", "attention"), ("Qwen3MoeMLP", "mlp"), ("Qwen3MoeRMSNorm", "norm")],
)
def test_a_model_with_experts_in_its_name(name, component):
    assert component_of_class(name, "Qwen3MoeDecoderLayer") == component


def test_every_component_is_in_the_vocabulary():
    assert {rule.component for rule in CLASS_RULES} <= {*COMPONENTS, ""}


@pytest.mark.parametrize(
    "name",
    [
        "Dropout",
        "SiLU",
        "ModuleList",
        "GptOssForCausalLM",
        "QuantFP8",
        "Qwen3MoeForCausalLM",
        "Qwen3MoeModel",
        "Qwen3MoeDecoderLayer",
    ],
)
def test_a_class_that_says_nothing(name):
    assert component_of_class(name, "") == ""


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("TransformerBlock", True),
        ("LlamaDecoderLayer", True),
        ("Linear", False),
        ("MLPBlock", False),
    ],
)
def test_layer_classes(name, found):
    assert is_layer_class(name) is found
