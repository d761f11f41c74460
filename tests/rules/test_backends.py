"""Every row of the tables of names knows its own examples."""

from __future__ import annotations

import pytest

from spark_prof.rules.backends import CHOICES, TRACED, choice_of, family_of_kernel
from tests.rows import each_row

EXAMPLES = [(choice, name) for choice in CHOICES for name in choice.examples]


@each_row(("choice", "name"), EXAMPLES)
def test_a_name_is_its_own_rows(choice: object, name: str) -> None:
    assert choice_of(name) is choice


@each_row(("family", "example"), [(f, e) for f, _, e in TRACED])
def test_a_kernel_is_of_its_family(family: str, example: str) -> None:
    assert family_of_kernel(example) == family


def test_what_traces_show_is_a_family_that_is_told() -> None:
    told = {family for family, _, _ in TRACED}
    for choice in CHOICES:
        assert set(choice.traced) <= told, choice.family


@pytest.mark.parametrize("name", ["", "forward_cuda", "SomethingNew", "x" * 10_000])
def test_an_unknown_name_stays_unknown(name: str) -> None:
    assert choice_of(name) is None
    assert family_of_kernel(name) == ""


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
