"""What doctor draws: the same content in every format, nothing hostile, no empty columns."""

from __future__ import annotations

import json

from spark_prof.analyzers.fallbacks.audit import audit_of_log
from spark_prof.analyzers.fallbacks.machine_checks import Library, Machine, Package
from spark_prof.analyzers.findings.audit_findings import findings_of_audit
from spark_prof.dashboards.doctor_report import Diagnosis, document_of, render_diagnosis
from spark_prof.dashboards.section import Layout
from tests.analyzers.fallbacks.runs import log

AUDIT = audit_of_log(
    log(
        "Using FlashInferCutlassNvFp4LinearKernel for NVFP4 GEMM",
        "Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['MARLIN'].",
        "Unknown vLLM environment variable detected: VLLM_USE_FLASHINFER_MOE_FP4",
        *(f"Unknown vLLM environment variable detected: VLLM_OTHER_{i}" for i in range(80)),
    ),
    "NVIDIA GB10",
    "12.1",
)
MACHINE = Machine(
    gpu="NVIDIA GB10",
    capability="12.1",
    packages=(Package("vllm", "0.26.0"), Package("flashinfer-python", "")),
    libraries=(Library("vllm/_C.abi3.so", ("50 x sm_120",), ("sm_80",), 50, 0),),
    lost=("cuobjdump is not installed",),
)
FOUND = Diagnosis("serve.log", findings_of_audit(AUDIT), AUDIT, MACHINE)


def test_json_has_all_lines_and_the_page_says_how_many_it_leaves_out() -> None:
    for kind in ("text", "md", "html"):
        drawn = render_diagnosis(FOUND, Layout(kind, 160))
        for words in ("Findings (82)", "W4A16 nvfp4", "50 x sm_120", "cuobjdump is not installed"):
            assert words in drawn, (kind, words)
    value = json.loads(render_diagnosis(FOUND, Layout("json")))
    assert len(value["audit"]["log"]) == 83
    assert len(value["findings"]) == 82
    assert value["machine"]["packages"][1] == {"name": "flashinfer-python", "version": ""}
    assert "23 more are in the JSON" in render_diagnosis(FOUND, Layout())


def test_what_was_not_looked_at_has_no_section() -> None:
    titles = {section.id for section in document_of(Diagnosis("x", audit=AUDIT)).sections}
    assert "installed" not in titles
    assert "audit" in titles
    assert document_of(Diagnosis("x", machine=MACHINE)).headline == (
        ("to change was found", "Nothing"),
    )
    assert document_of(Diagnosis("x")).headline == ()
