"""docs/schema: written from the types, and every command's real output is as it says."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from spark_prof.dashboards.kernel_races import render_bench
from spark_prof.dashboards.render import RENDERERS, Layout
from spark_prof.dashboards.replacement_kernels import KernelCheckRun, render_checks
from spark_prof.dashboards.speculate_report import render_speculate
from spark_prof.dashboards.tune_report import render_candidates, render_tune
from spark_prof.kernels.bench.shapes import Recorded
from spark_prof.kernels.check.verdict import CheckVerdict
from spark_prof.tune.candidates import Candidate, CandidateTable
from tests.checkpoints import MODELS
from tests.command_line import ran
from tests.dashboards.sample import SAMPLES
from tests.dashboards.test_kernels_reports import cell, report
from tests.docs.pages import ROOT
from tests.docs.schemas import DOCUMENTS, FOLDER, undescribed, written
from tests.rows import each_row
from tests.speculate.sample import DRAFTED, UNKNOWN
from tests.speculate.sample import STOPPED as DRAFTS_STOPPED
from tests.tune.sample import NOTHING, STOPPED, TUNED

_DATA = ROOT / "tests" / "data"
_GRAPHS = str(_DATA / "h100-qwen3-30b-a3b-nvfp4-graphs")
_KINETO = str(_DATA / "kineto" / "gpt-oss-eager.json.gz")
_SQL = "select name, count(*) n, min(start_ns) first from kernels group by 1 order by 1"
RECORDINGS: list[tuple[str, list[str]]] = [
    *(("report", ["report", str(path.parent)]) for path in sorted(_DATA.glob("*/meta.json"))),
    *(("report", ["report", str(_DATA / name)])
      for name in ("kineto/qwen3-graphs", "code-h100/dense-fp8-block", "compare-h100/gpt-duty",
                   "architectures/mamba2/default", "ncu-h100/nvfp4.csv", "proton/tree.hatchet")),
    *(("clients", ["report", str(path)]) for path in sorted((_DATA / "benchmarks").glob("*.json"))),
    ("ab", ["report", str(_DATA / "ab-h100" / "result.json")]),
    ("compare", ["compare", _KINETO, str(_DATA / "kineto" / "gpt-oss-graphs"),
                 "--fail-on", "decode_us.median > 900%"]),
    ("doctor", ["doctor", _GRAPHS]),
    ("doctor", ["doctor"]),
    ("dataset", ["report", str(_DATA / "architectures" / "starcoder2")]),
    ("classify", ["classify", str(_DATA / "code-h100" / "dense-nvfp4")]),
]  # fmt: skip
"""More recordings, which a quick run of the tests leaves out."""
COMMANDS: list[tuple[str, list[str]]] = [
    ("report", ["report", str(_DATA / "h100-gpt-oss-20b-mxfp4-eager")]),
    ("clients", ["report", str(_DATA / "benchmarks" / "guidellm.json")]),
    ("ab", ["report", str(_DATA / "ab-cpu" / "result.json")]),
    ("report-layer", ["report", _GRAPHS, "--layer", "3"]),
    ("compare", ["compare", *(str(_DATA / "code-h100" / n) for n in ("dense-awq", "dense-nvfp4"))]),
    ("doctor", ["doctor", "--model", str(MODELS / "gpt-oss-120b")]),
    ("doctor", ["doctor", "--log", str(_DATA / "logs" / "gpt-oss-20b-mxfp4.log")]),
    ("why", ["why", str(_DATA / "models" / "qwen3-30b-a3b-nvfp4"), _GRAPHS]),
    ("classify", ["classify", _GRAPHS]),
    ("classify", ["classify", "--name", "nvjet_hsh_64x8"]),
    ("query", ["query", _GRAPHS, _SQL]),
    ("kernels", ["kernels", "list"]),
    ("kernels-work", ["kernels", "bench", "--list"]),
    ("kernels-work", ["kernels", "bench", "--list", "--from", _GRAPHS]),
    ("ab-apply", ["ab", "--apply", "--b", "moe=spark_prof"]),
    ("written", ["import", _KINETO, "-o", "bundle"]),
    ("written", ["import", str(_DATA / "proton"), "-o", "each", "--each"]),
    ("written", ["report", _GRAPHS, "--share", "shared.zip"]),
    ("written", ["salvage", "COPY"]),
]  # fmt: skip
"""Real command lines, and which document each prints."""


@cache
def validator(name: str) -> Draft202012Validator:
    """Of a document, which also refuses keys that its schema does not have."""
    schema = json.loads((FOLDER / f"{name}.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(closed(copy.deepcopy(schema)))


def closed(schema: Any) -> Any:
    """The schema, where every object has its keys and no others."""
    if isinstance(schema, dict):
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for inner in [*schema.values()]:
            closed(inner)
    for inner in schema if isinstance(schema, list) else ():
        closed(inner)
    return schema


def faults(name: str, document: Any) -> list[str]:
    """Where a document is not as its schema says, at most a few."""
    found: list[str] = []
    for fault in validator(name).iter_errors(document):
        deepest = [fault, *fault.context]
        found += [f"{each.json_path}: {each.message[:200]}" for each in deepest]
        if len(found) > 5:
            break
    return found


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def run(words: list[str]) -> Any:
        code, out, _ = ran(*words, "--format", "json")
        assert code == 0, words
        return json.loads(out)

    monkeypatch.chdir(tmp_path)
    return run


@each_row("name", DOCUMENTS)
def test_the_files_are_what_the_types_say(name: str) -> None:
    """python -m tests.docs.pages writes them."""
    assert (FOLDER / f"{name}.schema.json").read_text() == written(name)


def test_every_schema_is_of_a_document_and_describes_every_key() -> None:
    files = {path.name.removesuffix(".schema.json"): path for path in FOLDER.iterdir()}
    assert files.keys() == DOCUMENTS.keys()
    for name, path in files.items():
        assert list(undescribed(json.loads(path.read_text()))) == [], name
    assert {name for name, _ in COMMANDS + RECORDINGS} | {
        "kernels-check",
        "kernels-bench",
        "explore",
        "tune",
        "tune-list",
        "speculate",
    } == {*DOCUMENTS}


@pytest.mark.slow
@each_row("name, words", COMMANDS)
def test_what_a_command_prints(name: str, words: list[str], printed: Any, tmp_path: Path) -> None:
    if "COPY" in words:
        shutil.copytree(_GRAPHS, tmp_path / "COPY", dirs_exist_ok=True)
        words = [str(tmp_path / word) if word == "COPY" else word for word in words]
    if "-o" in words or "--share" in words:
        words = [str(tmp_path / w) if w in ("bundle", "each", "shared.zip") else w for w in words]
    assert faults(name, printed(words)) == []


@pytest.mark.slow
@each_row("name, words", RECORDINGS)
def test_what_is_printed_of_every_kind_of_source(name: str, words: list[str], printed: Any) -> None:
    assert faults(name, printed(words)) == []


BOUNDED = {row[0]: row for row in COMMANDS if row[0] not in ("written", "ab-apply")}


@pytest.mark.slow
@each_row("name, words", BOUNDED.values())
def test_bounds(name: str, words: list[str], printed: Any) -> None:
    whole, few = printed(words), printed([*words, "--limit", "1"])
    assert faults(name, few) == []
    if isinstance(whole, list):
        assert few == {"rows": whole[:1], "left_out": len(whole) - 1}
        return
    assert longest(few) <= 1
    left_out = few.pop("left_out")
    assert few.keys() == whole.keys()
    for key, value in whole.items():
        if isinstance(value, list) and value and not isinstance(value[0], int | float):
            assert few[key] == [cut(value[0])], key
            assert left_out.get(key, 0) == max(len(value) - 1, 0), key
    if name not in ("report", "compare"):
        return  # --section is the same code for all
    part = next(key for key, value in whole.items() if isinstance(value, list | dict))
    only = printed([*words, "--section", part])
    assert faults(name, only) == []
    assert only[part] == whole[part]
    assert only["left_out"] == {}
    rest = only.keys() - {part, "left_out"}
    assert not any(only[key] is None or isinstance(only[key], dict | list) for key in rest)


def longest(value: Any) -> int:
    """Rows of the longest list of a document but those of numbers."""
    if isinstance(value, list):
        numbers = bool(value) and isinstance(value[0], int | float)
        return 0 if numbers else max([len(value), *map(longest, value)])
    return max([0, *map(longest, value.values())]) if isinstance(value, dict) else 0


def cut(value: Any) -> Any:
    """The value with the first row of each list."""
    if isinstance(value, dict):
        return {key: cut(each) for key, each in value.items()}
    if isinstance(value, list):
        keep = value if value and isinstance(value[0], int | float) else value[:1]
        return [cut(each) for each in keep]
    return value


@each_row("name", SAMPLES)
def test_reports_of_samples(name: str) -> None:
    assert faults("report", json.loads(RENDERERS["json"](SAMPLES[name]))) == []


def test_what_needs_a_gpu() -> None:
    verdict = CheckVerdict("w4a16", "a case", "cpu", "passed", 0.5)
    checked = KernelCheckRun((), "the CPU", "cpu", (verdict,))
    assert faults("kernels-check", json.loads(render_checks(checked, Layout("json")))) == []
    recorded = Recorded(("a kernel",), 12.5, 96, False)
    benched = report(cell(1, 5.0, 10.0, recorded=recorded), cell(4, None, 9.0))
    assert faults("kernels-bench", json.loads(render_bench(benched, Layout("json")))) == []
    assert faults("explore", {"schema": 1, "address": "http://127.0.0.1:8501/?token=x"}) == []


def test_what_needs_engines() -> None:
    for result in (TUNED, NOTHING, STOPPED):
        assert faults("tune", json.loads(render_tune(result, Layout("json")))) == []
    for drafted in (DRAFTED, UNKNOWN, DRAFTS_STOPPED):
        assert faults("speculate", json.loads(render_speculate(drafted, Layout("json")))) == []
    candidate = Candidate("moe=spark_prof", "kernels", "always", "small-kernels", 1.5)
    table = CandidateTable((candidate,), TUNED.left_out)
    listed = json.loads(render_candidates(table, Layout("json")))
    assert listed["candidates"]
    assert faults("tune-list", listed) == []


def wrong() -> Iterator[tuple[str, Any]]:
    sample = json.loads(RENDERERS["json"](next(iter(SAMPLES.values()))))
    yield "report", sample | {"unheard": 1}
    yield "report", sample | {"findings": [{**sample["findings"][0], "id": 5}]}
    yield "report", {key: value for key, value in sample.items() if key != "findings"}
    yield "kernels", [{"name": "x"}]
    yield "written", {"path": "x"}


def test_what_is_not_so_is_noticed() -> None:
    for name, document in wrong():
        assert faults(name, document), (name, document.keys())
