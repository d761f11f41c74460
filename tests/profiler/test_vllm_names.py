"""The internals of vLLM that spark-prof reaches into are there in the installed version.

The versions below were read in the sources of vLLM 0.24.0, 0.25.1, 0.26.0, 0.27.1, 0.28.0, 0.29.0,
0.30.0, 0.31.0, 0.32.0 and 0.33.0; this test looks at the installed one.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from pathlib import Path

import pytest

from spark_prof.profiler.vllm_names import (
    CALLS,
    COMPILED_CLASS,
    MOE_RUNNER_ENTRY,
    SCHEDULER,
    WORKER,
    is_supported,
)
from tests.rows import each_row

with_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here"
)


@each_row("version", ["0.23.0", "0.34.0", "1.0.0", "0.9.2", "", "dev", "0.240.0"])
def test_other_versions(version: str) -> None:
    assert not is_supported(version)


@with_vllm
def test_the_installed_version_is_supported() -> None:
    import vllm

    assert is_supported(vllm.__version__)


@with_vllm
@pytest.mark.parametrize(
    ("where", "methods"),
    [
        (WORKER, ("execute_model", "sample_tokens", "shutdown", "compile_or_warm_up_model")),
        (SCHEDULER, ("schedule", "update_from_output", "get_num_unfinished_requests")),
    ],
)
def test_the_wrapped_classes(where: tuple[str, str], methods: tuple[str, ...]) -> None:
    owner = getattr(importlib.import_module(where[0]), where[1])
    for method in methods:
        assert callable(getattr(owner, method))


@with_vllm
def test_the_batch() -> None:
    from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

    fields = set(SchedulerOutput.__dataclass_fields__)
    assert fields >= {"scheduled_new_reqs", "scheduled_cached_reqs", "num_scheduled_tokens",
                      "total_num_scheduled_tokens"}  # fmt: skip
    assert set(CachedRequestData.__dataclass_fields__) >= {"req_ids", "num_computed_tokens"}
    assert callable(CachedRequestData.is_context_phase)
    assert set(NewRequestData.__dataclass_fields__) >= {"req_id", "num_computed_tokens"}


@with_vllm
def test_the_compiled_class() -> None:
    wrapper = importlib.import_module("vllm.compilation.wrapper")
    assert inspect.isclass(getattr(wrapper, COMPILED_CLASS))


@with_vllm
def test_the_calls_inside_opaque_ops() -> None:
    """Every name in CALLS but our own is called in vLLM's layers, as attribute of its holder."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    layers = Path(str(spec.origin)).parent / "model_executor" / "layers"
    source = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("attention", "fused_moe/runner")
        for path in (layers / folder).glob("*.py")
    )
    for call in CALLS:
        if call.whole:  # of a layer that this package has swapped
            continue
        name = f".{call.holder}.{call.method}(" if call.holder else f".{call.method}("
        assert name in source, name
    assert any(call.method == MOE_RUNNER_ENTRY for call in CALLS)
