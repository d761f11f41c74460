"""Rules about small kernels, copies and the sampler: what fires each, and what keeps it quiet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_prof.analyzers.breakdown import Copies, CopyRow
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.shapes.model import ShapeRow
from tests.analyzers.findings.reports import (
    HEALTHY,
    NORM,
    STEPS,
    books,
    component,
    executed,
    found,
    gaps,
    kernel,
    shape,
    shaped,
)

SMALL = shape(NORM, "norm", us=2.0, calls=100, blocks=1, waves=0.01, busy=0.01)


def test_many_small_kernels_with_the_time_between_them() -> None:
    report = replace(shaped(SMALL), tokens=gaps(50.0, 0.0))
    [finding] = found(report, "small-kernels")
    # 100 of 2 us, and half a microsecond after each.
    assert finding.ms_per_token == pytest.approx(0.25)
    assert "100 kernels" in finding.text
    assert "norm 200 us" in finding.text
    assert "enable_qk_norm_rope_fusion" in finding.fix


def test_a_host_that_is_late_is_not_for_fusion_to_save() -> None:
    report = replace(shaped(SMALL), tokens=gaps(500.0, 0.0))
    assert found(report, "small-kernels")[0].ms_per_token == pytest.approx(0.3)


@pytest.mark.parametrize(
    "quiet",
    [
        shape(NORM, "norm", us=3.5, calls=100),  # not small
        shape(NORM, "norm", us=2.9, calls=40),  # not many
        shape(NORM, "norm", us=0.5, calls=60),  # little time
    ],
)
def test_kernels_that_are_not_worth_fusing(quiet: ShapeRow) -> None:
    assert found(shaped(quiet), "small-kernels") == []


def test_the_fix_follows_the_components_the_version_and_the_execution() -> None:
    routers = shaped(replace(SMALL, component="router"))
    assert "--moe-backend" in found(routers, "small-kernels")[0].fix
    old = executed(routers, HEALTHY.run.execution, vllm="0.11.2")
    assert "--moe-backend" not in found(old, "small-kernels")[0].fix
    eager = executed(routers, "eager")
    assert "--enforce-eager" in found(eager, "small-kernels")[0].fix
    other = shaped(replace(SMALL, component="other"))
    assert "pass_config" not in found(other, "small-kernels")[0].fix
    quantizing = replace(
        other, kernels=(replace(kernel("quant", "mlp", 5.0), conversion="quantize"),)
    )
    assert "fuse_norm_quant" in found(quantizing, "small-kernels")[0].fix


def copying(us: float, name: str = "Memcpy DtoD (Device -> Device)") -> Report:
    item = CopyRow(name, "memcpy", 48 * STEPS, us * STEPS, 1 << 20)
    return replace(HEALTHY, books=books(us), copies=Copies(us * STEPS, 1 << 20, 0.1, (item,)))


def test_copies() -> None:
    [finding] = found(copying(60.0), "copies-in-decode")
    assert finding.ms_per_token == pytest.approx(0.06)
    assert "4,800 x Memcpy DtoD" in finding.text
    assert "--nvtx" in finding.fix
    [pageable] = found(copying(60.0, "Memcpy HtoD (Pageable -> Device)"), "copies-in-decode")
    assert "pin" in pageable.fix


def test_few_copies() -> None:
    assert found(copying(20.0), "copies-in-decode") == []
    assert found(replace(copying(60.0), copies=Copies()), "copies-in-decode") == []
    assert found(replace(copying(60.0), books=()), "copies-in-decode") == []


def sampling(us: float, name: str) -> Report:
    return replace(
        HEALTHY,
        components=(component("sampler", us),),
        kernels=(kernel(name, "sampler", us * STEPS),),
    )


def test_the_sampler() -> None:
    [finding] = found(sampling(80.0, "DeviceRadixSortOnesweepKernel"), "sampler-cost")
    assert finding.ms_per_token == pytest.approx(0.08)
    assert "VLLM_USE_FLASHINFER_SAMPLER" in finding.fix
    [other] = found(sampling(80.0, "cunn_SoftMaxForward"), "sampler-cost")
    assert "logprobs" in other.fix
    assert "cunn_SoftMaxForward" in other.text


def test_a_sampler_that_costs_little() -> None:
    assert found(sampling(20.0, "argmax"), "sampler-cost") == []
    on_cpu = executed(sampling(80.0, "aten::sort"), "", units="op")
    assert found(on_cpu, "sampler-cost") == []
