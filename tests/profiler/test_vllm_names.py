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
    NEWEST,
    OLDEST,
    RUN_MODEL,
    SCHEDULER,
    WORKER,
    is_supported,
)
from tests.profiler.opaque_ops import body_calls, called, gone, unmarked
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


def _installed() -> Path:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    return Path(str(spec.origin)).parent


@with_vllm
def test_every_body_of_an_opaque_op_is_marked() -> None:
    """Else its kernels would have no range in a compiled model, as GDN's with speculation had."""
    assert len(body_calls(_installed())) > 10
    assert unmarked(_installed()) == {}


@with_vllm
def test_the_method_in_which_a_speculator_calls_its_model() -> None:
    folder = _installed() / "v1" / "worker" / "gpu" / "spec_decode"
    sources = [path.read_text("utf-8") for path in folder.rglob("*.py")]
    calling = [one for one in sources if "self.model(" in one and "_manager.capture(" in one]
    assert calling  # others capture nothing
    for source in calling:
        assert f"    def {RUN_MODEL}(" in source


@with_vllm
def test_no_row_is_of_a_call_that_is_gone() -> None:
    import vllm

    version = tuple(map(int, vllm.__version__.split(".")[:2]))
    assert gone(_installed(), (version[0], version[1])) == []
    folders = ("attention", "fused_moe/runner")
    layers = _installed() / "model_executor" / "layers"
    source = "\n".join(p.read_text("utf-8") for f in folders for p in (layers / f).glob("*.py"))
    for call in CALLS:
        if not call.ops and not call.whole:  # below a body
            assert f".{called(call)}(" in source
    assert any(call.method == MOE_RUNNER_ENTRY for call in CALLS)


def test_a_body_that_no_row_marks_is_told(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    body = "def body(x, layer_name):\n    self = no_compile_layers[layer_name]\n    self.{}(x)\n"
    register = "direct_register_custom_op(op_name='{}', op_func=body)\n"
    for file, method, op in (
        ("new", "_forward_core_next", "gdn_next"),
        ("old", "_forward_core", "qwen_gdn_attention_core"),
    ):  # fmt: skip
        (tmp_path / "models" / f"{file}.py").write_text(body.format(method) + register.format(op))
    assert unmarked(tmp_path) == {"gdn_next": {"_forward_core_next"}}
    assert gone(tmp_path, NEWEST) == []
    (tmp_path / "models" / "old.py").write_text(
        body.format("run") + register.format("qwen_gdn_attention_core")
    )
    assert gone(tmp_path, NEWEST) == ["qwen_gdn_attention_core: _forward_core"]


@each_row(("since", "until"), [(call.since, call.until) for call in CALLS])
def test_the_versions_of_a_row(since: tuple[int, int], until: tuple[int, int]) -> None:
    assert OLDEST <= since <= until <= NEWEST
