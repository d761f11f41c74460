"""Two recordings of one engine on an H100: nothing was swapped, and nothing is claimed to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.analyzers.comparing.attribute_gain import summarize
from spark_prof.analyzers.comparing.swap_attribution import Swapped, Untraced
from spark_prof.traces.bundle import Bundle

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests/data"
LAYERS = 48
SWAPS = [
    Swapped("b", slot, path.format(number), "spark_prof")
    for number in range(LAYERS)
    for slot, path in (
        ("moe", "model.layers.{}.mlp.experts"),
        ("o", "model.layers.{}.self_attn.o_proj"),
        ("qkv", "model.layers.{}.self_attn.qkv_proj"),
    )
]


def test_two_recordings_of_the_same_thing() -> None:
    a = Bundle(DATA / "h100-qwen3-30b-a3b-nvfp4-graphs")
    b = Bundle(DATA / "code-h100/qwen3-30b-a3b-nvfp4")
    twice = summarize(a, b, SWAPS, Untraced(4200.0, 4206.0))
    assert [row for row in twice.components if abs(row.saved_us) >= 0.01 * 4200] == []
    assert twice.nothing_else_moved
    assert twice.appeared == twice.vanished == ()
    assert twice.residual_share is twice.adds_up is None
    assert twice.a.corrected_us == pytest.approx(4200)
    assert sum(row.a_us for row in twice.components) == pytest.approx(4200)
    assert sum(row.b_us for row in twice.layers) == pytest.approx(twice.b.corrected_us)
    # Found on the first recording, what tracing costs brings the second one to 0.1 %.
    assert twice.b.corrected_us == pytest.approx(4206, rel=1e-3)
    assert 0.1 < twice.tracing_us < 1.0
    # Swaps that never were did not run.
    assert [proof.ran for proof in twice.proofs] == ["did not run"] * len(SWAPS)
    experts = next(proof for proof in twice.proofs if proof.slot == "moe")
    assert ["marlin_moe" in name for name in experts.left] == [True, True]
