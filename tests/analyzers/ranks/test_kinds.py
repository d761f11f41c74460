"""Names of collectives."""

from __future__ import annotations

from spark_prof.analyzers.ranks.collective_calls import (
    KINDS,
    collective_kind,
    is_joint,
    returns_early,
)
from tests.rows import each_row

EXAMPLES = [(kind, name) for kind, _, names in KINDS for name in names]


@each_row(("kind", "name"), EXAMPLES)
def test_every_example_has_its_kind(kind: str, name: str) -> None:
    assert collective_kind(name) == kind


@each_row(
    "name", ["gemm_bf16", "reduce_kernel", "at::native::reduce_kernel<512, 1>", "all_reduce_bias"]
)
def test_other_reductions_are_no_collectives(name: str) -> None:
    assert collective_kind(name) is None


def test_a_collective_whose_name_tells_no_kind() -> None:
    assert collective_kind("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)") == "unknown"
    assert not is_joint("unknown")


def test_arguments_do_not_decide() -> None:
    name = "ncclDevKernel_Broadcast_RING_LL(AllReduceArguments)"
    assert collective_kind(name) == "broadcast"
    assert not is_joint("broadcast")


def test_operators_that_return_before_the_end() -> None:
    assert returns_early("c10d::allreduce_")
    assert not returns_early("_C::shm_allreduce")
