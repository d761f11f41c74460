"""Facts of an engine as a recording has them, also of one that somebody made up."""

from __future__ import annotations

from typing import Any, cast

import pytest

from spark_prof.traces.bundle import Bundle
from spark_prof.tune.engine_traits import MachineFacts, recorded_facts


class _Told:
    ranks = (3, 1)

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = facts

    def facts(self, rank: int) -> dict[str, Any]:
        return self._facts if rank == 1 else {}


def _facts(**told: Any) -> MachineFacts:
    return recorded_facts(cast(Bundle, _Told(told)))


def test_configurations_inside_of_configurations() -> None:
    passes = "PassConfig(fuse_norm_quant=False, sp_min_token_num=None)"
    priority = "IrOpPriorityConfig(rms_norm=['vllm_c', 'native'], fused_add_rms_norm=['native'])"
    found = _facts(
        engine_config={
            "compilation_config": {"mode": "3", "pass_config": passes},
            "kernel_config": {"ir_op_priority": priority},
        },
        model_config={"architectures": ["A", "B"]},
        gpu={"name": "G", "compute_capability": "9.0"},
        flashinfer="",
    )
    read = found.configuration
    assert read["compilation_config.mode"] == "3"
    assert read["compilation_config.pass_config.fuse_norm_quant"] == "False"
    assert read["kernel_config.ir_op_priority.rms_norm"] == "['vllm_c', 'native']"
    assert (found.gpu, found.capability, found.architecture) == ("G", "9.0", "A")
    assert found.flashinfer == ""
    assert _facts().flashinfer is None


@pytest.mark.parametrize("wrong", [None, [], 3, "text", [None], {"a": None}, {"a": [1]}])
def test_facts_of_another_kind(wrong: Any) -> None:
    names = ("engine_config", "gpu", "model_config", "environment", "vllm", "flashinfer")
    found = _facts(**dict.fromkeys(names, wrong))
    assert found.capability == ""
    assert all(isinstance(value, str) for value in found.configuration.values())
