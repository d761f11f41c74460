"""What vLLM's releases have, by the generated tables; and the hand-written rows against them."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_prof.ab.sides import BACKENDS
from spark_prof.profiler.vllm_names import NEWEST, OLDEST
from spark_prof.rules import environment, tune_candidates
from spark_prof.rules.harmless_options import OPTIONS, VARIABLES
from spark_prof.rules.vllm_versions import (
    Spans,
    around,
    breakable_by_default,
    has_option,
    is_listed,
    log_formats,
    number_of,
    reads,
    release_of,
    releases,
    span_of_variable,
    table,
    takes,
    values_of,
)
from tests.rows import each_row

PACKAGE = Path(tune_candidates.__file__).parents[1]
DOCS = PACKAGE.parent / "docs"
TABLES = ("architectures", "names", "options", "variables", "log_formats")


@each_row(
    ("version", "release", "near"),
    [
        ("0.26.0", "0.26.0", ("0.26.0",)),
        ("v0.26.0+cu130", "0.26.0", ("0.26.0",)),
        ("0.27", "0.27.1", ("0.27.1",)),
        ("0.26.0.post1", "0.26.0", ("0.26.0",)),
        ("0.26.0rc1", "0.26.0", ("0.25.1", "0.26.0")),
        ("0.26.1.dev3+g123", "0.26.0", ("0.26.0", "0.27.0")),
        ("0.33.1.dev3", "0.33.0", ("0.33.0", "")),
        ("0.40.0", None, ("0.33.0", "")),
        ("0.24.0rc1", "0.24.0", ()),
        ("0.9.2", None, ()),
        ("nightly", None, ()),
        ("", None, ()),
    ],
)
def test_the_releases_of_a_version(
    version: str, release: str | None, near: tuple[str, ...]
) -> None:
    assert release_of(version) == release
    assert around(version) == near


def test_spans() -> None:
    spans = Spans("0.24.0 0.26.0-0.27.1 0.30.0-")
    having = [release for release in releases() if spans.has(release)]
    assert having[:5] == ["0.24.0", "0.26.0", "0.27.0", "0.27.1", "0.30.0"]
    assert not Spans("").has("0.26.0")


@each_row(
    ("architecture", "version", "breakable"),
    [
        ("DeepseekV4ForCausalLM", "0.24.0", True),
        ("KimiLinearForCausalLM", "0.26.0", False),
        ("KimiLinearForCausalLM", "0.27.0", True),
        ("DeepseekV32ForCausalLM", "0.28.0", False),
        ("DeepseekV32ForCausalLM", "0.29.0", True),
        ("Qwen4ExpForCausalLM", "0.30.0", True),
        ("BeamForCausalLM", "0.33.0", True),
        ("LlamaForCausalLM", "0.33.0", False),
        ("LlamaForCausalLM", "0.40.0", None),
    ],
)
def test_breakable_graphs(architecture: str, version: str, breakable: bool | None) -> None:
    assert breakable_by_default(architecture, version) is breakable


@each_row(
    ("name", "version", "read"),
    [
        ("VLLM_TRITON_ATTN_USE_TD", "0.28.0", True),
        ("VLLM_TRITON_ATTN_USE_TD", "0.29.0", False),
        ("VLLM_TRITON_ATTN_USE_TD", "0.28.1.dev5", None),
        ("VLLM_TRITON_ATTN_USE_TD", "0.34.0", False),
        ("VLLM_GDN_DECODE_KERNEL", "0.27.1", False),
        ("VLLM_GDN_DECODE_KERNEL", "0.28.0", True),
        ("VLLM_GDN_DECODE_KERNEL", "0.34.0", None),
        ("VLLM_NEVER_THERE", "0.33.0", False),
        ("VLLM_NEVER_THERE", "0.32.1.dev5", None),
        ("VLLM_MORIIO_NUM_WORKERS", "0.33.0", True),
        ("VLLM_USE_DEEP_GEMM", "0.9.0", None),
    ],
)
def test_variables(name: str, version: str, read: bool | None) -> None:
    assert reads(name, version) is read


def test_a_variable_that_is_read_without_being_listed() -> None:
    assert is_listed("VLLM_MORIIO_NUM_WORKERS", "0.33.0") is False
    assert is_listed("VLLM_USE_DEEP_GEMM", "0.33.0") is True


@each_row(
    ("option", "value", "version", "taken"),
    [
        ("--moe-backend", "b12x", "0.28.0", False),
        ("--moe-backend", "b12x", "0.29.0", True),
        ("--linear-backend", "b12x", "0.28.0", True),
        ("--linear-backend", "humming", "0.24.0", False),
        ("--moe-backend", "flashinfer-cutlass", "0.33.0", True),
        ("--attention-backend", "TRITON_FLASHINFER", "0.33.0", True),
        ("--attention-backend", "no_such", "0.33.0", False),
        ("--all2all-backend", "passthrough", "0.33.0", False),
        ("--profiler-config.profiler", "proton", "0.27.1", False),
        ("--profiler-config.profiler", "proton", "0.28.0", True),
        ("--speculative-config.method", "dspark", "0.33.0", True),
        ("--quantization", "modelopt_fp4", "0.33.0", True),
        ("--compilation-config.cudagraph_mode", "FULL_AND_PIECEWISE", "0.24.0", True),
        ("--model", "x", "0.33.0", None),
        ("--moe-backend", "b12x", "0.40.0", None),
    ],
)
def test_values_of_options(option: str, value: str, version: str, taken: bool | None) -> None:
    assert takes(option, value, version) is taken
    if taken and "-" not in value:
        assert value in values_of(option, version)


def test_lines_of_the_log() -> None:
    lines = log_formats("0.33.0")
    assert {level for level, _, _ in lines} == {"INFO", "WARNING", "ERROR"}
    size = ("INFO", "GPU KV cache size: %s tokens", "v1/core/kv_cache_utils.py")
    assert size in log_formats("0.27.1")
    assert size not in lines
    assert len(lines) > 1000
    assert log_formats("0.40.0") == ()


def test_options() -> None:
    assert has_option("--no-enforce-eager", "0.33.0") is True
    assert has_option("--linear-backend", "0.24.0") is True
    assert has_option("--compilation-config.pass_config.enable_sp", "0.31.0") is True
    assert has_option("--compilation-config.pass_config.enable_sp", "0.32.0") is False
    assert values_of("--moe-backend", "0.40.0") == ()


@each_row("name", TABLES)
def test_the_tables_are_of_the_same_versions(name: str) -> None:
    found = table(name)
    assert found.versions == tuple(releases())
    supported = {f"0.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1)}
    assert {".".join(it.split(".")[:2]) for it in found.versions} == supported
    assert list(found.rows) == sorted(found.rows)
    for text in found.rows.values():
        for span in text.split():
            first, _, last = span.partition("-")
            assert first in found.versions
            assert last in ("", *found.versions)
            assert not last or number_of(first) < number_of(last)  # type: ignore[operator]


def test_the_backends_of_ab_are_those_of_all_versions() -> None:
    for option, values in BACKENDS.items():
        assert set(values) == {value for name, value in table("options").rows
                               if name == option and value}  # fmt: skip


def test_what_apply_takes_is_some_versions() -> None:
    of_engines = {
        option
        for option in OPTIONS
        if option.startswith("--") and any(has_option(option, release) for release in releases())
    }
    assert len(of_engines) > 100  # the others are the server's and the load generators'
    for option in (*BACKENDS, "--kv-cache-dtype", "--quantization", "--max-num-seqs"):
        assert option in of_engines
        assert has_option(option, releases()[-1])
    rows = {row.name for row in environment.VARIABLES}
    for name in VARIABLES:
        assert name in rows or name == "OMP_NUM_THREADS" or span_of_variable(name).text


def test_each_variable_that_went_has_a_row_that_says_what_instead() -> None:
    went = {
        name
        for name, _ in table("variables").rows
        if name.startswith("VLLM_") and not reads(name, releases()[-1])
    }
    assert {row.name for row in environment.SUCCESSORS} == went
    for row in environment.SUCCESSORS:
        gone = next(it for it in releases()[::-1] if span_of_variable(row.name).has(it))
        after = releases()[releases().index(gone) + 1]
        for word in re.findall(r"--[\w.-]+", row.instead):
            assert has_option(word, after), (row.name, word)
        for word in re.findall(r"VLLM_\w+", row.instead):
            assert reads(word, after), (row.name, word)


def test_older_variables_are_older() -> None:
    assert [row.name for row in environment.VARIABLES if span_of_variable(row.name).text] == []


def test_values_for_other_machines_are_vllms() -> None:
    foreign = {value for values in tune_candidates.FOREIGN for value in values.split()}
    assert foreign <= {value for values in BACKENDS.values() for value in values}


def _texts() -> dict[str, str]:
    paths = [*PACKAGE.rglob("*.py"), *DOCS.glob("*.md"), DOCS.parent / "README.md"]
    return {str(path.relative_to(DOCS.parent)): path.read_text("utf-8") for path in paths}


NO_VARIABLES = {"VLLM_JWT", "VLLM_KINDS", "VLLM_REFUSED", "VLLM_COMPILE", "VLLM_CUTLASS"}


def test_every_variable_that_a_text_names_is_or_was_vllms() -> None:
    rows = {row.name for row in (*environment.VARIABLES, *environment.SUCCESSORS)}
    known = rows | environment.HARMLESS | NO_VARIABLES
    lost = {
        (path, name)
        for path, text in _texts().items()
        for name in re.findall(r"\bVLLM_[A-Z0-9_]*[A-Z0-9]\b", text)
        if name not in known and not reads(name, releases()[-1])
    }
    assert lost == set()


def test_every_field_of_a_configuration_that_a_text_names_exists() -> None:
    options = {name for name, _ in table("options").rows}
    roots = {name.split(".")[0] for name in options if "." in name}
    lost = {
        (path, name)
        for path, text in _texts().items()
        for name in re.findall(r"--[a-z][a-z0-9-]+(?:\.[a-z_0-9]+)+", text)
        if name.split(".")[0] in roots and name not in options
    }
    assert lost == set()


_PLAIN = {"and", "or", "other", "meanwhile", "ask", "for", "out"}
"""Words of sentences that follow an option."""


def test_every_value_of_a_backend_option_that_a_text_names_exists() -> None:
    lost = {
        (path, option, value)
        for path, text in _texts().items()
        for option, value in re.findall(
            r"(--(?:moe|linear|attention|all2all)-backend|--kv-cache-dtype)[ =]([A-Za-z]\w*)", text
        )
        if not any(takes(option, value, release) for release in releases()) and value not in _PLAIN
    }
    assert lost == set()


def test_the_tables_are_read_when_asked_for() -> None:
    code = (
        "import sys; import spark_prof.cli.main, spark_prof.rules.environment\n"
        "module = sys.modules.get('spark_prof.rules.vllm_versions')\n"
        "assert module is None or module.table.cache_info().currsize == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here")
def test_the_installed_vllm_has_what_the_tables_say() -> None:
    """Another way to know: what vLLM's own parser and list have when they run."""
    from vllm import __version__, envs
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    listed = {name for name, kind in table("variables").rows
              if kind == "listed" and is_listed(name, __version__)}  # fmt: skip
    assert listed == set(envs.environment_variables)
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    for action in parser._actions:
        # Its last value is the device that vLLM finds.
        if "--mm-processor-device" in action.option_strings:
            continue
        for name in action.option_strings:
            if name.startswith("--") and not name.startswith("--no-") and name != "--help":
                assert has_option(name, __version__), name
            words = {it for it in action.choices or () if isinstance(it, str)}
            if words and name.startswith("--"):
                assert set(values_of(name, __version__)) == words, name
