"""The registry: every entry names what exists, and says of its traffic what its tensors hold."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest

from spark_prof.errors import CommandError
from spark_prof.kernels.registry import BYTES_A_WEIGHT, KERNELS, ReplacementKernel, find
from spark_prof.kernels.tuning import Work
from tests.rows import each_row

BY_NAME = {kernel.name: kernel for kernel in KERNELS}


def each(kernel: ReplacementKernel) -> str:
    return kernel.name


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(KERNELS)


def test_listing_needs_no_torch() -> None:
    code = (
        "import sys; from spark_prof.dashboards.replacement_kernels import render_kernels as r; "
        "from spark_prof.kernels.registry import KERNELS; r(KERNELS, (), 'text'); "
        "r(KERNELS, (), 'json'); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@each_row("kernel", KERNELS)
def test_what_an_entry_names_exists(kernel: ReplacementKernel) -> None:
    pytest.importorskip("torch")
    from spark_prof.kernels.check.runner import CHECKS
    from spark_prof.kernels.runtime.code import SOURCES, KernelCode

    assert callable(kernel.operation.function)
    assert callable(kernel.reference.function)
    assert kernel.check in CHECKS
    codes = kernel.codes()
    assert codes
    for code in codes:
        assert isinstance(code, KernelCode)
        assert f"{code.entry}(" in (SOURCES / code.source).read_text(encoding="utf-8")


@each_row("kernel", KERNELS)
def test_more_work_is_more_bytes(kernel: ReplacementKernel) -> None:
    for kind in kernel.formats:
        sizes = [
            [Work(kernel.tuned_as or "k", kind, 512, 512, tokens, 8, 2) for tokens in (1, 2, 4)],
            [Work(kernel.tuned_as or "k", kind, 512, columns, 1, 8, 2) for columns in (512, 1024)],
        ]
        for works in sizes:
            moved = [kernel.bytes.of(work) for work in works]
            assert all(isinstance(number, int) for number in moved)
            assert all(more >= less > 0 for less, more in pairwise(moved))


def test_a_dense_call_in_bfloat16_moves_its_tensors() -> None:
    torch = pytest.importorskip("torch")
    weight, x, y = (torch.zeros(shape).bfloat16() for shape in ((64, 128), (3, 128), (3, 64)))
    moved = BY_NAME["router-w16a16"].bytes.of(Work("dense", "bf16", 64, 128, 3))
    assert moved == weight.nbytes + x.nbytes + y.nbytes


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4", "fp8"])
def test_a_dense_call_moves_its_tensors(kind: str) -> None:
    torch = pytest.importorskip("torch")
    from spark_prof.kernels import formats

    quantize = {
        "nvfp4": formats.quantize_nvfp4,
        "mxfp4": formats.quantize_mxfp4,
        "fp8": formats.quantize_fp8_rows,
    }[kind]
    weight = quantize(torch.randn(64, 128))
    codes = weight.values if kind == "fp8" else weight.packed
    stored = codes.nbytes + (0 if kind == "fp8" else weight.scales.nbytes)
    assert stored == 64 * 128 * BYTES_A_WEIGHT[kind]
    rows, x, y = torch.ones(64), torch.zeros(3, 128).bfloat16(), torch.zeros(3, 64).bfloat16()
    moved = stored + rows.nbytes + x.nbytes + y.nbytes
    name = "qkv-fp8" if kind == "fp8" else "qkv-w4a16"
    assert BY_NAME[name].bytes.of(Work("dense", kind, 64, 128, 3)) == moved


def test_experts_read_no_more_than_there_are() -> None:
    of = BY_NAME["moe-w4a16"].bytes.of
    few, many = (of(Work("moe", "mxfp4", 128, 64, m, 4, 2)) for m in (2, 16))
    # Two tokens take all four experts; more tokens add activations alone.
    assert many - few == 14 * (4 * 2 * 64 + 2 * (2 * 64 + 4))
    assert of(Work("moe", "mxfp4", 128, 64, 1, 4, 2)) < few


def test_experts_that_all_take_part_are_read_once() -> None:
    torch = pytest.importorskip("torch")
    from spark_prof.kernels.formats import quantize_mxfp4
    from spark_prof.kernels.moe import Activation, pack_experts

    gate_up = quantize_mxfp4(torch.randn(4, 256, 256))
    packed = pack_experts(
        gate_up, quantize_mxfp4(torch.randn(4, 256, 128)), None, None, Activation("silu")
    )
    x, logits = (torch.zeros(2, width).bfloat16() for width in (256, 4))
    between = torch.zeros(2 * 2, 128).bfloat16()
    moved = (
        packed.gate_up.bytes + packed.down.bytes + logits.nbytes + 2 * (x.nbytes + between.nbytes)
    )
    assert BY_NAME["moe-w4a16"].bytes.of(Work("moe", "mxfp4", 256, 256, 2, 4, 2)) == moved


def test_finding() -> None:
    assert find(None) == KERNELS
    assert [kernel.name for kernel in find("o-w4a16")] == ["o-w4a16"]


@pytest.mark.parametrize(
    ("name", "hint"), [("qkv-w4a61", "did you mean qkv-w4a16?"), ("", "known are"), ("zz", "known")]
)
def test_an_unknown_name_is_told(name: str, hint: str) -> None:
    with pytest.raises(CommandError, match=rf"(?s){hint.replace('?', '.')}") as caught:
        find(name)
    assert caught.value.exit_code == 2
