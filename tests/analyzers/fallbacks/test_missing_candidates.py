"""What took backends off the list that a log has, by the full list of that vLLM."""

from __future__ import annotations

from spark_prof.analyzers.fallbacks.audit import audit_of_log
from spark_prof.analyzers.fallbacks.audit_rows import Audit, AuditRow, EngineSetup, EvidenceSource
from spark_prof.analyzers.fallbacks.causes import cause_of
from spark_prof.analyzers.fallbacks.layer_groups import LayerGroup
from spark_prof.analyzers.findings.audit_findings import findings_of_audit
from spark_prof.rules.backend_order import order_of
from tests.analyzers.fallbacks.runs import log
from tests.rows import each_row

FLASHINFER = ("FLASHINFER_TRTLLM", "FLASHINFER_CUTEDSL", "FLASHINFER_CUTEDSL_BATCHED",
              "FLASHINFER_CUTLASS")  # fmt: skip
REST = ("VLLM_CUTLASS", "MARLIN", "EMULATION")
SET = (
    "VLLM_USE_FLASHINFER_MOE_FP4 is deprecated and will be removed in v0.23. Use --moe-backend "
    "(e.g. flashinfer_trtllm, flashinfer_cutlass, flashinfer_cutedsl)."
)


def told(vllm: str, offered: tuple[str, ...], *lines: str, capability: str = "12.1") -> Audit:
    """The audit of a log whose experts run on Marlin, out of a list."""
    return audit_of_log(
        log(
            f"Initializing a V1 LLM engine (v{vllm}) with config: model='m', quantization=fp4",
            f"Using 'MARLIN' NvFp4 MoE backend out of potential backends: {list(offered)}.",
            *lines,
        ),
        "a GPU",
        capability,
    )


def row(audit: Audit) -> AuditRow:
    (only,) = audit.rows
    return only


@each_row("vllm", ["0.22.1", "0.20.0", "0.1.dev1+g0abc", "0.1.dev20231+g0abc.d20260601"])
def test_a_variable_that_took_flashinfer_off_is_named(vllm: str) -> None:
    """Also of a build that does not know its version: the log itself says that it is read."""
    audit = told(vllm, REST, SET)
    found = row(audit)
    assert found.cause == "disabled"
    assert "VLLM_USE_FLASHINFER_MOE_FP4=0 takes FLASHINFER_* off vLLM's list" in found.why
    assert found.fix.startswith("unset VLLM_USE_FLASHINFER_MOE_FP4")
    fixes = " ".join(finding.fix for finding in findings_of_audit(audit))
    # No advice contradicts another: nobody is told to set what another says to leave out.
    assert "VLLM_USE_FLASHINFER_MOE_FP4=1" not in fixes
    assert "VLLM_FLASHINFER_MOE_BACKEND=" not in fixes


@each_row(
    ("vllm", "offered", "lines", "capability"),
    [
        ("0.22.1", (*FLASHINFER, *REST), (SET,), "12.1"),  # nothing is missing
        ("0.22.1", REST, (), "12.1"),  # nothing says that the variable was set
        ("0.22.1", REST, (SET,), "9.0"),  # none of them runs there anyway
        ("0.26.0", (*FLASHINFER, "VLLM_CUTLASS", "MARLIN", "HUMMING", "EMULATION"), (), "12.1"),
    ],
)
def test_without_that_nothing_is_blamed(
    vllm: str, offered: tuple[str, ...], lines: tuple[str, ...], capability: str
) -> None:
    found = row(told(vllm, offered, *lines, capability=capability))
    assert found.cause in ("unknown", "architecture")
    assert "off vLLM's list" not in found.why
    assert "has none of" not in found.why


def test_what_the_model_itself_rules_out_is_no_fault() -> None:
    """The list of 0.26 for a model that clamps its SwiGLU, as the table has it."""
    order = order_of("--moe-backend", "nvfp4", 12.1, (0, 26))
    assert order is not None
    (gone,) = (names for what, _, names in order.takes_off if what == "swiglu_limit")
    left = tuple(name for name, _ in order.tries if name not in gone)
    audit = told("0.26.0", left)
    found = row(audit)
    assert found.cause == "model"
    assert "swiglu_limit" in found.why
    assert found.fix == ""
    assert not [f for f in findings_of_audit(audit) if f.id == "weight-only-fp4"]


