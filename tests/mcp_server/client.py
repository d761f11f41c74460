"""The SDK's own client, beside what its calls cost."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mcp import Client, StdioServerParameters

from spark_prof.errors import CommandError
from spark_prof.mcp_server.allowed_folders import AllowedFolders
from spark_prof.mcp_server.bounded_answer import answer_text
from spark_prof.mcp_server.command_runs import CommandRuns, Ended
from spark_prof.mcp_server.tool_calls import ANSWERS, Desk
from tests.command_line import ran

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"


def parameters(*words: object, **environment: str) -> StdioServerParameters:
    """The server as a process of its own, with its stdin and stdout."""
    command = ["-P", "-m", "spark_prof.cli.main", "mcp", *map(str, words)]
    own = {"PYTHONPATH": str(ROOT)} | environment
    return StdioServerParameters(command=sys.executable, args=command, env=own)


@asynccontextmanager
async def connected(*words: object) -> AsyncIterator[Client]:
    async with Client(parameters(*words)) as client:
        yield client


@dataclass
class Asked:
    """Calls of one client, with the bytes of their answers."""

    client: Client | DeskClient
    calls: int = 0
    bytes: int = 0

    async def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.client.call_tool(tool, arguments)
        [content] = result.content
        self.calls += 1
        self.bytes += len(content.text.encode())
        assert not result.is_error, content.text
        found: dict[str, Any] = json.loads(content.text)
        return found

    async def next(self, answer: dict[str, Any]) -> dict[str, Any]:
        """What the answer itself says to call next."""
        return await self(answer["next"]["tool"], **answer["next"]["arguments"])


class InProcess(CommandRuns):
    """Runs the commands here: a process each would take the sweep of all recordings minutes."""

    def __init__(self) -> None: ...

    async def run(self, words: Sequence[str], *_: Any, codes: Any = (0,), **__: Any) -> Ended:
        code, out, err = ran(*words)
        if code not in codes:
            raise CommandError(err.splitlines()[-1].removeprefix("spark-prof: "))
        return Ended(code, bytearray(out.encode()), err.splitlines())


class DeskClient:
    """Calls the tools in this process, as the server does; test_stdio.py has what lies between."""

    def __init__(self) -> None:
        self._desk = Desk(AllowedFolders((DATA,)), InProcess())

    async def call_tool(self, tool: str, arguments: dict[str, Any]) -> Any:
        text = answer_text(await ANSWERS[tool](self._desk, arguments))
        return SimpleNamespace(content=[SimpleNamespace(text=text)], is_error=False)
