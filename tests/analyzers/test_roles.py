"""The table of standard roles against its own examples."""

from __future__ import annotations

import re

import pytest

from spark_prof.analyzers.roles import ROLES, RoleRule, standard_role

EXAMPLES = [(rule, *example) for rule in ROLES for example in rule.examples]


@pytest.mark.parametrize(("rule", "path", "tensor"), EXAMPLES, ids=lambda value: str(value)[:50])
def test_an_example_matches_its_own_row_first(rule: RoleRule, path: str, tensor: str) -> None:
    first = next(r for r in ROLES if re.search(r.pattern, path) and re.search(r.tensor, tensor))
    assert first is rule
    assert standard_role(path, tensor) == rule.role
    assert standard_role(f"drafter.{path}", tensor) == f"drafter.{rule.role}"


@pytest.mark.parametrize(
    ("path", "tensor"),
    [
        ("", ""),
        ("model", ""),
        ("model.layers.0", ""),
        ("model.layers.0.input_layernorm", "weight"),
        ("model.layers.0.self_attn", ""),
        # Which of its parts works for a mixer is not told by its path.
        ("backbone.layers.0.mixer", ""),
        # A scale is read with its weight, but is not one of the two absorbed products.
        ("model.layers.0.self_attn.mla_attn.mla_attn", "W_K_scale"),
    ],
)
def test_what_has_no_standard_role(path: str, tensor: str) -> None:
    assert standard_role(path, tensor) == ""
