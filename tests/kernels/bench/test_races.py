"""Dense layers and experts in small races on any device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace

import pytest
import torch

from spark_prof.kernels.bench.field import CUBLAS
from spark_prof.kernels.bench.machine_ceilings import measure_ceilings
from spark_prof.kernels.bench.request import BenchRequest
from spark_prof.kernels.bench.results import (
    OURS,
    BenchCell,
    BenchReport,
    ImplementationResult,
    TimeSpread,
    UnmeasuredShape,
    cell_line,
    machine_of,
)
from spark_prof.kernels.bench.run import race_dense, race_experts, run
from spark_prof.kernels.bench.shapes import (
    DenseShape,
    ExpertsShape,
    Layer,
    Recorded,
    WeightFormat,
)
from spark_prof.kernels.bench.vllm_peers import small_products
from spark_prof.kernels.candidate import Abstained
from spark_prof.kernels.dense import LinearConfig, default_config
from spark_prof.kernels.operands import architecture
from spark_prof.kernels.runtime.compiler import FP4_PRODUCTS
from spark_prof.kernels.tuning import TunedShape
from tests.rows import each_row

GPT_OSS = ExpertsShape("gpt-oss", "mxfp4", 32, 4, 320, 320, "swiglu", True)
QWEN = ExpertsShape("Qwen", "nvfp4", 16, 8, 256, 192, "silu", False)
DEEPSEEK = ExpertsShape("DeepSeek", "bf16", 16, 6, 256, 192, "silu", False)


def asked(tokens: list[int], *competitors: str) -> BenchRequest:
    return BenchRequest(tokens=tokens, competitors=competitors, seconds_each=0.0)


def never() -> bool:
    """A search goes on to its end."""
    return False


@pytest.fixture
def gpu() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    pytest.importorskip("vllm")
    return torch.device("cuda", torch.cuda.current_device())


def failures(cells: Iterable[BenchCell]) -> list[str]:
    found = [result for cell in cells for result in cell.results]
    assert found
    return [f"{result.contestant}: {result.failed}" for result in found if result.failed]


@pytest.mark.parametrize("form", ["nvfp4", "mxfp4", "fp8"])
@pytest.mark.parametrize(("rows", "columns"), [(256, 320), (192, 256)])
def test_marlin(form: WeightFormat, rows: int, columns: int, gpu: torch.device) -> None:
    shape = DenseShape(rows, columns, (Layer("small", "o", rows, columns),))
    assert failures(race_dense(shape, form, asked([1, 3], "vLLM Marlin"), gpu)) == []


@pytest.mark.parametrize(("rows", "columns"), [(32, 2880), (128, 2048), (2112, 7168), (256, 7168)])
def test_kernels_for_few_tokens(rows: int, columns: int, gpu: torch.device) -> None:
    shape = DenseShape(rows, columns, (Layer("small", "router", rows, columns),))
    for why in failures(race_dense(shape, "bf16", asked([1, 16], "ll_bf16", "DSV3"), gpu)):
        assert why.endswith("is not installed")


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (GPT_OSS, "vLLM Marlin"),
        (GPT_OSS, "vLLM Triton"),
        (QWEN, "vLLM Marlin"),
        (DEEPSEEK, "vLLM Triton"),
    ],
    ids=["gpt-oss Marlin", "gpt-oss Triton", "Qwen Marlin", "DeepSeek Triton"],
)
def test_experts_of_vllm(shape: ExpertsShape, name: str, gpu: torch.device) -> None:
    assert failures(race_experts(shape, asked([1, 3], name), gpu)) == []


SHAPE = DenseShape(48, 160, (Layer("small", "o", 48, 160),))


def of(cell: BenchCell, name: str) -> ImplementationResult:
    (found,) = [result for result in cell.results if result.contestant == name]
    return found


@each_row("form", ["nvfp4", "mxfp4", "fp8"])
def test_a_dense_layer(form: WeightFormat, device: str) -> None:
    (cell,) = race_dense(SHAPE, form, asked([3], OURS, CUBLAS), torch.device(device))
    for name in (OURS, CUBLAS):
        result = of(cell, name)
        assert result.failed == ""
        assert result.us is not None
        assert result.us.lower <= result.us.median <= result.us.upper
        assert 0 < (result.error or 0) < 0.005
    assert (cell.work.rows, cell.work.columns, cell.work.tokens) == (48, 160, 3)
    assert cell.bytes == cell.weight_bytes + 2 * 3 * (48 + 160)
    assert set(cell.config) >= {"warps", "split", "depth"}


def test_w4a4_is_raced_where_it_is_named(device: str) -> None:
    """It rounds its activations; the others, which do not, are right too."""
    request = asked([3, 16], OURS, CUBLAS)
    listed = [kernel.check for kernel in request.listed("dense", "nvfp4") if kernel]
    assert listed == ["w4a16"]
    named = replace(request, kernels=["w4a4"])
    if architecture(torch.device(device)) not in ("cpu", *FP4_PRODUCTS):
        with pytest.raises(Abstained, match="FP4"):
            list(race_dense(SHAPE, "nvfp4", named, torch.device(device)))
        return
    for cell in race_dense(SHAPE, "nvfp4", named, torch.device(device)):
        assert cell.work.kernel == "w4a4"
        for name in (OURS, CUBLAS):
            result = of(cell, name)
            assert result.failed == ""
            assert result.us is not None
            assert 0 < (result.error or 0) < 0.005


def test_a_bfloat16_layer_is_held_against_cublas_and_kernels_for_few_tokens(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {1: ((1, 0, 16),), 2: ((1, 0, 16),)}
    monkeypatch.setattr("spark_prof.kernels.bench.configurations._IN_FLIGHT", few)
    router = DenseShape(32, 160, (Layer("small", "router", 32, 160),))
    (cell,) = race_dense(router, "bf16", asked([2]), torch.device(device), never)
    others = [result for result in cell.results if result.contestant not in (OURS, CUBLAS)]
    assert [result.contestant for result in others] == [
        "vLLM ll_bf16", "vLLM CuTe skinny", "vLLM ll_fp32w",
    ]  # fmt: skip
    assert all(of(cell, name).failed == "" and of(cell, name).us for name in (OURS, CUBLAS))
    if device == "cpu":
        assert all(other.failed.endswith("it runs on GPUs alone") for other in others)
    assert cell.label == "small router"
    assert cell.weight_bytes == 2 * 32 * 160
    assert cell.config["split"] <= 2


@each_row(
    ("rows", "columns", "names"),
    [
        (32, 2880, ["vLLM ll_bf16", "FlashInfer tinygemm"]),
        (32, 2884, []),
        (256, 7168, ["vLLM ll_bf16", "vLLM DSV3", "FlashInfer tinygemm"]),
        (384, 6144, ["vLLM ll_bf16", "FlashInfer tinygemm"]),
        (2112, 7168, ["vLLM DSV3", "FlashInfer tinygemm"]),
        (5120, 2880, ["FlashInfer tinygemm"]),
        (201088, 2880, []),
    ],
)
def test_kernels_for_few_tokens_take_part_where_they_can(
    rows: int, columns: int, names: list[str]
) -> None:
    weight = torch.empty((rows, columns), dtype=torch.bfloat16, device="meta")
    assert list(small_products(weight)) == names
    assert list(small_products(weight, gate=False)) == [n for n in names if n != "vLLM ll_bf16"]


@pytest.mark.slow
@each_row(
    "shape",
    [
        ExpertsShape("gpt-oss", "mxfp4", 4, 2, 64, 64, "swiglu", True),
        ExpertsShape("Qwen", "nvfp4", 6, 3, 64, 32, "silu", False),
        ExpertsShape("DeepSeek", "bf16", 6, 3, 64, 32, "silu", False),
    ],
)
def test_experts(shape: ExpertsShape, device: str) -> None:
    # What Triton cannot compute it refuses before vLLM is imported, which takes long.
    names = [OURS, "vLLM Triton"] if shape.format == "nvfp4" else [OURS]
    one, two = race_experts(shape, asked([1, 2], *names), torch.device(device))
    for cell in (one, two):
        assert of(cell, OURS).failed == ""
        assert (of(cell, OURS).error or 0) < 0.01
        if shape.format == "nvfp4":
            assert of(cell, "vLLM Triton").failed.endswith(
                "MXFP4 with SwiGLU only, not nvfp4, silu"
            )
    # Two tokens read at least the experts of one, and at most twice as many.
    assert one.weight_bytes < two.weight_bytes <= 2 * one.weight_bytes
    assert one.work.top_k == shape.top_k


def test_what_there_is_no_time_for_is_left_out_by_name() -> None:
    request = BenchRequest(models=["Nemotron"], seconds=0.0)
    found = list(run(request, torch.device("cpu")))
    assert found
    assert all(
        isinstance(each, UnmeasuredShape) and each.why == "0 seconds had passed" for each in found
    )
    assert any("131072 x 2688" in each.what for each in found if isinstance(each, UnmeasuredShape))


def test_a_request_picks_kinds_models_and_formats() -> None:
    request = BenchRequest(only=["dense"], models=["gpt-oss"], formats=["mxfp4"], seconds=0.0)
    found = [
        each.what for each in run(request, torch.device("cpu")) if isinstance(each, UnmeasuredShape)
    ]
    assert found == [
        "dense mxfp4 2880 x 4096",
        "dense mxfp4 5120 x 2880",
        "dense mxfp4 201088 x 2880",
    ]


def test_what_a_recording_ran_stands_beside_and_is_no_competitor(device: str) -> None:
    ran = Recorded(("marlin::Marlin",), 1e-9, 48, True)
    request = BenchRequest(
        tokens=[1, 2],
        competitors=[OURS],
        formats=["nvfp4"],
        seconds_each=0.0,
        work=[(SHAPE, "nvfp4"), (SHAPE, "bf16"), (QWEN, "mxfp4")],
        recorded={((SHAPE, "nvfp4"), 1): ran},
    )
    one, two = run(request, torch.device(device))
    assert isinstance(one, BenchCell)
    assert isinstance(two, BenchCell)
    assert (one.recorded, two.recorded) == (ran, None)
    assert one.best_peer() is None
    ceilings = measure_ceilings(torch.device("cpu"), 1 << 22)
    assert cell_line(one, ceilings).endswith("recorded 0.00 us")


def test_ceilings(device: str) -> None:
    found = measure_ceilings(torch.device(device), 1 << 22)
    for measured in (found.read, found.copy, found.launch_us):
        assert 0 < measured.lower <= measured.median <= measured.upper
    assert "GiB" in found.read_by


def test_a_layer_is_timed_with_the_best_configuration_found(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_prof.kernels.bench.configurations.VALUES", {"depth": (1, 2)})
    (cell,) = race_dense(SHAPE, "nvfp4", asked([1], OURS), torch.device(device), never)
    assert of(cell, OURS).failed == ""
    assert cell.config["depth"] in (1, 2)


def test_a_search_begins_when_everything_was_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where most is to be gained first; what is found takes the place of the first time."""
    torch_cpu = torch.device("cpu")
    small = DenseShape(48, 160, (Layer("small", "lm_head", 48, 160),))
    calls: list[tuple[int, bool]] = []

    def race_dense(
        shape: DenseShape, form: str, request: BenchRequest, device: object, stop: object
    ):  # type: ignore[no-untyped-def]
        calls.append((shape.rows, stop is not None))
        for count in request.tokens:
            us = TimeSpread(10.0 + (stop is None), 9.0, 12.0, 5)
            work = TunedShape("dense", form, shape.rows, shape.columns, count)
            results = (ImplementationResult(OURS, us, 0.0),)
            yield BenchCell("dense", work, shape.label, 10, 10, shape.is_lm_head, results)

    monkeypatch.setattr("spark_prof.kernels.bench.run.race_dense", race_dense)
    request = BenchRequest(tokens=[1, 2], work=[(small, "nvfp4"), (SHAPE, "nvfp4")], tune=True)
    report = BenchReport(machine_of(torch_cpu), measure_ceilings(torch_cpu, 1 << 22))
    for each in run(request, torch_cpu):
        report.add(each)
    assert calls == [(48, False), (48, False), (48, True), (48, True)]
    assert [cell.ours for cell in report.cells] == [10.0] * 4
    assert not report.left_out
    report.add(UnmeasuredShape("x", "no time"))
    assert len(report.left_out) == 1


