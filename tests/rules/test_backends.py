"""Every row of the tables of names knows its own examples."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from spark_prof.rules.backends import (
    BACKENDS,
    CHOICES,
    TRACED,
    Backend,
    backends_for,
    choice_of,
    family_of_kernel,
)
from tests.rows import each_row

EXAMPLES = [(choice, name) for choice in CHOICES for name in choice.examples]


@each_row(("choice", "name"), EXAMPLES)
def test_a_name_is_its_own_rows(choice: object, name: str) -> None:
    assert choice_of(name) is choice


def test_a_kernel_is_of_its_family() -> None:
    families = [family for family, _, _ in TRACED]
    assert [family_of_kernel(example) for _, _, example in TRACED] == families
    for choice in CHOICES:
        assert set(choice.traced) <= set(families), choice.family


def test_an_unknown_name_stays_unknown() -> None:
    for name in ("", "forward_cuda", "SomethingNew", "x" * 10_000):
        assert (choice_of(name), family_of_kernel(name)) == (None, "")


@each_row(
    ("older", "newer"),
    [
        ("cutlass", "CutlassNvFp4LinearKernel"),
        ("flashinfer-cutlass", "FlashInferCutlassNvFp4LinearKernel"),
        ("NvFp4LinearBackend.FLASHINFER_CUTLASS", "FlashInferCutlassNvFp4LinearKernel"),
        ("marlin", "MarlinNvFp4LinearKernel"),
        ("NvFp4LinearBackend.MARLIN", "MarlinNvFp4LinearKernel"),
        ("VLLM_CUTLASS", "CutlassExpertsFp4"),
        ("FLASHINFER_CUTLASS", "FlashInferExperts"),
        ("flashinfer-trtllm", "TrtLlmNvFp4ExpertsModular"),
    ],
)
def test_three_generations_of_names_mean_the_same(older: str, newer: str) -> None:
    assert choice_of(older) is choice_of(newer) is not None


_TESTS = (
    "is_supported", "get_min_capability", "_supports_current_device",
    "supports_compute_capability", "flash_attn_supports_sinks",
)  # fmt: skip


@pytest.fixture(scope="module")
def vllm() -> Path:
    """The folder of vLLM's sources."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    return Path(spec.origin).parent


@each_row("row", BACKENDS)
def test_vllm_has_the_backend_and_its_test(row: Backend, vllm: Path) -> None:
    """The installed vLLM takes the value, and the named source is where it tests the GPU."""
    names = {"--moe-backend": "MoEBackend", "--linear-backend": "LinearBackend"}
    if row.option in names:
        kernel = (vllm / "config/kernel.py").read_text()
        listed = re.search(rf"^{names[row.option]} = Literal\[(.*?)^\]", kernel, re.M | re.S)
        assert listed is not None
        assert f'"{row.value}"' in listed[1]
        assert choice_of(row.value) is not None
    else:
        assert f"{row.value} =" in (vllm / "v1/attention/backends/registry.py").read_text()
        assert row.implementation
    folder = vllm / row.source.partition(", ")[0].rpartition("/")[0]
    for name in row.source.split(", "):
        text = (folder / name.rpartition("/")[2]).read_text()
        assert any(f"def {test}(" in text for test in _TESTS), name


def test_fp4_products_need_a_gpu_that_has_them() -> None:
    for number in (75, 80, 86, 89, 90):
        for option in ("--moe-backend", "--linear-backend"):
            rows = backends_for(option, "nvfp4", number / 10, (0, 32))
            assert [row.value for row in rows] == ["marlin"]
    assert backends_for("--moe-backend", "nvfp4", 12.1, (0, 26))[0].value == "flashinfer_cutlass"


def test_what_is_not_known_is_not_proposed() -> None:
    assert backends_for("--moe-backend", "nvfp4", None, (0, 32)) == ()
    assert backends_for("--moe-backend", "", 9.0, (0, 32)) == ()
    assert backends_for("--moe-backend", "nvfp4", 9.0, (0, 22)) == ()
    assert backends_for("--moe-backend", "mxfp4", 12.1, (0, 26))[0].value == "marlin"
