"""Runs the cases of kernels on this machine: `spark-prof kernels check`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import torch

from spark_prof.kernels.check.dense_cases import dense_cases, run_dense_case
from spark_prof.kernels.check.verdict import Judgement, Verdict
from spark_prof.kernels.check.weights import Format, Weight
from spark_prof.kernels.dense import linear
from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.pack import pack_linear

__all__ = ["CHECKS", "run_checks"]

_SHAPES = {
    "cpu": ((32, 2880), (48, 1856), (32, 2688), (40, 2048)),
    "cuda": (
        (5120, 2880),
        (2880, 4096),
        (3712, 2688),
        (2688, 1856),
        (2048, 4096),
        (1536, 2048),
        (201088, 2880),
    ),
}
"""Weights, (N, K), with the columns of real models; on the CPU of few rows, as they take long."""


class _Case(Protocol):
    @property
    def label(self) -> str: ...


Check = Callable[[str], Iterator[tuple[_Case, Callable[[], Judgement]]]]
"""From a device to the cases, each with what runs it."""


def packed_linear(weight: Weight) -> Callable[..., object]:
    """The dense kernel as the cases call it."""
    packed = pack_linear(weight)
    return lambda x, bias, out: linear(x, packed, bias, out)


def _dense(*formats: Format) -> Check:
    def cases(device: str) -> Iterator[tuple[_Case, Callable[[], Judgement]]]:
        for kind in formats:
            for case in dense_cases(kind, _SHAPES[device]):
                yield case, lambda case=case: run_dense_case(case, packed_linear, device)

    return cases


CHECKS: Mapping[str, Check] = {
    "w4a16": _dense("nvfp4", "mxfp4"),
    "fp8": _dense("fp8"),
}
"""What the registry's kernels name as their check."""


def run_checks(names: Iterable[str], device: str) -> Iterator[Verdict]:
    """Runs the cases one by one and yields what each showed.

    Args:
        names: keys of CHECKS.
        device: `cpu` or `cuda`.
    """
    for name in names:
        for case, run in CHECKS[name](device):
            try:
                judgement = run()
            except KernelError as error:
                judgement = Judgement(None, f"does not run: {error}")
            status = "failed" if judgement.detail else "passed"
            yield Verdict(name, case.label, device, status, judgement.used, judgement.detail)
