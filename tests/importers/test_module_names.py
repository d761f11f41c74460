"""Every row of the rule table is tested by its own examples."""

import pytest

from spark_prof.importers.module_names import RULES, module_name, names_module

EXAMPLES = [example for rule in RULES for example in rule.examples]


@pytest.mark.parametrize(("name", "found"), EXAMPLES)
def test_examples(name, found):
    assert module_name(name) == found


@pytest.mark.parametrize(
    "name",
    [
        "", "aten::mm", "model", "nn.Module: ", "nn.Module: Linear", "ProfilerStep#6",
        "execute_context_1(64)_generation_0(0)", "torch/nn/modules/module.py(1779): _call_impl",
        "## Call CompiledFxGraph abc ##", "nccl:all_reduce", "mod:", "mod:a b", "ncclAllReduce",
    ],
)  # fmt: skip
def test_what_names_no_module(name):
    assert not names_module(name)


def test_a_dictionary_of_any_length_is_read():
    name = "{'Module': 'top.model.layers.3.mlp', 'Inputs': [" + "[1, 4096], " * 5000 + "]}"
    assert module_name(name).path == "model.layers.3.mlp"
