"""docs/schema: every key of each JSON document is described there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_prof.cli import main as cli
from spark_prof.dashboards.render import RENDERERS
from tests.checkpoints import MODELS
from tests.dashboards.sample import SAMPLES
from tests.docs.pages import DOCS, ROOT
from tests.rows import each_row

_DATA = ROOT / "tests" / "data"
_PAIR = [str(_DATA / "code-h100" / name) for name in ("dense-awq", "dense-nvfp4")]
COMMANDS = {
    "ab": ["report", str(_DATA / "ab-cpu" / "result.json")],
    "compare": ["compare", *_PAIR],
    "dataset": ["report", str(_DATA / "architectures" / "starcoder2")],
    "doctor": ["doctor", "--model", str(MODELS / "gpt-oss-120b")],
    "kernels": ["kernels", "list"],
}


def unknown(value: Any, schema: dict[str, Any], path: str = "") -> set[str]:
    """The keys that the schema does not have; below a key without any, all are allowed."""
    if isinstance(value, list):
        inner = schema.get("items", schema)
        return {key for item in value for key in unknown(item, inner, path)}
    known = schema.get("properties")
    if not isinstance(value, dict) or known is None:
        return set()
    found = {f"{path}.{key}" for key in value if key not in known}
    for name in value.keys() & known.keys():
        found |= unknown(value[name], known[name], f"{path}.{name}")
    return found


def schema_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "schema" / f"{name}.schema.json").read_text())
    return found


@each_row("name", SAMPLES)
def test_every_key_of_a_report_is_described(name: str) -> None:
    assert unknown(json.loads(RENDERERS["json"](SAMPLES[name])), schema_of("report")) == set()


@each_row("name", COMMANDS)
def test_every_key_of_a_command_is_described(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    words = ["spark-prof", *COMMANDS[name], "--format", "json", "-o", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    assert cli.main() == 0
    document = json.loads(out.read_text())
    assert document
    assert unknown(document, schema_of(name)) == set()


def test_a_key_that_nobody_described_is_found() -> None:
    schema = {"properties": {"rows": {"items": {"properties": {"us": {}}}}}}
    assert unknown({"rows": [{"us": 1, "ms": 2}], "new": {}}, schema) == {".rows.ms", ".new"}
