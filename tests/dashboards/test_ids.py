"""A kernel and a finding are called the same in every document, format and run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from spark_prof.analyzers.classify.classifier import kernel_id
from tests.command_line import ran
from tests.read_once import forget
from tests.rows import each_row

DATA = Path(__file__).parents[1] / "data"
GRAPHS = str(DATA / "h100-gpt-oss-20b-mxfp4-graphs")
EAGER = str(DATA / "h100-gpt-oss-20b-mxfp4-eager")
QWEN = str(DATA / "code-h100" / "qwen3-30b-a3b-nvfp4")


@pytest.fixture
def printed() -> Any:
    def run(*words: str) -> str:
        code, out, _ = ran(*words)
        assert code == 0
        return out

    return run


def rows(value: Any) -> list[dict[str, Any]]:
    """Every row of a document that has a kernel's id."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    here = [value] if isinstance(value, dict) and "kernel_id" in value else []
    return [*here, *(row for each in inner for row in rows(each))]


def test_kernels(printed: Any) -> None:
    report = json.loads(printed("report", GRAPHS, "--format", "json"))
    layer = json.loads(printed("report", GRAPHS, "--layer", "3", "--format", "json"))
    compared = json.loads(printed("compare", EAGER, GRAPHS, "--format", "json"))
    classified = json.loads(printed("classify", GRAPHS, "--format", "json"))
    sql = "select distinct name, kernel_id(name) kernel_id from kernels where kind = 'kernel'"
    asked = json.loads(printed("query", GRAPHS, sql, "--format", "json"))
    ids: dict[str, str] = {}
    for document in (report, layer, compared, classified, asked):
        found = rows(document)
        assert found
        for row in found:
            assert ids.setdefault(row["name"], row["kernel_id"]) == row["kernel_id"]
    assert len(set(ids.values())) == len(ids) > 30
    in_report = [(row["component"], row["kernel_id"]) for row in report["kernels"]]
    assert len(set(in_report)) == len(in_report)
    assert {row["kernel_id"] for row in report["kernels"]} <= {row["kernel_id"] for row in asked}
    page = printed("report", GRAPHS, "--section", "kernels", "--format", "md")
    shown = re.findall(r"\b[0-9a-f]{10}\b", page)
    assert shown
    assert {*shown} <= {row["kernel_id"] for row in report["kernels"]}


@pytest.mark.slow
@each_row("source", [QWEN, GRAPHS])
def test_findings(source: str, printed: Any) -> None:
    first = json.loads(printed("report", source, "--format", "json"))
    forget()
    again = json.loads(printed("report", source, "--format", "json"))
    keys = [each["key"] for each in first["findings"]]
    assert keys == [each["key"] for each in again["findings"]]
    assert len(set(keys)) == len(keys) > 0
    doctor = json.loads(printed("doctor", source, "--format", "json"))
    assert [each["key"] for each in doctor["findings"]] == keys
    compared = json.loads(printed("compare", source, source, "--format", "json"))
    assert compared["reference"]["finding_keys"] == keys
    for kind in ("text", "md", "html"):
        page = printed("report", source, "--all", "--format", kind)
        told = re.findall(r"(?m)\b\d\. ([a-z0-9-]+(?::[\w.-]+)?): (?:at most|gain unknown)", page)
        assert list(dict.fromkeys(told)) == keys, kind


def test_a_name_that_is_no_text_has_an_id() -> None:
    assert kernel_id("\ud800") != kernel_id("\ud801")
