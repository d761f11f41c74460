"""The sections and the JSON about format conversions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from spark_prof.analyzers.conversions.model import (
    ChargedConversion,
    Conversions,
    FusedConversion,
    LoadTimeConversion,
)
from spark_prof.analyzers.model import Report
from spark_prof.dashboards import about_conversions, html, json_report, markdown, text

from .sample import HOSTILE_NAME, SAMPLES

FULL = SAMPLES["mixture_of_experts"]

QUANTIZE = ChargedConversion(
    kind="quantize", name="cvt_fp16_to_fp4", component="experts", consumer="cutlass_gemm",
    gemm=True, after="norm", layers=4, calls=400, us=900.0, prefill_us=100.0, decode_us=800.0,
    decode_calls=320, calls_per_step=8.0, us_per_token=20.0,
)  # fmt: skip
CAST = replace(
    QUANTIZE, kind="cast", name="copy", component="sampler", consumer=None, gemm=False, after="",
    layers=0, prefill_us=0.0, calls_per_step=1.0, us_per_token=2.5,
)  # fmt: skip


def report(*charged: ChargedConversion, **more: object) -> Report:
    found = replace(FULL.conversions, us=1800.0, share=0.05, us_per_token=22.5, charged=charged)
    return replace(FULL, conversions=replace(found, **more))


def test_each_row_says_what_it_is_for() -> None:
    section = about_conversions.charged(report(QUANTIZE, CAST))
    assert section.rows == (
        ("20.0 us", "8", "5.00 us", "900.0 us", "100.0 us", "quantize", "experts",
         "cutlass_gemm", "cvt_fp16_to_fp4"),
        ("2.50 us", "1", "-", "900.0 us", "-", "cast", "sampler", "-", "copy"),
    )  # fmt: skip
    assert section.intro[0].startswith("22.5 us of each token, 1.80 ms, 5.0 % of the time in all")


def test_without_decode_steps_nothing_is_said_of_tokens() -> None:
    row = replace(QUANTIZE, us_per_token=None, calls_per_step=0.0)
    section = about_conversions.charged(report(row, us_per_token=None))
    assert section.rows[0][:4] == ("-", "-", "-", "900.0 us")
    assert section.intro[0].startswith("1.80 ms, 5.0 % of the time,")


def test_the_rest_is_in_json() -> None:
    section = about_conversions.charged(report(*[QUANTIZE] * 20))
    assert (len(section.rows), section.intro[1]) == (15, "5 more rows in JSON.")


def test_what_is_not_counted() -> None:
    fused = FusedConversion("quantize", "silu_mul_cvt", "mlp", 96, 500.0, 400.0)
    repack = LoadTimeConversion("repack", "gptq_marlin_repack", 48, 9000.0, 48)
    inside = replace(repack, outside=47)
    pad = replace(QUANTIZE, kind="pad", name="fill")
    section = about_conversions.others(
        report(padding=(pad,), fused=(fused,), load_time=(repack, inside))
    )
    assert section.rows == (
        ("by order", "pad", "experts", "400", "900.0 us", "fill"),
        ("fused", "quantize", "mlp", "96", "500.0 us", "silu_mul_cvt"),
        ("outside the steps", "repack", "", "48", "9.00 ms", "gptq_marlin_repack"),
        ("load time", "repack", "", "48", "9.00 ms", "gptq_marlin_repack"),
    )


@pytest.mark.parametrize("section", [about_conversions.charged, about_conversions.others])
def test_nothing_to_say(section: object) -> None:
    assert callable(section)
    assert section(replace(FULL, conversions=Conversions(0.0, 0.0, ()))).rows == ()


def test_json_keeps_the_keys_of_the_contract_and_adds_some() -> None:
    found = json.loads(json_report.render(report(QUANTIZE)))["conversions"]
    assert set(found) == {
        "us", "share", "items", "us_per_token", "charged", "layers", "padding", "fused",
        "load_time", "repeated",
    }  # fmt: skip
    assert found["charged"][0]["us_per_token"] == 20.0
    assert found["items"][0]["conversion"] == "quantize"


def test_hostile_names() -> None:
    bad = replace(QUANTIZE, name=HOSTILE_NAME, consumer=HOSTILE_NAME, kind=HOSTILE_NAME)
    fused = FusedConversion(HOSTILE_NAME, HOSTILE_NAME, HOSTILE_NAME, 1, 1.0, 1.0)
    subject = report(bad, fused=(fused,))
    for rendered in (text.render(subject), markdown.render(subject)):
        assert "\x1b[31m" not in rendered
    assert "<script>alert" not in html.render(subject)
