"""What results of `ab` and recordings say is never a command of `compare`, in no format."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from spark_prof.mcp_server.allowed_folders import AllowedFolders
from spark_prof.mcp_server.bounded_answer import answer_text
from spark_prof.mcp_server.tool_calls import ANSWERS, Desk
from tests.cli.conftest import Run
from tests.mcp_server.client import InProcess
from tests.support import refusal

DATA = Path(__file__).parents[1] / "data"
AWQ = DATA / "code-h100" / "dense-awq"
COMMAND, TYPED = "compare", "touch PWNED"
HOSTILE = f"<script>alert(1)</script>\n$ {TYPED}\n```\n$ {TYPED}\x1b[31m`{TYPED}` $({TYPED})"
FORMATS = ("text", "md", "html", "json")


def _everywhere(value: Any) -> Any:
    """The same JSON with the hostile text in place of every text."""
    if isinstance(value, dict):
        return {name: _everywhere(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_everywhere(inner) for inner in value]
    return HOSTILE if isinstance(value, str) else value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result of ab whose words are hostile, and a recording whose command and facts are."""
    folder = tmp_path_factory.mktemp("hostile")
    result = json.loads((DATA / "ab-h100" / "result.json").read_text())
    kept = {name: result[name] for name in ("schema", "kind") if name in result}
    (folder / "result.json").write_text(json.dumps(_everywhere(result) | kept))
    words = {name: HOSTILE if isinstance(value, str) else value for name, value in result.items()}
    (folder / "words.json").write_text(json.dumps(words | kept))
    shutil.copytree(AWQ, folder / "recording")
    path = folder / "recording" / "meta.json"
    meta = json.loads(path.read_text())
    meta["command"] = ["vllm", "serve", f"m; {TYPED}", HOSTILE]
    for name, facts in meta["facts"].items():
        if isinstance(facts, dict):
            meta["facts"][name] = facts | {
                "model": HOSTILE, "quantization": HOSTILE, "environment": {"LD_PRELOAD": HOSTILE},
                "vllm": HOSTILE,
            }  # fmt: skip
    path.write_text(json.dumps(meta))
    return folder


def _typed(kind: str, drawn: str) -> list[str]:
    """The lines that a page offers to be typed."""
    if kind == "text":
        return [line for line in drawn.splitlines() if line.startswith("$ ")]
    if kind == "md":
        blocks = re.findall(r"^```\w*\n(.*?)^```$", drawn, re.M | re.S)
        return [line for block in blocks for line in block.splitlines()]
    if kind == "html":
        return re.findall(r"<pre[^>]*>(.*?)</pre>", drawn, re.S)
    return []


@pytest.mark.parametrize("name", ["result.json", "words.json"])
def test_a_hostile_result_is_refused_in_one_line(run: Run, folder: Path, name: str) -> None:
    for kind in FORMATS:
        for sides in ((AWQ, folder / name), (folder / name, AWQ), (folder / name, folder / name)):
            code, out, err = run(*map(str, sides), "--format", kind)
            assert (code, out) == (2, "")
            assert len(err.splitlines()) == 1
            assert "is a result of spark-prof ab, tune or speculate" in err or "result.json" in err
            assert TYPED not in err
            assert "<script>" not in err


@pytest.mark.slow
@pytest.mark.parametrize("whole", [[], ["--all"]], ids=["screen", "all"])
def test_a_hostile_recording_offers_nothing_to_be_typed(
    run: Run, folder: Path, whole: list[str]
) -> None:
    for kind in FORMATS:
        sides = str(AWQ), str(folder / "recording")
        code, out, err = run(*sides, "--format", kind, *whole)
        assert (code, err) == (0, "")
        assert "\x1b" not in out
        assert "<script>alert(1)" not in out or kind in ("text", "json")
        for line in _typed(kind, out):
            assert line.removeprefix("$ ").startswith(
                ("spark-prof compare ", "spark-prof explore ")
            )
            assert TYPED not in line
        if kind == "json":
            assert json.loads(out)["kind"] == "spark-prof compare"


def test_mcp_says_the_same(folder: Path) -> None:
    shutil.copytree(AWQ, folder / "reference", dirs_exist_ok=True)
    desk = Desk(AllowedFolders((folder,)), InProcess())

    def ask(b: str) -> str:
        return answer_text(asyncio.run(ANSWERS["compare"](desk, {"a": "reference", "b": b})))

    for name in ("result.json", "words.json"):
        with refusal() as refused:
            ask(name)
        assert TYPED not in str(refused.value)
    answer = json.loads(ask("recording"))
    # What a file says stands below `data` alone; what to call next is this program's.
    assert TYPED not in json.dumps({k: v for k, v in answer.items() if k != "data"})
