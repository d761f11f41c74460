"""What a source says of its kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.kernels import dense, moe, norm_quantize, routing
from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.runtime.code import KernelCode, parameter_count
from tests.rows import each_row

PRIMITIVES = str(Path(__file__).with_name("primitives.cu"))
KNOWN = {"to_bf16": 4, "product": 3, "exchange": 2, "turn_in_warp": 1, "change_together": 5}
OURS = {"dense": 9, "gate_up": 13, "down": 11, "route": 9, "norm_quantize": 11}


@each_row(("entry", "count"), KNOWN.items())
def test_parameters_are_counted(entry: str, count: int) -> None:
    assert parameter_count(KernelCode(PRIMITIVES, entry)) == count


def test_bounds_on_launches_are_no_parameters() -> None:
    codes = [*dense.codes(), *moe.codes(), *routing.codes(), *norm_quantize.codes()]
    assert {code.entry: parameter_count(code) for code in codes} == OURS


def test_a_source_without_the_kernel_is_refused() -> None:
    with pytest.raises(KernelError, match=r"primitives.cu has no KERNEL to_bf$"):
        parameter_count(KernelCode(PRIMITIVES, "to_bf"))
