"""Drafts on a real vLLM engine: what is recorded is what the engine's own metrics count."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_prof import load
from tests.engine.conftest import ROOT, SPARK_PROF
from tests.engine.drafting_engine import COUNTERS

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3,
         "prompt_lookup_min": 1}  # fmt: skip


@pytest.mark.parametrize(
    ("drafts", "options"),
    [
        (NGRAM, ()),
        ({"method": "draft_model", "num_speculative_tokens": 4}, ("--keep", "2,4,3", "--async")),
    ],
    ids=["ngram", "its own model, asynchronous"],
)
def test_drafts_are_those_of_the_engines_metrics(
    models: dict[str, Path],
    environment: dict[str, str],
    tmp_path: Path,
    drafts: dict[str, Any],
    options: tuple[str, ...],
) -> None:
    model = str(models["tiny-dense"])
    config = drafts if drafts["method"] == "ngram" else drafts | {"model": model}
    argv = [
        *SPARK_PROF, "record", "-o", str(tmp_path / "b"), "--steps", "0", "--", sys.executable,
        "-m", "tests.engine.drafting_engine", model, json.dumps(config), *options,
    ]  # fmt: skip
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    [line] = [text for text in done.stdout.splitlines() if text.startswith("DRAFTED ")]
    told = json.loads(line.removeprefix("DRAFTED "))
    rows = load(tmp_path / "b").frame("drafts", 0)
    known = rows[rows["accepted"] >= 0]
    most = drafts["num_speculative_tokens"]
    assert told["num_drafts"] > 20
    assert dict(zip(COUNTERS, (
        len(known), int(known["proposed"].sum()), int(known["accepted"].sum()),
        [int((known["accepted"] > at).sum()) for at in range(most)],
    ), strict=True)) == told  # fmt: skip
    assert known["request"].nunique() == 6
    assert known["accepted"].nunique() > 1
