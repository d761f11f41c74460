"""Variables that a version of vLLM reads or does not."""

from __future__ import annotations

from spark_prof.rules.environment import (
    HARMLESS,
    VARIABLES,
    backend_flag,
    is_gone,
    setting_rows,
    version_of,
)
from spark_prof.rules.vllm_versions import reads, releases, table
from tests.rows import each_row

FP4 = "VLLM_USE_FLASHINFER_MOE_FP4"


@each_row(
    ("vllm", "status"),
    [
        ("0.12.0", None), ("0.21.0", None), ("0.22.1rc1.dev3+g1", "deprecated"),
        ("0.23.0", "ignored"), ("0.26.0", "ignored"), ("v0.33", "ignored"), ("", None),
        ("nightly", None),
    ],
)  # fmt: skip
def test_a_removed_variable_is_told_from_its_version_on(vllm: str, status: str | None) -> None:
    rows = setting_rows({FP4: "1"}, vllm, (), ())
    assert [row.status for row in rows] == ([status] if status else [])
    for row in rows:
        assert "--moe-backend" in row.instead


@each_row("variable", VARIABLES)
def test_every_row_is_told_where_it_is_gone(variable: object) -> None:
    name, gone = variable.name, variable.removed_in  # type: ignore[attr-defined]
    (row,) = setting_rows({name: "17"}, f"{gone[0]}.{gone[1]}.0" if any(gone) else "0.9", (), ())
    assert row.status == ("ignored" if any(gone) else "never")
    assert row.why


def test_a_variable_that_changes_nothing_is_not_told() -> None:
    assert setting_rows({FP4: "0"}, "0.26.0", (), ()) == ()
    assert setting_rows({"VLLM_USE_DEEP_GEMM": "1"}, "0.26.0", (), ()) == ()


def test_what_the_log_calls_unknown_counts_without_a_version() -> None:
    (row,) = setting_rows({}, "", ("VLLM_MXFP4_BACKEND",), ())
    assert (row.name, row.status, row.instead) == ("VLLM_MXFP4_BACKEND", "ignored", "--moe-backend")
    assert setting_rows({}, "", tuple(HARMLESS), ()) == ()


def test_a_row_is_told_once() -> None:
    assert len(setting_rows({FP4: "1"}, "0.26.0", (FP4, FP4), (FP4,))) == 1


def test_the_flag_is_that_of_the_version() -> None:
    assert backend_flag("moe", "flashinfer_cutlass", "0.26.0") == "--moe-backend flashinfer_cutlass"
    assert backend_flag("linear", "marlin", "") == "--linear-backend marlin"
    assert FP4 in backend_flag("moe", "flashinfer_cutlass", "0.12.0")
    assert version_of("v0.24.0+092c4842.dev") == (0, 24)


@each_row(
    ("name", "vllm", "why"),
    [
        ("VLLM_TEST_FORCE_FP8_MARLIN", "0.28.0", ""),
        ("VLLM_TEST_FORCE_FP8_MARLIN", "0.29.0", "vLLM 0.28.0 is the last release that reads it"),
        ("VLLM_TEST_FORCE_FP8_MARLIN", "0.28.1.dev3+g1", ""),  # it may be gone already
        ("VLLM_GDN_DECODE_KERNEL", "0.27.1", "vLLM 0.28.0 is the first release that reads it"),
        ("VLLM_GDN_DECODE_KERNEL", "0.28.0", ""),
        ("VLLM_PLE_CPU_OFFLOAD", "0.29.0", "vLLM 0.30.0 is the first release that reads it"),
        ("VLLM_PLE_CPU_OFFLOAD", "0.31.0", "vLLM 0.30.0 is the last release that reads it"),
        ("VLLM_MISSPELT", "0.33.0", "neither vLLM 0.33.0 nor another release from 0.24.0 on reads "
         "it"),
        ("VLLM_MISSPELT", "0.33.1.dev3", ""),  # a fork may
        ("VLLM_MISSPELT", "", ""),
        ("VLLM_MORIIO_NUM_WORKERS", "0.33.0", ""),  # no list has it and a module reads it
        ("CUDA_MISSPELT", "0.33.0", ""),
        ("NO_COLOR", "0.24.0", ""),
    ],
)  # fmt: skip
def test_what_the_releases_read(name: str, vllm: str, why: str) -> None:
    assert [row.why for row in setting_rows({name: "7"}, vllm, (), ())] == ([why] if why else [])


def test_every_variable_in_every_release() -> None:
    """Told in exactly the releases that lack it."""
    names = {name for name, _ in table("variables").rows if name.startswith("VLLM_")}
    for release in releases():
        told = {row.name for row in setting_rows(dict.fromkeys(names, "x"), release, (), ())}
        assert told == {name for name in names - HARMLESS if not reads(name, release)}


def test_a_variable_that_is_unknown_to_vllm_and_read_is_left_out() -> None:
    for version in ("0.33.0", ""):
        assert setting_rows({}, version, ("VLLM_MORIIO_NUM_WORKERS",), ()) == ()


def test_a_successor_is_named() -> None:
    (row,) = setting_rows({"VLLM_KIMI_K3_GEMM_RS": "1"}, "0.31.0", (), ())
    assert row.instead == "VLLM_ENABLE_GEMM_RS"
    assert setting_rows({"VLLM_KIMI_K3_GEMM_RS": "0"}, "0.31.0", (), ()) == ()


def test_what_is_gone() -> None:
    assert is_gone("VLLM_TEST_FORCE_FP8_MARLIN", "0.29.0")
    assert not is_gone("VLLM_TEST_FORCE_FP8_MARLIN", "0.28.0")
    assert is_gone(FP4, "0.23.0")
    assert not is_gone(FP4, "")
    assert not is_gone("VLLM_MXFP4_BACKEND", "0.33.0")  # never was
