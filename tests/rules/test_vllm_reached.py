"""What spark-prof reaches into is there in every vLLM that it supports, by the generated table."""

from __future__ import annotations

import pytest

from scripts.vllm_sources.facts import names_looked_for
from scripts.vllm_sources.reached import reached
from spark_prof.profiler import vllm_names
from spark_prof.rules.vllm_reached import EITHER, OPTIONAL, REACHED, may_be_missing, missing
from spark_prof.rules.vllm_versions import Spans, releases, table

RENEW = "give all wheels to python -m scripts.vllm_sources --anew"


@pytest.mark.slow
def test_every_name_was_looked_for() -> None:
    assert set(names_looked_for()) <= {name for (name,) in table("names").rows}, RENEW


def test_every_release_has_what_it_must_have() -> None:
    rows = {name: Spans(text) for (name,), text in table("names").rows.items()}
    for release in releases():
        assert missing({name: spans.has(release) for name, spans in rows.items()}) == ()


def test_what_may_be_missing_is_missing_somewhere() -> None:
    """A row that says so for nothing hides a later loss."""
    whole = f"{releases()[0]}-"
    rows = table("names").rows
    for name in (*OPTIONAL, *EITHER, *(row.name for row in REACHED if row.optional or row.either)):
        assert rows[(name,)] not in ("", whole), name


def test_a_name_that_is_used_where_it_is_exists_somewhere() -> None:
    for (name,), text in table("names").rows.items():
        assert text, name


def test_the_names_of_the_profiler_are_among_them() -> None:
    names = {name for (name,) in table("names").rows}
    for module, owner in (vllm_names.WORKER, vllm_names.SCHEDULER, vllm_names.ENGINE_CORE):
        assert f"{module}:{owner}" in names
    assert f"vllm.compilation.wrapper:{vllm_names.COMPILED_CLASS}" in names
    methods = {call.method for call in vllm_names.CALLS} - {"run", "spark_prof_stock"}
    assert {f"vllm.*:*.{method}" for method in methods} <= names


def test_rows_are_told_once() -> None:
    names = [row.name for row in REACHED]
    assert len(names) == len(set(names))
    assert all(row.use for row in REACHED)


def test_one_of_a_group_is_enough_and_none_is_told() -> None:
    parsers = dict.fromkeys(EITHER, False)
    assert set(missing(parsers)) == set(EITHER)
    assert missing(parsers | {next(iter(EITHER)): True}) == ()
    assert missing({"vllm.x:y": False, next(iter(OPTIONAL)): False}) == ("vllm.x:y",)
    assert may_be_missing("vllm.*:*.forward_mha")


def test_what_the_sources_import_is_found(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "a.py").write_text(
        "import vllm._custom_ops as ops\n"
        "from vllm.config import set_current_vllm_config as held\n"
        "held(config, check=True)\n"
        "ops.gptq_marlin_gemm(x, is_k=1)\n"
        "PLACE = ('vllm.v1.engine.core', 'EngineCore', 'shutdown')\n"
        "NAMES = ('vllm.a.b', 'vllm.c.d')\n"
        "LOG = 'vllm.spark_prof'\n"
        "ENTRY = '_enter'\n"
        "CALLS = (InternalCall('impl', 'forward'), InternalCall('', ENTRY))\n"
    )
    assert reached(tmp_path) == {
        "vllm._custom_ops:", "vllm._custom_ops:gptq_marlin_gemm",
        "vllm._custom_ops:gptq_marlin_gemm(is_k)", "vllm.config:set_current_vllm_config",
        "vllm.config:set_current_vllm_config(check)", "vllm.v1.engine.core:EngineCore.shutdown",
        "vllm.a.b:", "vllm.c.d:", "vllm.*:*.forward", "vllm.*:*._enter",
    }  # fmt: skip
