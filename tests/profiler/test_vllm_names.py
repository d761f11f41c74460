"""What spark-prof marks in the installed vLLM, read in its sources without importing them.

That the names it reaches into are there in every version tests/rules/test_vllm_reached.py says.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from spark_prof.profiler.vllm_names import (
    CALLS,
    MOE_RUNNER_ENTRY,
    NEWEST,
    OLDEST,
    RUN_MODEL,
    is_supported,
)
from tests.profiler.opaque_ops import Bodies, body_calls, called, gone, unmarked
from tests.rows import each_row

with_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here"
)


@each_row("version", ["0.23.0", "0.34.0", "1.0.0", "0.9.2", "", "dev", "0.240.0"])
def test_other_versions(version: str) -> None:
    assert not is_supported(version)


def _version() -> str:
    found = re.search(r"version = '([^']+)'", (_installed() / "_version.py").read_text("utf-8"))
    assert found
    return found[1]


@with_vllm
def test_the_installed_version_is_supported() -> None:
    assert is_supported(_version())


def _installed() -> Path:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    return Path(str(spec.origin)).parent


@pytest.fixture(scope="module")
def bodies() -> Bodies:
    return body_calls(_installed())


@pytest.mark.slow
@with_vllm
def test_every_body_of_an_opaque_op_is_marked(bodies: Bodies) -> None:
    """Else its kernels would have no range in a compiled model, as GDN's with speculation had."""
    assert len(bodies) > 10
    assert unmarked(bodies) == {}


@with_vllm
def test_the_method_in_which_a_speculator_calls_its_model() -> None:
    folder = _installed() / "v1" / "worker" / "gpu" / "spec_decode"
    sources = [path.read_text("utf-8") for path in folder.rglob("*.py")]
    calling = [one for one in sources if "self.model(" in one and "_manager.capture(" in one]
    assert calling  # others capture nothing
    for source in calling:
        assert f"    def {RUN_MODEL}(" in source


@with_vllm
def test_no_row_is_of_a_call_that_is_gone(bodies: Bodies) -> None:
    major, minor = map(int, _version().split(".")[:2])
    assert gone(bodies, (major, minor)) == []
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
    assert unmarked(body_calls(tmp_path)) == {"gdn_next": {"_forward_core_next"}}
    assert gone(body_calls(tmp_path), NEWEST) == []
    (tmp_path / "models" / "old.py").write_text(
        body.format("run") + register.format("qwen_gdn_attention_core")
    )
    assert gone(body_calls(tmp_path), NEWEST) == ["qwen_gdn_attention_core: _forward_core"]


@each_row(("since", "until"), [(call.since, call.until) for call in CALLS])
def test_the_versions_of_a_row(since: tuple[int, int], until: tuple[int, int]) -> None:
    assert OLDEST <= since <= until <= NEWEST
