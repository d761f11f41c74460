"""The one screen that `report` prints; test_every_recording.py has what holds of all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import spark_prof
from spark_prof.analyzers.finding import command
from spark_prof.dashboards.render import Layout, render_report
from spark_prof.dashboards.short_report import abridged, elsewhere, short_report, short_role
from spark_prof.dashboards.units import microseconds
from tests.rows import each_row

DATA = Path(__file__).parents[1] / "data"


def test_a_text_ends_with_a_sentence_or_a_clause() -> None:
    text = "Record it again after a warm-up of 32 steps. If they stay, look further."
    assert abridged(text, 60) == "Record it again after a warm-up of 32 steps."
    clause = "Kernels of it take as long as that (router, experts); with gaps it is twice as long."
    assert abridged(clause, 70) == "Kernels of it take as long as that (router, experts)."
    assert abridged(text, 100) == text


def test_a_path_of_another_machine_is_named_once(tmp_path: object) -> None:
    report = spark_prof.report(DATA / "code-h100" / "gpt-oss-20b-mxfp4")
    said = "/tmp/m/gpt is a path of the machine that was recorded: replace it with yours."
    assert render_report(report, Layout()).count("is a path of the machine") == 1
    assert f" -- /tmp/m/gpt\n{said}" in render_report(report, Layout())
    assert elsewhere(command("spark-prof", "ab", "--", "vllm", "serve", str(tmp_path))) == ""
    assert elsewhere(command("spark-prof", "report", "/nowhere/at/all")) == ""


def test_findings_with_the_same_command_are_named_beside_it() -> None:
    report = spark_prof.report(DATA / "code-h100" / "qwen3-30b-a3b-nvfp4")
    text = " ".join(render_report(report, Layout()).split())
    shown = [found for found in report.findings if f". {found.key}: " in text]
    for found in report.findings:
        if found.command and found not in shown and found.command in {s.command for s in shown}:
            name = found.key.partition(":")[2] or found.key
            assert f"{name} ({microseconds(1000 * (found.ms_per_token or 0))})" in text
    assert "The same command is for far-from-memory-floor:experts-w2" in text


def test_weights_without_a_proven_reader_are_a_caveat() -> None:
    report = spark_prof.report(DATA / "code-h100" / "qwen3-30b-a3b-nvfp4")
    [caveats] = [s for s in short_report(report).sections if s.id == "caveats"]
    phase = report.roofline and report.roofline.decode
    assert phase
    us = sum(k.us * k.calls for k in phase.rows if k.component in ("qkv", "o_proj"))
    assert f"qkv, o_proj is not proven: {100 * us / (phase.step_us or 1):.1f} % of a step" in str(
        caveats.rows
    )
    proven = replace(phase, unplaced=())
    assert report.roofline
    report = replace(report, roofline=replace(report.roofline, phases=(proven,)))
    assert "is not proven" not in str(short_report(report))


@each_row(
    ("role", "shown"),
    [
        ("self_attn.qkv_proj", "self_attn.qkv_proj"),
        ("drafter.eh_proj", "drafter.eh_proj"),
        ("drafter.mtp_block.self_attn.kv_b_proj", "drafter...attn.kv_b_proj"),
        ("encoder.self_attn_layer_norm", "encoder...ttn_layer_norm"),
        ("mlp.experts.shared_experts.down_proj", "...red_experts.down_proj"),
    ],
)
def test_a_role_that_is_cut_keeps_whose_it_is(role: str, shown: str) -> None:
    assert short_role(role, 24) == shown
    assert len(shown) <= 24
