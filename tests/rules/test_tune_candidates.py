"""What can be tried exists in vLLM: in the releases that have it, and in the installed one."""

from __future__ import annotations

from typing import Any

import pytest

from spark_prof.ab.engine_options import set_options
from spark_prof.ab.sides import parse_side
from spark_prof.analyzers.findings.ranking import RULES
from spark_prof.rules.environment import version_of
from spark_prof.rules.tune_candidates import TRAITS, TUNABLES, Tunable
from spark_prof.rules.vllm_versions import has_option, reads, releases, takes


def _named(row: Tunable) -> dict[str, set[str]]:
    """What a row names of vLLM, by where it stands."""
    found: dict[str, set[str]] = {}
    words = row.words.format(sizes="1,2", graphs="1 2")
    if words.startswith("VLLM_"):
        return {"environment": {words.partition("=")[0]}}
    for name in set_options(parse_side(words).options):
        root, _, field = name.replace("--no-", "--", 1).rpartition(".")
        found.setdefault(root, set()).add(field)
    return found


@pytest.mark.parametrize("row", TUNABLES, ids=lambda row: row.words)
def test_every_release_has_what_it_is_said_to_have(row: Tunable) -> None:
    for release in releases():
        has = all(
            reads(name, release)
            if root == "environment"
            else has_option(f"{root}.{name}".lstrip("."), release)
            for root, names in _named(row).items()
            for name in names
        )
        assert has is (row.since <= version_of(release) < row.until), release


@pytest.mark.parametrize("row", TUNABLES, ids=lambda row: row.words)
def test_every_release_that_has_it_takes_the_value(row: Tunable) -> None:
    words = row.words.format(sizes="1,2", graphs="1 2")
    given = (
        [words.partition("=")[::2]]
        if words.startswith("VLLM_")
        else set_options(parse_side(words).options).items()
    )
    for release in releases():
        if row.since <= version_of(release) < row.until:
            for option, value in given:
                assert value is True or takes(option, str(value), release) is not False


@pytest.mark.parametrize("row", TUNABLES, ids=lambda row: row.words)
def test_vllm_0_32_has_what_it_is_said_to_have(row: Tunable, vllm_names: dict[str, Any]) -> None:
    version = vllm_names["version"]
    has = all(names <= vllm_names.get(root, set()) for root, names in _named(row).items())
    assert has is (row.since <= version < row.until)


@pytest.fixture(scope="module")
def vllm_names() -> dict[str, Any]:
    pytest.importorskip("vllm")
    from vllm import __version__, envs
    from vllm.config.compilation import CompilationConfig, PassConfig
    from vllm.config.kernel import IrOpPriorityConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser: Any = EngineArgs.add_cli_args(FlexibleArgumentParser())
    fields = "__dataclass_fields__"
    return {
        "version": tuple(map(int, __version__.split(".")[:2])),
        "--compilation-config": set(getattr(CompilationConfig, fields)),
        "--compilation-config.pass_config": set(getattr(PassConfig, fields)),
        "--ir-op-priority": set(getattr(IrOpPriorityConfig, fields)),
        "environment": set(envs.environment_variables),
        "": {name for action in parser._actions for name in action.option_strings},
    }


def test_values_are_those_of_vllm() -> None:
    compilation = pytest.importorskip("vllm.config.compilation")
    from vllm.config.cache import CacheDType

    values = {
        name: value
        for row in TUNABLES
        for name, value in set_options(row.words.format(sizes="1", graphs="1").split()).items()
    }
    assert "fp8" in CacheDType.__args__
    assert values["--kv-cache-dtype"] == "fp8"
    modes = [row.words.rpartition("=")[2] for row in TUNABLES if "cudagraph_mode=" in row.words]
    assert {"FULL", "PIECEWISE", "FULL_AND_PIECEWISE"} == {*modes}
    assert {*modes} <= set(compilation.CUDAGraphMode.__members__)
    assert int(values["--compilation-config.mode"]) == compilation.CompilationMode.NONE


def test_levels_2_and_3_are_the_same() -> None:
    config = pytest.importorskip("vllm.config.vllm")
    assert config.OPTIMIZATION_LEVEL_02 == config.OPTIMIZATION_LEVEL_03


def test_traits_and_findings_exist() -> None:
    needs = {trait for row in TUNABLES for trait in row.needs.split()}
    assert needs == set(TRAITS)
    known = {rule.id for rule in RULES}
    assert {name for row in TUNABLES for name in row.findings} <= known
    assert len({row.words for row in TUNABLES}) == len(TUNABLES)
    assert all(bool(row.condition) is not bool(row.never) for row in TUNABLES)


def test_vllms_parser_takes_the_words() -> None:
    arguments = pytest.importorskip("vllm.engine.arg_utils").EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser: Any = arguments.add_cli_args(FlexibleArgumentParser())
    taken = {}
    for row in TUNABLES:
        side = parse_side(row.words.format(sizes="1,2", graphs="1 2"))
        if side.options and not row.never:
            taken[row.words] = parser.parse_args(list(side.options))
    graphs = taken["--cudagraph-capture-sizes {graphs}"]
    assert graphs.cudagraph_capture_sizes == [1, 2]
    [sized] = [found for words, found in taken.items() if "compile_sizes" in words]
    assert sized.compilation_config.compile_sizes == [1, 2]
    [native] = [found for words, found in taken.items() if "custom_ops" in words]
    assert native.compilation_config.custom_ops == ["all"]
    [norms] = [found for words, found in taken.items() if "ir-op" in words]
    assert norms.ir_op_priority.rms_norm == ["vllm_c"]
    assert not taken["--no-enforce-eager"].enforce_eager
