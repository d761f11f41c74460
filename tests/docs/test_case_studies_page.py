"""The bytes and ceilings in case studies and on the page about them are the command's."""

from __future__ import annotations

from functools import cache

from spark_prof.analyzers.ceilings.ceiling_rows import CheckpointCeilings, FormatChoice, Question
from spark_prof.analyzers.ceilings.checkpoint_ceilings import ceilings_of
from spark_prof.analyzers.ceilings.schemes import BYTES
from spark_prof.rules.gpus import gpu_called
from spark_prof.traces.checkpoint import read_checkpoint
from tests.analyzers.ceilings.test_published import CHECKPOINTS, GIGABYTES
from tests.checkpoints import MODELS
from tests.docs.pages import ROOT, tables

PAGE = ROOT / "docs" / "case-studies.md"
CEILINGS = ROOT / "docs" / "roofline.md"
TEXT = " ".join(PAGE.read_text(encoding="utf-8").split())
READ = 231e9


@cache
def ceilings(name: str, question: Question = Question()) -> CheckpointCeilings:  # noqa: B008 - frozen
    gb10 = gpu_called("gb10")
    assert gb10 is not None
    return ceilings_of(read_checkpoint(MODELS / name), question, [gb10])


def choice(name: str, which: str = "as-shipped", question: Question = Question()) -> FormatChoice:  # noqa: B008
    return next(c for c in ceilings(name, question).choices if c.id == which)


def reading(found: FormatChoice) -> float:
    """Tokens a second at the measured read bandwidth."""
    assert found.gpus[0].read
    return found.gpus[0].read.tokens_per_s


def percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def gigabytes(number: float) -> str:
    return f"{number / 1e9:.3f} GB"


def rate(found: FormatChoice, *, sheet: bool = False) -> str:
    speed = found.gpus[0].data_sheet.tokens_per_s if sheet else reading(found)
    return f"{speed:.1f} tokens/s"


def part(reported_ms: float, read: float) -> list[str]:
    """The cells of a row of the profile: reads, GB/s, floor, above it."""
    floor = round(read / READ * 1e3, 1)
    speed = f"{read / reported_ms / 1e6:.0f} GB/s"
    above = f"{reported_ms - floor:.1f} ms"
    return [f"{reported_ms} ms", gigabytes(read), speed, f"{floor} ms", above]


def test_the_profile_of_gpt_oss_120b() -> None:
    step = choice("gpt-oss-120b", "attention-head-mxfp4").step
    read = {row.component: row.read for row in step.rows}
    rows = {row[0]: row[1:] for row in tables(PAGE, "Where the time of gpt-oss-120b goes")[0]}
    assert rows["MoE GEMMs"] == part(12.5, read["experts"])
    assert rows["QKV and O GEMMs"] == part(4.0, read["qkv"] + read["o_proj"])
    assert rows["lm_head"] == part(1.2, read["lm_head"])
    assert rows["routing and other"] == part(1.9, read["router"])
    assert rows["all"] == part(20.4, step.read)
    reported = [float(row[0].removesuffix(" ms")) for name, row in rows.items() if name != "all"]
    assert round(sum(reported), 1) == 20.4


def test_the_dense_weights_of_gpt_oss_120b() -> None:
    rows = tables(PAGE, "Where the time of gpt-oss-120b goes")[1]
    which = ("as-shipped", "attention-head-fp8", "attention-head-mxfp4")
    chosen = [choice("gpt-oss-120b", each) for each in which]
    assert [row[1:3] for row in rows] == [[gigabytes(c.step.read), rate(c)] for c in chosen]
    assert f"SGLang 52.4 ({percent(52.4 / reading(chosen[1]))})" in rows[1][3]
    assert f"60.0 ({percent(60.0 / reading(chosen[2]))})" in rows[2][3]
    assert f"would take {57.85 * chosen[0].step.read / 1e9:.0f} GB/s" in TEXT


def test_multi_token_prediction() -> None:
    rows = tables(PAGE, "Multi-token prediction, and a ceiling of 46 tokens/s")[0]
    questions = (Question(), Question(scheduled=3, accepted=2.4), Question(scheduled=3, accepted=3))
    chosen = [choice("qwen3-next-80b-a3b-nvfp4-experts", question=q) for q in questions]
    for row, found in zip(rows, chosen, strict=True):
        told = (gigabytes(found.step.read), rate(found), rate(found, sheet=True))
        assert row[1:] == [f"{found.step.experts_hit:.1f}", *told]
    ratio = chosen[1].step.read / chosen[0].step.read
    assert f"{ratio:.2f} times as much" in TEXT
    assert f"from {ratio:.2f} tokens a step on" in TEXT
    assert f"raise the ceiling by {percent(2.4 / ratio - 1)}" in TEXT
    of_it = [percent(67 / reading(chosen[1])), percent(42 / reading(chosen[0]))]
    assert f"67 tokens/s are {of_it[0]} of the ceiling, 42 are {of_it[1]} of theirs" in TEXT
    assert f"would be {273 / 46:.2f} GB a token" in TEXT


def test_what_the_page_about_ceilings_says_is_checked() -> None:
    text = CEILINGS.read_text(encoding="utf-8")
    assert f"{len(GIGABYTES)} figures of {len(CHECKPOINTS)} published checkpoints" in text


def test_the_bytes_of_the_formats() -> None:
    text = " ".join(CEILINGS.read_text(encoding="utf-8").split())
    names = {"BF16": "bf16", "FP8": "int8", "MXFP8": "mxfp8", "NVFP4": "nvfp4", "MXFP4": "mxfp4"}
    shown = ", ".join(f"{name} {BYTES[key]:g}" for name, key in names.items())
    assert f"{shown}, INT4 in groups of 128 with zero points {BYTES['int4']:.8f}" in text
