"""Names of kernels in sentences."""

from __future__ import annotations

from spark_prof.analyzers.classify.classifier import short_name
from tests.rows import each_row


@each_row(
    ("name", "short"),
    [
        ("void marlin::Marlin<1125899906909960l, 562949953487106l>(int4 const*)", "marlin::Marlin"),
        ("nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT", "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT"),
        ("void cutlass::device_kernel<a>(P)", "void cutlass::device_kernel<a>(P)"),
        ("", ""),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short


def test_no_name_is_long() -> None:
    assert len(short_name("void cutlass::device_kernel<" + "x" * 5000 + ">(P)")) == 60
    assert len(short_name("y" * 5000)) == 60
