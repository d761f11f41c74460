"""Known issues in what people read: doctor, reports, the table, and what agents are told."""

from __future__ import annotations

import json
import re
from pathlib import Path

from spark_prof.analyzers.model import Report
from spark_prof.dashboards.outline import outline
from spark_prof.dashboards.render import Layout, draw
from spark_prof.dashboards.render.json_report import record_of
from spark_prof.dashboards.short_report import short_report
from spark_prof.mcp_server.report_views import issues, summary
from spark_prof.rules.known_issues import ISSUES
from tests.analyzers.fallbacks.issue_runs import LOGS
from tests.analyzers.fallbacks.runs import CUTLASS, facts, module, report
from tests.command_line import ran

NATIVE = "FlashInferCutlassNvFp4LinearKernel"
TEXT = Layout("text")


def reported(tmp_path: Path, capability: str = "10.0") -> Report:
    given = facts({"name": "NVIDIA B200", "compute_capability": capability}, vllm="0.24.0")
    return report(tmp_path, module(NATIVE), CUTLASS, given)


def plain(text: str) -> str:
    return " ".join(text.split())


def doctor(tmp_path: Path, name: str, *more: str) -> str:
    path = tmp_path / "vllm.log"
    path.write_text("\n".join(LOGS[name].lines()), encoding="utf-8")
    code, out, err = ran("doctor", "--log", str(path), *more)
    assert code == 0, err
    return out


def test_doctor_tells_it_of_a_log(tmp_path: Path) -> None:
    name = "weight-only-before-fp4"
    text = plain(doctor(tmp_path, name, "--gpu", "gb10"))
    assert "You are in the window of vllm-project/vllm#55397 (2026-09-04; vLLM 0.28.0 to" in text
    assert "Expect, as reported there: prompts were 31 % slower" in text
    assert "Try: VLLM_DISABLED_KERNELS=FlashInferCuteDslNvFp4W4A16LinearKernel" in text
    assert "spark-prof ab --b VLLM_DISABLED_KERNELS=" in text
    found = json.loads(doctor(tmp_path, name, "--gpu", "gb10", "--format", "json"))
    (row,) = found["known_issues"]
    assert (row["id"], row["kind"], row["fixed"]) == (name, "speed", "0.29.0")
    assert row["command"].endswith(" -- /models/served")


def test_doctor_is_silent_where_it_cannot_be_told(tmp_path: Path) -> None:
    name = "weight-only-before-fp4"
    assert json.loads(doctor(tmp_path, name, "--format", "json"))["known_issues"] == []
    assert "in the window of" not in doctor(tmp_path, name, "--gpu", "h100")


def test_a_report_has_it_below_what_was_measured(tmp_path: Path) -> None:
    found = reported(tmp_path)
    record = record_of(found)
    assert [row.id for row in record["known_issues"]] == ["nvfp4-scales-not-zeroed"]
    assert not any("45741" in finding.text for finding in found.findings)
    ids = [section.id for section in outline(found).sections]
    assert ids.index("known-issues") > ids.index("kernels"), ids
    short = plain(draw(lambda: short_report(found), dict, TEXT))
    assert "In the window of vllm-project/vllm#45741" in short
    assert "--section known-issues" in short


def test_a_report_without_any_has_no_section(tmp_path: Path) -> None:
    found = reported(tmp_path, "12.1")
    assert record_of(found)["known_issues"] == ()
    for made in (short_report(found), outline(found)):
        assert "Known issues" not in draw(lambda made=made: made, dict, TEXT)


def test_the_table() -> None:
    code, out, _ = ran("doctor", "--known-issues")
    assert code == 0
    for issue in ISSUES:
        assert issue.reported[0].thread in out
        assert issue.reported[0].url in out
    rows = json.loads(ran("doctor", "--known-issues", "--format", "json")[1])["known_issues"]
    assert [row["id"] for row in rows] == [issue.id for issue in ISSUES]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", row["as_of"]) for row in rows)


def test_what_agents_are_told(tmp_path: Path) -> None:
    layout = Layout("json")
    found = reported(tmp_path)
    record = json.loads(draw(lambda: short_report(found), lambda: record_of(found), layout))
    (told,) = issues(record)["known_issues"]
    assert told.startswith("You are in the window of vllm-project/vllm#45741: activations")
    assert "Expect, as reported there: 17.6 tokens/s" in told
    assert told.endswith("Try: update vLLM to 0.25.")
    assert summary(record)["known_issues"] == [told]
    record["known_issues"][0]["command"] = "spark-prof ab --b stock -- m"
    (told,) = issues(record)["known_issues"]
    assert told.endswith("Prove it here: spark-prof ab --b stock -- m")
    record["known_issues"] *= 9
    assert issues(record)["known_issues"][-1] == "and 6 more: part known_issues"
    record["known_issues"] = []
    assert issues(record) == {}
    assert "known_issues" not in summary(record)
