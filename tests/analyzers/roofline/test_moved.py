"""Bytes that counters saw, held against bytes that had to be read."""

from __future__ import annotations

import pandas as pd
import pytest

from spark_prof.analyzers.counters.counter_rows import CounterBatch, CounterRow, Counters
from spark_prof.analyzers.roofline.model import Place
from spark_prof.analyzers.roofline.moved import by_sampling, by_single_kernels

GEMM = Place("qkv", "self_attn.qkv_proj", "gemm")


def counters(tokens: int, read: float | None) -> Counters:
    row = CounterRow("gemm", "qkv", 24.0, 10.0, read, None, None, None, None, None, None, None, 1.0)
    batch = CounterBatch(tokens, 30, True, 0.0, 1.0, None, (row,), ())
    return Counters(2.0, 1000, 1e6, (batch,), (), ())


def test_sampled_bytes_belong_to_steps_of_the_same_size() -> None:
    needed = {1: {GEMM: 24 * 1000.0}, 4: {GEMM: 48 * 1000.0}}
    others = [Place("mlp", "", "gemm"), Place("qkv", "", "norm")]
    ((place, found),) = by_sampling(counters(4, 2600.0), needed, [*others, GEMM]).items()
    assert place == GEMM
    assert (found.read, found.streamed, found.by) == (2600.0, 2000.0, "PM sampling")
    assert by_sampling(counters(2, 2600.0), needed, [GEMM]) == {}
    assert by_sampling(counters(1, None), needed, [GEMM]) == {}
    assert by_sampling(None, needed, [GEMM]) == {}
    # Counters do not tell which of a kernel's roles read how much, needed or not.
    assert by_sampling(counters(4, 2600.0), needed, [GEMM, GEMM._replace(role="")]) == {}


def metrics(*rows: tuple[str, str, float, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["name", "metric", "value", "unit"])


def test_nsight_compute_s_units_are_decimal() -> None:
    rows = [
        ("void f<128, 1>(T1)", "dram__bytes_read.sum", value, unit)
        for value, unit in ((2.0, "Mbyte"), (4e6, "byte"), (3e3, "Kbyte"), (0.003, "Gbyte"))
    ]
    needed = {GEMM._replace(name="void ns::f<(int)128, true>(int)"): 1e6}
    (found,) = by_single_kernels(metrics(*rows), needed).values()
    assert found.read == pytest.approx(3e6)
    assert (found.streamed, found.by) == (1e6, "Nsight Compute")


def test_what_does_not_tell_is_left_out() -> None:
    needed = {
        Place(*place): 1.0
        for place in (("qkv", "", "f"), ("o_proj", "", "g"), ("mlp", "", "g"),
                      ("experts", "mlp.experts.w13", "h"), ("experts", "mlp.experts.w2", "h"))
    }  # fmt: skip
    rows = metrics(
        ("f", "dram__bytes_read.sum", float("nan"), "byte"),
        ("f", "dram__bytes_read.sum", 5.0, "furlong"),
        ("f", "dram__bytes_write.sum", 5.0, "byte"),
        ("g", "dram__bytes_read.sum", 5.0, "byte"),
        ("h", "dram__bytes_read.sum", 5.0, "byte"),
    )
    assert by_single_kernels(rows, needed) == {}
    assert by_single_kernels(rows.iloc[:0], needed) == {}