def test_no_search_begins_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 11.0, 11.0])
    monkeypatch.setattr("spark_prof.kernels.bench.run.time.perf_counter", lambda: next(clock))
    cell = BenchCell("dense", TunedShape("dense", "nvfp4", 48, 160, 1), "it", 1, 1, False, ())
    monkeypatch.setattr("spark_prof.kernels.bench.run.race_dense", lambda *_: iter([cell]))
    request = BenchRequest(tokens=[1], work=[(SHAPE, "nvfp4")], tune=True, seconds=10.0)
    first, left = run(request, torch.device("cpu"))
    assert first == cell
    assert isinstance(left, UnmeasuredShape)
    assert left.why == "no search: 10 seconds had passed"


@each_row(
    ("ours", "before", "kept"), [(5.0, 6.0, "found"), (6.0, 5.0, "known"), (None, 5.0, "known")]
)
def test_a_search_never_ends_with_what_was_slower(
    ours: float | None, before: float, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = LinearConfig(8, 2, 3, 1, 1)
    monkeypatch.setattr("spark_prof.kernels.bench.field.best", lambda *_: found)

    def race(entered: dict[str, object], *_: object) -> tuple[ImplementationResult, ...]:
        of = dict(zip(entered, (ours, before), strict=True))
        return tuple(
            ImplementationResult(name, us and TimeSpread(us, us, us, 5), 0.0, "" if us else "wrong")
            for name, us in of.items()
        )

    monkeypatch.setattr("spark_prof.kernels.bench.field.race", race)
    (cell,) = race_dense(SHAPE, "nvfp4", asked([1], OURS), torch.device("cpu"), never)
    known = default_config(48, 160, 1)
    assert cell.config == asdict(found if kept == "found" else known)
    assert cell.ours == min(us for us in (ours, before) if us)
    assert cell.before_us == before
    assert [result.contestant for result in cell.results] == [OURS]
