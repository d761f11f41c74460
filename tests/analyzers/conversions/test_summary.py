"""What conversions cost, from kernels by hand and from recordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import pytest

from spark_prof.analyzers.breakdown import kernel_rows, sums_of
from spark_prof.analyzers.classify.classifier import classify
from spark_prof.analyzers.conversions.conversion_costs import conversions_of
from spark_prof.analyzers.conversions.conversion_flow import PADDING
from spark_prof.analyzers.conversions.conversion_rows import Conversions
from tests.dashboards.sample import SAMPLES
from tests.rows import each_row

from .frames import ATTENTION, CAST, FUSED, GEMM, NORM, QUANTIZE, REPACK, K, placed


def conversions(
    kernels: Sequence[K], phases: Sequence[str], tokens: float = 1.0, *, timed: bool = True
) -> Conversions:
    """Of steps of these phases, of which each gives a sequence so many tokens."""
    frame = placed(kernels).assign(placed=True, basis=pd.Categorical(["range"] * len(kernels)))
    frame["role"] = pd.Categorical([""] * len(kernels))
    steps = pd.DataFrame({"phase": phases, "begin_ns": 0, "finish_ns": range(len(phases))})
    like = SAMPLES["mixture_of_experts"].steps
    assert like.token
    counted = replace(
        like, decode=phases.count("decode"), token=replace(like.token, steps_per_token=1 / tokens)
    )
    rows = kernel_rows(sums_of(frame, steps["phase"]))
    return conversions_of(frame, steps, counted, rows, classify, timed=timed)


LAYER = [K(NORM, "norm", layer=0), K(QUANTIZE, layer=0, ns=2000), K(GEMM, "qkv", layer=0),
         K(ATTENTION, "attention", layer=0), K(QUANTIZE, layer=0, ns=1000),
         K(GEMM, "o_proj", layer=0)]  # fmt: skip


def test_attributed_to_the_consumer() -> None:
    found = conversions([replace(k, step=s) for s in range(3) for k in LAYER],
                        ["prefill", "decode", "decode"])  # fmt: skip
    qkv, o_proj = found.attributed
    assert (qkv.component, qkv.consumer, qkv.after, qkv.gemm) == ("qkv", GEMM, "norm", True)
    assert (qkv.calls, qkv.decode_calls, qkv.calls_per_step, qkv.layers) == (3, 2, 1.0, 1)
    assert (qkv.us, qkv.prefill_us, qkv.decode_us, qkv.us_per_token) == (6.0, 2.0, 4.0, 2.0)
    assert (o_proj.component, o_proj.after, o_proj.us_per_token) == ("o_proj", "attention", 1.0)
    assert found.us == 9.0
    assert found.us_per_token == 3.0
    assert [(row.layer, row.component, row.us) for row in found.layers] == [
        (0, "qkv", 6.0),
        (0, "o_proj", 3.0),
    ]


def test_a_token_of_several_in_a_step_pays_a_part() -> None:
    assert conversions(LAYER, ["decode"], tokens=2.0).us_per_token == 1.5


def test_load_time_is_apart() -> None:
    before = [K(REPACK, ns=5000, step=-1), K(CAST, ns=700, step=-1)]
    found = conversions([*before, *LAYER], ["decode"])
    assert [(row.kind, row.calls, row.outside, row.us) for row in found.load_time] == [
        ("repack", 1, 1, 5.0),
        ("cast", 1, 1, 0.7),
    ]
    assert found.us == pytest.approx(3.0)


def test_repacking_in_a_step_of_many_is_load_time() -> None:
    steps = [replace(k, step=s) for s in range(4) for k in LAYER]
    found = conversions([*steps, K(REPACK, step=3)], ["decode"] * 4)
    assert [(row.kind, row.outside) for row in found.load_time] == [("repack", 0)]
    assert "repack" not in {row.kind for row in found.attributed}
    assert REPACK not in {row.name for row in found.items}


def test_fused_are_listed_and_not_counted() -> None:
    found = conversions([K(FUSED, "mlp"), K(GEMM, "mlp")], ["decode"])
    assert [(row.kind, row.component) for row in found.fused] == [("quantize", "mlp")]
    assert (found.us, found.attributed) == (0, ())


PAD = [K(PADDING[0].example, "experts", ns=3000), K(PADDING[1].example, "experts", ns=7000)]


def test_pytorch_s_pad_is_known_by_its_order() -> None:
    found = conversions([*PAD, K(QUANTIZE, "experts"), K(GEMM, "experts")], ["decode"])
    assert [(row.kind, row.component, row.consumer, row.us) for row in found.padding] == [
        ("pad", "experts", GEMM, 7.0),
        ("pad", "experts", GEMM, 3.0),
    ]
    assert [row.kind for row in found.attributed] == ["quantize"]


@each_row(
    "kernels",
    [
        pytest.param([PAD[1], PAD[0]], id="the copy comes first"),
        pytest.param([PAD[0], K(GEMM, "experts"), PAD[1]], id="something lies between"),
        pytest.param([PAD[0], replace(PAD[1], stream=9)], id="on another stream"),
        pytest.param([PAD[0], replace(PAD[1], component="norm")], id="for another component"),
        pytest.param([replace(PAD[0], name=PAD[0].name.replace("c10::BFloat16", "int")), PAD[1]],
         id="whole numbers"),
    ],
)  # fmt: skip
def test_fills_and_copies_that_are_no_pad(kernels: list[K]) -> None:
    assert conversions([*kernels, K(GEMM, "experts")], ["decode"]).padding == ()
