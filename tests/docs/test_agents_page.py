"""docs/agents.md: its configuration starts a server, its commands and tools are real."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

pytest.importorskip("mcp")

from mcp import Client

from spark_prof.mcp_server.bounded_answer import MOST_BYTES
from spark_prof.mcp_server.stdio_session import TOOLS
from tests.command_line import ran
from tests.docs.pages import ROOT, commands
from tests.mcp_server.client import Asked, parameters

PAGE = ROOT / "docs" / "agents.md"
TEXT = PAGE.read_text(encoding="utf-8")
MOST_WORDS = 450


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recordings that the page names."""
    monkeypatch.chdir(tmp_path)
    for name in ("my-run", "before", "after", "my-runs/first"):
        shutil.copytree(ROOT / "tests" / "data" / "code-h100" / "dense-awq", tmp_path / name)
    return tmp_path


def test_its_commands_write_json(runs: Path) -> None:
    asked = list(commands(PAGE))
    assert [words[0] for words in asked] == ["report", "compare", "query"]
    for words in asked:
        code, out, _ = ran(*words)
        assert code == 0
        assert json.loads(out)


@pytest.mark.slow
def test_its_configurations_start_a_server(runs: Path) -> None:
    [block] = re.findall(r"^```json\n(.*?)^```$", TEXT, re.M | re.S)
    [configured] = json.loads(block)["mcpServers"].values()
    [added] = [line for line in TEXT.splitlines() if line.startswith("claude mcp add ")]
    command, _, started = added.partition(" -- ")
    assert command == "claude mcp add spark-prof"
    # An agent starts it in a folder of its own choice: the paths are absolute.
    assert shlex.split(started.replace("$PWD", "/home/me")) == [
        configured["command"],
        *configured["args"],
    ]
    name, *words = (word.removeprefix("/home/me/") for word in configured["args"])
    assert (configured["command"], name) == ("spark-prof", "mcp")

    async def talk() -> None:
        async with Client(parameters(*words).model_copy(update={"cwd": runs})) as client:
            answer = await Asked(client)("recordings")
            assert [row["recording"] for row in answer["data"]["rows"]] == ["first"]

    asyncio.run(talk())


def test_it_is_short_and_names_every_tool() -> None:
    assert len(TEXT.split()) <= MOST_WORDS
    named = set(re.findall(r"`([a-z]+)`", TEXT))
    assert {row.name for row in TOOLS} <= named
    assert f"less than {MOST_BYTES // 1000} kB" in TEXT
