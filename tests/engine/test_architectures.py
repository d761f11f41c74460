"""Architectures unlike Llama and MoE on vLLM's CPU engine: every layer and component, by module."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.architecture_compare import Owned, decode_step
from benchmarks.architecture_table import ARCHITECTURES, config_of
from spark_prof import load
from tests.engine.conftest import NOTHING_COMPUTED, ONE_PROCESS, Recorder

ROWS = {row.name: row for row in ARCHITECTURES}
ATTENTION = {"norm", "qkv", "rope", "kv_write", "attention", "o_proj"}


@dataclass(frozen=True)
class Expected:
    """What a model's decode step must have.

    Attributes:
        layers: components of each layer.
        modules: components that a module's kernels may have, by its role.
        between: operators that the model runs between its modules, in no component.
    """

    layers: tuple[frozenset[str], ...]
    modules: Mapping[str, set[str]]
    between: frozenset[str] = frozenset()


DENSE = frozenset(ATTENTION | {"mlp"})
EXPECTED = {
    # Latent attention; dense and MoE layers.
    "deepseek-v2": Expected(
        (DENSE,) * 2 + (frozenset(ATTENTION | {"router", "experts", "shared_experts"}),) * 2,
        {
            "self_attn.q_proj": {"qkv"},
            "self_attn.kv_a_proj_with_mqa": {"qkv"},
            "self_attn.kv_a_layernorm": {"norm"},
            "self_attn.mla_attn": {"kv_write", "attention"},
            "self_attn.o_proj": {"o_proj"},
            "mlp.gate": {"router"},
            "mlp.experts": {"experts"},
            "mlp.shared_experts.down_proj": {"shared_experts"},
        },
    ),
    # Attention and Mamba-2 beside one another in every layer.
    "falcon-h1": Expected(
        (frozenset(DENSE | {"ssm"}),) * 2,
        {
            "mamba.in_proj": {"ssm"},
            "mamba": {"ssm"},
            "mamba.out_proj": {"ssm"},
            "self_attn.qkv_proj": {"qkv"},
            "feed_forward.down_proj": {"mlp"},
        },
        # Its multipliers, and the sum of attention and Mamba.
        frozenset({"aten::_to_copy", "aten::add", "aten::empty_strided", "aten::mul"}),
    ),
}


@pytest.fixture(scope="module", params=EXPECTED)
def recorded(
    request: pytest.FixtureRequest, record: Recorder, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[Owned]]:
    """The architecture's name and its decode step at batch 1, eager."""
    name: str = request.param
    model: Path = tmp_path_factory.mktemp(name)
    config = config_of(ROWS[name], small=True)
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    sizes = "--batch 1 --prompt 16 --tokens 6 --rounds 1"
    command = [sys.executable, "-m", "demo.workload", str(model), *sizes.split()]
    run = record(f"architecture-{name}", command, **ONE_PROCESS)
    return name, decode_step(load(run.bundle))


def test_every_layer_has_its_components(recorded: tuple[str, list[Owned]]) -> None:
    name, step = recorded
    found: dict[int, set[str]] = {}
    for kernel in step:
        if kernel.layer >= 0 and kernel.component not in ("memcpy", "other"):
            found.setdefault(kernel.layer, set()).add(kernel.component)
    assert found == dict(enumerate(EXPECTED[name].layers))


def test_layers_of_a_kind_run_the_same(recorded: tuple[str, list[Owned]]) -> None:
    """By module and component; of norms, which have no residual to add in the first layer, none."""
    name, step = recorded
    sequences: dict[frozenset[str], set[tuple[tuple[str, str], ...]]] = {}
    for layer, kind in enumerate(EXPECTED[name].layers):
        rows = [(k.range_role, k.component) for k in step if k.layer == layer]
        sequences.setdefault(kind, set()).add(tuple(row for row in rows if row[1] != "norm"))
    assert [len(alike) for alike in sequences.values()] == [1] * len(sequences)


def test_modules_have_their_components(recorded: tuple[str, list[Owned]]) -> None:
    name, step = recorded
    for module, components in EXPECTED[name].modules.items():
        found = {kernel.component for kernel in step if kernel.range_role == module}
        assert found - {"memcpy"} == components, module


def test_what_computes_has_a_component(recorded: tuple[str, list[Owned]]) -> None:
    name, step = recorded
    other = {kernel.full_name for kernel in step if kernel.component == "other"}
    assert other - NOTHING_COMPUTED <= EXPECTED[name].between
