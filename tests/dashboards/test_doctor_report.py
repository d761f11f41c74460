"""What doctor draws: the same content in every format, nothing hostile, no empty columns."""

from __future__ import annotations

import json
from dataclasses import replace

from spark_prof.analyzers.fallbacks.audit import audit_of_log
from spark_prof.analyzers.fallbacks.machine_checks import Library, Machine, Package
from spark_prof.analyzers.findings.audit_findings import findings_of_audit
from spark_prof.dashboards.doctor_report import Diagnosis, document_of, render_diagnosis
from spark_prof.dashboards.section import Layout
from spark_prof.traces.readers.log_lines import UnknownLine
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
        drawn = render_diagnosis(FOUND, Layout(kind, 160), whole=True)
        for words in ("Findings (82)", "W4A16 nvfp4", "50 x sm_120", "cuobjdump is not installed"):
            assert words in drawn, (kind, words)
    value = json.loads(render_diagnosis(FOUND, Layout("json")))
    assert len(value["audit"]["log"]) == 83
    assert len(value["findings"]) == 82
    assert value["machine"]["packages"][1] == {"name": "flashinfer-python", "version": ""}
    assert "23 more are in the JSON" in render_diagnosis(FOUND, Layout(), whole=True)
    for width in (80, 100, 160):
        screen = render_diagnosis(FOUND, Layout("text", width))
        assert len(screen.splitlines()) <= 70
        assert "findings: --all." in screen


def test_what_was_not_looked_at_has_no_section() -> None:
    titles = {section.id for section in document_of(Diagnosis("x", audit=AUDIT)).sections}
    assert "installed" not in titles
    assert "audit" in titles
    assert document_of(Diagnosis("x", machine=MACHINE)).verdict == "Nothing to change was found."
    assert document_of(Diagnosis("x")).verdict == ""


def test_the_verdict_is_the_first_sentence_of_every_format() -> None:
    says = "NVFP4 experts run W4A16 on Marlin although this GPU multiplies FP4"
    text = render_diagnosis(FOUND, Layout("text", 160)).splitlines()
    assert text[0] == f"{says}."
    assert render_diagnosis(FOUND, Layout("md")).splitlines()[0] == f"# {says}."
    assert f"<h1>{says}." in render_diagnosis(FOUND, Layout("html"))
    verdict = json.loads(render_diagnosis(FOUND, Layout("json")))["verdict"]
    assert (verdict["kind"], verdict["text"], verdict["also"]) == ("weight-only", f"{says}.", [])


def test_unknown_warnings_are_counted_and_listed() -> None:
    unknown = (UnknownLine("WARNING", "[x.py:1] <b>oh</b>\x1b[2J", 3, 6),
               UnknownLine("ERROR", "[y.py:1] no", 9, 1))  # fmt: skip
    found = Diagnosis("x", audit=replace(AUDIT, unknown=unknown, unknown_count=7))
    for kind in ("text", "md", "html"):
        drawn = render_diagnosis(found, Layout(kind, 160))
        assert "7 warnings of this log are not known to me" in drawn
        assert "\x1b" not in drawn
    assert "<b>oh" not in render_diagnosis(found, Layout("html"))
    audit = json.loads(render_diagnosis(found, Layout("json")))["audit"]
    assert audit["unknown_count"] == 7
    assert [one["count"] for one in audit["unknown"]] == [6, 1]