def test_a_list_that_nothing_explains_is_told_as_such() -> None:
    left = ("VLLM_CUTLASS", "MARLIN", "HUMMING", "EMULATION")
    found = row(told("0.26.0", left))
    assert found.cause == "unknown"
    assert "has none of FLASHINFER_TRTLLM" in found.why
    assert "nothing that is known takes exactly these off" in found.why


def test_every_variable_of_the_table_is_found_by_what_it_takes_off() -> None:
    for vllm in ((0, 26), (0, 33)):
        order = order_of("--moe-backend", "fp8_block", 9.0, vllm)
        assert order is not None
        for variable, value, gone in order.takes_off:
            left = [name for name, _ in order.tries if name not in gone]
            if "MARLIN" not in left or not value:
                continue
            said = log(
                f"Initializing a V1 LLM engine (v0.{vllm[1]}.0) with config: model='m'",
                f"Using MARLIN Fp8 MoE backend out of potential backends: {left}.",
            )
            (found,) = audit_of_log(said, "NVIDIA H100", "9.0").rows
            assert found.cause == "disabled"
            names = [v for v, _, names in order.takes_off if set(names) == set(gone)]
            assert any(name in found.why for name in names), (variable, found.why)


def test_leaving_deepgemm_out_for_the_answers_sake_is_no_fault() -> None:
    line = (
        "Auto-disabled DeepGemm for model_type=glm on Blackwell. DeepGemm E8M0 scale format causes "
        "accuracy degradation for this architecture. Falling back to CUTLASS."
    )
    assert findings_of_audit(audit_of_log(log(line), "NVIDIA GB10", "12.1")) == ()
    missing = audit_of_log(log("DeepGEMM backend requested but not available."), "GB10", "12.1")
    assert [found.id for found in findings_of_audit(missing)] == ["kernel-fallback"]


@each_row(
    ("vllm", "environment", "variable"),
    [
        ("0.33.0", {"VLLM_MOE_USE_DEEP_GEMM": "0"}, "VLLM_MOE_USE_DEEP_GEMM"),
        ("0.33.0", {"VLLM_MOE_USE_DEEP_GEMM": "1"}, ""),
        ("0.33.0", {}, ""),
        ("0.34.0", {"VLLM_MOE_USE_DEEP_GEMM": "0"}, ""),  # nobody read that vLLM's sources
    ],
)
def test_without_a_list_the_recorded_variables_tell(
    vllm: str, environment: dict[str, str], variable: str
) -> None:
    ran = EvidenceSource("engine", "MarlinExperts Fp8MoeBackend.MARLIN", "Marlin", "16-bit")
    group = LayerGroup("experts", "moe", "fp8", ("fp8", "fp8"), 48, [ran])
    engine = EngineSetup(vllm=vllm, capability="10.0", environment=tuple(environment.items()))
    cause = cause_of(group, engine, ())
    assert cause is not None
    assert cause.id == ("disabled" if variable else "unknown")
    if variable:
        assert cause.why == f"{variable}=0 takes DEEPGEMM off the list of candidates"
        assert cause.fix.startswith(f"unset {variable}")


@each_row(("vllm", "cause"), [("0.24.0", "forced"), ("0.28.0", "forced"), ("0.29.0", "unknown")])
def test_marlin_is_forced_as_long_as_vllm_reads_the_variable(vllm: str, cause: str) -> None:
    ran = EvidenceSource("engine", "MarlinFP8ScaledMMLinearKernel", "Marlin", "16-bit")
    group = LayerGroup("qkv", "linear", "fp8", ("fp8", "fp8"), 48, [ran])
    environment = (("VLLM_TEST_FORCE_FP8_MARLIN", "1"),)
    found = cause_of(group, EngineSetup(vllm=vllm, capability="9.0", environment=environment), ())
    assert found is not None
    assert found.id == cause


def test_a_backend_that_somebody_asked_for_is_judged_by_its_format() -> None:
    """Humming computes FP4 weights with 16-bit activations: who asks for it has asked for that."""
    ran = EvidenceSource("engine", "HummingExperts NvFp4MoeBackend.HUMMING", "Humming", "16-bit")
    group = LayerGroup("experts", "moe", "nvfp4", ("nvfp4", "nvfp4"), 48, [ran])
    asked = cause_of(
        group, EngineSetup(vllm="0.33.0", capability="12.1", moe_backend="humming"), ()
    )
    assert asked is not None
    assert (asked.id, asked.why) == ("forced", "--moe-backend humming")
    hopper = cause_of(group, EngineSetup(vllm="0.33.0", capability="9.0"), ())
    assert hopper is not None
    assert hopper.id == "architecture"
