"""The command that a finding ends with: it can be typed, and promises what was measured."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import spark_prof
from benchmarks import measured_steps as measured
from spark_prof.ab.sides import parse_side
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.measured_gains import (
    measured_gain,
    measured_step,
    measured_steps,
    running_family,
)
from spark_prof.analyzers.findings.next_command import with_next_command
from spark_prof.analyzers.findings.ranking import findings_of
from spark_prof.analyzers.model import Report
from spark_prof.kernels.tuning import ALONE, known_runs
from spark_prof.rules.backend_order import orders
from tests.rows import each_row

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests/data"
QWEN = DATA / "h100-qwen3-30b-a3b-nvfp4-graphs"
GPT = DATA / "h100-gpt-oss-20b-mxfp4-graphs"


@pytest.fixture(scope="module")
def qwen() -> Report:
    return spark_prof.report(QWEN)


def test_kernels_are_named_only_where_they_were_measured_to_win(qwen: Report) -> None:
    gain = measured_gain("experts", qwen)
    assert gain is not None
    [row] = [
        row
        for run in known_runs()
        for row in run.rows
        if (row.work.kernel, row.work.rows, row.work.experts) == ("moe", 1536, 128)
        and (row.work.tokens, run.machine) == (1, qwen.gpu.name)
    ]
    assert row.fallback_us is not None
    assert f"{row.fallback_us / row.us:.2f} x as fast as {row.fallback}" in gain.text
    other_gpu = replace(qwen, gpu=replace(qwen.gpu, compute_capability="12.1"))
    assert measured_gain("experts", other_gpu) is None
    assert measured_gain("norm", qwen) is None
    # BF16 weights have a gain as MXFP4, and none as what they are not.
    assert measured_gain("lm_head", qwen, "mxfp4") is not None
    wide = tuple(replace(m, bytes=m.bytes * 2) for m in qwen.modules)
    assert measured_gain("experts", replace(qwen, modules=wide)) is None


def test_a_damaged_file_of_the_user_leaves_the_package_s_measurements(
    qwen: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gain = measured_gain("experts", qwen)
    (tmp_path / "spark-prof").mkdir()
    (tmp_path / "spark-prof" / "tuned.json").write_text("{")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    known_runs.cache_clear()
    try:
        assert measured_gain("experts", qwen) == gain is not None
    finally:
        known_runs.cache_clear()


def test_what_was_searched_in_a_chain_of_layers_is_no_gain(
    qwen: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = tuple(
        replace(run, rows=tuple(replace(row, fallback=ALONE) for row in run.rows))
        for run in known_runs()
    )
    monkeypatch.setattr("spark_prof.analyzers.findings.measured_gains.known_runs", lambda: searched)
    assert measured_gain("experts", qwen) is None
    assert measured_gain("lm_head", qwen, "mxfp4") is None


def test_what_runs_is_the_family_with_most_time(qwen: Report) -> None:
    row = next(row for row in qwen.kernels if row.component == "experts")
    other = replace(row, name="marlin", us=99.0, component="norm")
    # Two of one family count together.
    for humming, triton, family in ((5.0, 3.0, "Triton"), (7.0, 3.0, "Humming")):
        times = ((HUMMING, humming), (TRITON, triton), (TRITON, triton), ("unknown", 50.0))
        rows = (replace(row, name=name, us=us) for name, us in times)
        assert running_family(replace(qwen, kernels=(other, *rows)), "experts") == family


def test_a_layer_is_offered_where_its_step_was_measured(qwen: Report) -> None:
    gpt = spark_prof.report(GPT)
    asked = {found.id: found for found in gpt.findings}
    kept, rounded = asked["small-kernels"], asked["bf16-weights-dominate"]
    assert "--b layer=spark_prof,o=spark_prof,lm_head=spark_prof -- " in kept.command
    # It was measured on an H200: on the H100 of this recording an A/B would tell.
    assert kept.measured.startswith(
        "An A/B would tell what layer, o and lm_head bring together on NVIDIA H100 80GB HBM3 "
        "against Triton, which was not measured. A step of gpt-oss-20b was: on NVIDIA H200 with "
        "vLLM 0.26.0, "
    )
    assert " ms" not in kept.measured
    assert "--b layer=mxfp4,o=mxfp4,lm_head=mxfp4 -- " in rounded.command
    assert "rounds weights" in rounded.measured
    assert "--b lm_head=mxfp4 -- " in asked["lm-head-not-quantized"].command
    of_qwen = measured_step(("router",), qwen)
    assert of_qwen is not None
    assert of_qwen.model == "qwen3-30b-a3b-nvfp4"
    assert measured_step(("router",), qwen, "mxfp4") is None

    assert gpt.roofline is not None
    phases = tuple(replace(phase, tokens=8) for phase in gpt.roofline.phases)
    eight, own = replace(gpt.roofline, phases=phases), replace(gpt.kernels[0], name="attention")
    others = {
        "another GPU": replace(gpt, gpu=replace(gpt.gpu, compute_capability="12.1")),
        "more tokens": replace(gpt, roofline=eight),
        "two GPUs": replace(gpt, ranks=(*gpt.ranks, *gpt.ranks)),
        "these kernels": replace(gpt, kernels=(*gpt.kernels, own)),
        "fewer layers": replace(gpt, modules=tuple(replace(m, count=4) for m in gpt.modules)),
        "another attention": replace(
            gpt,
            modules=tuple(
                replace(m, kernel="TritonAttentionImpl") if m.component == "attention" else m
                for m in gpt.modules
            ),
        ),
    }
    assert measured_step(("router",), gpt) is not None
    for what, report in others.items():
        assert measured_step(("router",), report) is None, what


def test_a_step_is_quoted_on_its_gpu_against_its_kernels() -> None:
    gpt = spark_prof.report(GPT)
    [small] = [found for found in gpt.findings if found.id == "small-kernels"]
    h200 = replace(gpt, gpu=replace(gpt.gpu, name="NVIDIA H200"))
    told = with_next_command(small, h200, "kernels").measured
    assert "with vLLM 0.26.0, gpt-oss-20b, 1 token: a step of 1.84 ms, stock 2.86" in told
    newest = replace(h200, run=replace(h200.run, vllm="0.33.0"))
    told = with_next_command(small, newest, "kernels").measured
    assert "with vLLM 0.33.0, gpt-oss-20b, 1 token: a step of 1.70 ms, stock 2.90, on" in told
    assert "kernels, stock" not in told, "which ab does not count"
    humming = with_next_command(small, _ran_on(h200, "experts", HUMMING), "kernels").measured
    assert (
        "would tell what layer, o and lm_head bring together on NVIDIA H200 against Humming"
        in humming
    )
    assert "1.84 ms" not in humming


def test_of_several_measurements_that_against_the_kernels_that_run_is_taken(qwen: Report) -> None:
    """vLLM 0.33 runs Humming where 0.26 ran Marlin."""
    for kernel, vllm in ((HUMMING, "0.33.0"), (HUMMING, "0.32.0"), (MARLIN, "0.26.0")):
        ran = _ran_on(replace(qwen, run=replace(qwen.run, vllm=vllm)), "experts", kernel)
        step = measured_step(("router",), ran)
        assert step is not None
        assert step.stock == ("Humming" if kernel == HUMMING else "Marlin")


MARLIN = "void marlin::Marlin<1125899906909960l>(int4 const*)"
HUMMING = "void humming<MmaOpClass, Shape<0u, 768u, 2048u>, LayerConfig>"
TRITON = "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1"


def _ran_on(report: Report, component: str, kernel: str) -> Report:
    """The report of a recording whose component ran on another kernel."""
    kernels = tuple(
        replace(row, name=kernel) if row.component == component else row for row in report.kernels
    )
    return replace(report, kernels=kernels)


@each_row(
    ("kernel", "gpu", "vllm", "family", "holds"),
    [
        ("", "NVIDIA H100 80GB HBM3", "0.26.0", "Marlin", True),
        ("", "NVIDIA H100 80GB HBM3", "0.31.0", "Marlin", True),
        (HUMMING, "NVIDIA H100 80GB HBM3", "0.33.0", "Humming", False),
        (TRITON, "NVIDIA H100 80GB HBM3", "0.26.0", "Triton", False),
        ("something_nobody_knows", "NVIDIA H100 80GB HBM3", "0.26.0", "Marlin", True),
        ("", "NVIDIA H200", "0.26.0", "Marlin", True),
        (HUMMING, "NVIDIA H200", "0.33.0", "Humming", False),
        ("", "NVIDIA GH200", "0.26.0", "Marlin", False),
    ],
)
def test_a_gain_is_quoted_only_against_what_runs_on_this_gpu(
    kernel: str, gpu: str, vllm: str, family: str, holds: bool, qwen: Report
) -> None:
    here = replace(qwen, gpu=replace(qwen.gpu, name=gpu), run=replace(qwen.run, vllm=vllm))
    here = _ran_on(here, "experts", kernel) if kernel else here
    other = {"attention": "TritonAttentionImpl"}  # for which no whole step was measured
    here = replace(
        here,
        modules=tuple(replace(m, kernel=other.get(m.component, m.kernel)) for m in here.modules),
    )
    gain = measured_gain("experts", here)
    assert gain is not None
    assert (gain.running, gain.holds) == (family, holds)
    raced = "0.33.0" if gpu == "NVIDIA H200" else "0.26.0"  # the vLLM that it was measured beside
    assert (gain.other, gain.vllm) == ("vLLM Marlin", raced)
    finding = Finding("far-from-memory-floor", 0.1, "text", "fix", components=("experts",))
    told = with_next_command(finding, here, "kernels")
    assert "--b moe=spark_prof -- " in told.command
    if holds:
        assert f"Measured on {gain.machine} with vLLM {raced}: moe {gain.text}." == told.measured
    else:
        assert " x as fast" not in told.measured
        assert told.measured.startswith(
            f"An A/B would tell what moe brings on {gpu} with vLLM {vllm} against {family}"
        )
        assert f"with vLLM {raced}, against vLLM Marlin." in told.measured


def test_measured_steps_are_those_that_are_stored() -> None:
    assert measured.STORED.read_text() == measured.file_text()
    assert [(row.model, row.kernel) for row in measured_steps()] == [
        ("gpt-oss-20b", "spark_prof"), ("qwen3-30b-a3b-nvfp4", "spark_prof"),
        ("gpt-oss-20b", "spark_prof"), ("gpt-oss-20b", "mxfp4"),
        ("qwen3-30b-a3b-nvfp4", "spark_prof"),
    ]  # fmt: skip
    for row in measured_steps():
        assert all(own < stock for stock, own in (row.wall_ms, row.device_ms))


def test_what_is_set_already_is_not_advised(qwen: Report) -> None:
    finding = Finding("host-gaps", 0.1, "text", "fix")
    assert "FULL_AND_PIECEWISE" in qwen.run.execution
    assert " export " in with_next_command(finding, qwen, "timeline").command
    lesser = replace(qwen, run=replace(qwen.run, execution="CUDA graphs (PIECEWISE)"))
    assert "cudagraph_mode=FULL" in with_next_command(finding, lesser, "timeline").command


def test_the_audit_is_shown_only_where_it_has_a_row(qwen: Report) -> None:
    assert qwen.audit is not None
    unsaid = tuple(row for row in qwen.audit.rows if not row.is_told)
    assert 0 < len(unsaid) < len(qwen.audit.rows)
    finding = Finding("misleading-fp4-warning", None, "text", "fix")
    for audit, section in (
        (qwen.audit, "audit"),
        (replace(qwen.audit, rows=unsaid), "recording"),
        (None, "recording"),
    ):
        told = with_next_command(finding, replace(qwen, audit=audit), "fallbacks")
        assert told.command.endswith(f" --section {section}")


RAN = {
    "compare-h100/gpt-duty": {"--moe-backend": "triton", "--attention-backend": "FLASH_ATTN"},
    "code-h100/dense-awq": {"--linear-backend": "machete", "--attention-backend": "FLASH_ATTN"},
    "h100-qwen3-30b-a3b-nvfp4-graphs": dict.fromkeys(
        ("--moe-backend", "--linear-backend"), "marlin"
    ),
}


@each_row("name", RAN)
def test_a_backend_is_proposed_only_where_it_runs(name: str) -> None:
    """On no GPU what cannot run there, nor what ran; on one that is not known nothing."""
    recorded = spark_prof.report(DATA / name)
    proposed: dict[str | None, set[tuple[str, str]]] = {}
    for capability in ("8.0", "9.0", "10.0", "12.1", None):
        here = replace(recorded.gpu, compute_capability=capability)
        for finding in findings_of(replace(recorded, gpu=here, findings=())):
            words = [w for w in shlex.split(finding.command) if w.startswith("--b=--")]
            for word in words:
                side = parse_side(word.removeprefix("--b="))
                option, _, value = side.options[0].partition("=")
                if option.endswith("-backend"):
                    proposed.setdefault(capability, set()).add((option, value))
    assert None not in proposed
    for capability, sides in proposed.items():
        number = round(10 * float(capability or 0))
        for option, value in sides:
            assert RAN[name].get(option) != value
            here = {
                backend.value
                for row in orders()
                if row.option == option and number in row.capabilities
                for backend in row.backends
            }
            assert value in here, (capability, option, value)


def test_experts_get_a_backend_where_their_gpu_has_another(qwen: Report) -> None:
    def commands(capability: str) -> list[str]:
        here = replace(qwen.gpu, compute_capability=capability)
        return [f.command for f in findings_of(replace(qwen, gpu=here, findings=()))]

    asked = "spark-prof ab --b=--moe-backend=flashinfer_cutlass -- /tmp/m/qwen"
    assert asked in commands("12.1")
    assert asked not in commands("9.0")
