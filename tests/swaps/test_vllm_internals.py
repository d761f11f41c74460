"""What the tap and the clock read of vLLM is there in the installed version.

The same was looked at in the sources of vLLM 0.24.0, 0.26.0, 0.27.1, 0.29.0, 0.31.0, 0.32.0 and
0.33.0, by running this file with SPARK_PROF_VLLM_SOURCES set to each one's folder.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None and "SPARK_PROF_VLLM_SOURCES" not in os.environ,
    reason="vLLM is not installed here",
)

FIRST, SECOND = "v1/worker/gpu_model_runner.py", "v1/worker/gpu/model_runner.py"
SCHEDULED = "v1/core/sched/output.py"


def tree(path: str) -> ast.Module:
    folder = os.environ.get("SPARK_PROF_VLLM_SOURCES", "")
    if not folder:
        spec = importlib.util.find_spec("vllm")
        assert spec is not None
        assert spec.submodule_search_locations
        folder = spec.submodule_search_locations[0]
    return ast.parse((Path(folder) / path).read_text())


def found_class(path: str, name: str) -> ast.ClassDef:
    return next(
        node
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef) and node.name == name
    )


def method(path: str, owner: str, name: str) -> ast.FunctionDef:
    body = found_class(path, owner).body
    return next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)


def calls(node: ast.AST) -> list[str]:
    """The methods that are called, in the order of the source."""
    return [
        call.func.attr
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    ]


def fields(path: str, owner: str) -> set[str]:
    return {
        node.target.id
        for node in found_class(path, owner).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


@pytest.mark.parametrize(
    ("path", "name"), [(FIRST, "execute_model"), (SECOND, "sample")], ids=["first", "second"]
)
def test_the_step_computes_its_logits_through_the_model(path: str, name: str) -> None:
    runner = method(path, "GPUModelRunner", name)
    models = [
        ast.unparse(call.func.value)
        for call in ast.walk(runner)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "compute_logits"
    ]
    assert models
    assert set(models) == {"self.model"}


@pytest.mark.parametrize("path", [FIRST, SECOND], ids=["first", "second"])
def test_both_model_runners_hand_out_their_model(path: str) -> None:
    assert method(path, "GPUModelRunner", "get_model")


def test_the_second_model_runner_keeps_the_order_of_the_rows_until_it_samples() -> None:
    assert "input_batch" in fields(SECOND, "ExecuteModelState")
    assert "sample" in calls(method(SECOND, "GPUModelRunner", "sample_tokens"))
    assert "req_ids" in fields("v1/worker/gpu/input_batch.py", "InputBatch")


def test_the_first_model_runner_has_no_state_of_its_own_in_its_batch() -> None:
    assert "input_batch" not in fields(FIRST, "ExecuteModelState")
    assert method("v1/worker/gpu_input_batch.py", "InputBatch", "req_ids")


def test_what_the_scheduler_tells_of_a_step() -> None:
    assert {"req_id", "prompt_token_ids", "num_computed_tokens"} <= fields(
        SCHEDULED, "NewRequestData"
    )
    assert {"req_ids", "num_computed_tokens"} <= fields(SCHEDULED, "CachedRequestData")
    assert {
        "scheduled_new_reqs", "scheduled_cached_reqs", "num_scheduled_tokens",
        "total_num_scheduled_tokens",
    } <= fields(SCHEDULED, "SchedulerOutput")  # fmt: skip
    assert method(SCHEDULED, "CachedRequestData", "is_context_phase")


def test_the_rank_among_those_that_share_a_matrix() -> None:
    functions = [
        node.name
        for node in tree("distributed/parallel_state.py").body
        if isinstance(node, ast.FunctionDef)
    ]
    assert "get_tensor_model_parallel_rank" in functions


def test_engines_that_are_refused_are_told_apart() -> None:
    assert "speculative_config" in fields("config/vllm.py", "VllmConfig")
    assert {"pipeline_parallel_size", "data_parallel_size"} <= fields(
        "config/parallel.py", "ParallelConfig"
    )
