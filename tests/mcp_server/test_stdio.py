"""The server as a process: handshake, tools, errors, cancelled calls, and a clean stdout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("mcp")

import anyio
from mcp import Client, MCPError

from spark_prof.cli import main as cli
from spark_prof.errors import CommandError
from spark_prof.extras import install_command
from spark_prof.mcp_server import stdio_session, tool_calls
from spark_prof.mcp_server.allowed_folders import AllowedFolders
from spark_prof.mcp_server.command_runs import CommandRuns
from spark_prof.mcp_server.stdio_session import build_server
from tests.mcp_server.client import DATA, ROOT, Asked, DeskClient, InProcess, connected, parameters

pytestmark = pytest.mark.anyio
READS = [
    "recordings", "summary", "findings", "kernels", "layers", "details", "query", "compare", "why",
]  # fmt: skip
STARTS = ["record", "ab", "tune", "speculate"]
AWQ = "code-h100/dense-awq"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def error_of(client: Client, tool: str, arguments: dict[str, Any]) -> str:
    result = await client.call_tool(tool, arguments)
    [content] = result.content
    assert result.is_error, content.text
    assert content.text.isprintable()
    assert len(content.text) <= 400
    return str(content.text)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "runs"), [("legacy", False), ("auto", True)])
async def test_the_handshake_and_the_tools_of_clients_of_both_ages(mode: str, runs: bool) -> None:
    server = parameters(DATA, *["--allow-run"] * runs)
    async with Client(server, mode=mode) as client:
        assert client.server_info.name == "spark-prof"
        assert "never an instruction" in client.instructions
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == READS + STARTS * runs
        assert [t.name for t in listed if not t.annotations.read_only_hint] == STARTS * runs
        assert all(len(tool.description) < 300 for tool in listed[: len(READS)])
        answer = await Asked(client)("recordings", limit=1)
        assert answer["data"]["rows"]


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("summary", {}, "'recording' is a required property"),
    ("summary", {"recording": 3}, "recording: 3 is not of type 'string'"),
    ("summary", {"recording": AWQ, "x\n": 1}, "were unexpected|was unexpected"),
    ("summary", {"recording": AWQ, "rank": 7}, "has no rank 7"),
    ("summary", {"recording": "../../README.md"}, "not in the folders"),
    ("summary", {"recording": "logs/dense-fp8-block.log"}, ""),
    ("kernels", {"recording": "architectures/starcoder2"}, "no single recording"),
    ("kernels", {"recording": AWQ, "limit": 10_000}, "maximum"),
    ("layers", {"recording": AWQ, "layer": 999}, "layer"),
    ("details", {"recording": AWQ, "part": "run.\x1b[31m"}, "no part"),
    ("query", {"recording": AWQ, "sql": "select nothing from kernels"}, "nothing"),
    ("query", {"recording": AWQ, "sql": "copy kernels to '/tmp/x'"}, "one SELECT"),
    ("query", {"recording": AWQ, "sql": "select * from '/etc/passwd'"}, "query failed"),
    ("query", {"recording": AWQ, "sql": "--help"}, "one SELECT"),
    ("compare", {"a": AWQ, "b": []}, "b"),
    ("compare", {"a": AWQ, "b": AWQ, "fail_on": ["--out=/tmp/x"]}, "--out=/tmp/x"),
    ("why", {"sources": ["models/gpt-oss-20b"], "gpu": "--out=x"}, "gpu|GPU"),
    ("record", {"command": ["true"], "out": "x"}, "no tool 'record'"),
    ("no\x1btool", {}, "no tool"),
]


@pytest.mark.slow
async def test_wrong_arguments_are_told_in_a_line_and_the_server_lives_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stdio_session, "CommandRuns", InProcess)

    async with Client(build_server(AllowedFolders.of([DATA]), allow_run=False)) as client:
        for tool, arguments, text in WRONG:
            said = await error_of(client, tool, arguments)
            assert any(word in said for word in text.split("|")), (tool, arguments, said)
        assert (await Asked(client)("summary", recording=AWQ))["data"]["run"]


async def test_pages_of_a_query_are_all_its_rows() -> None:
    ask, numbers, cursor = Asked(DeskClient()), [], 0
    sql = "SELECT range AS n FROM range(450) ORDER BY 1"
    while cursor is not None:
        answer = await ask("query", recording=AWQ, sql=sql, cursor=cursor, limit=200)
        numbers += [row["n"] for row in answer["data"]["rows"]]
        cursor = answer.get("next_cursor")
    assert numbers == list(range(450))


@pytest.mark.slow
async def test_a_call_that_the_client_gives_up_ends_its_process() -> None:
    """The endless query is gone, and the server answers the next call."""
    endless = "SELECT count(*) FROM range(10000000000000) a, range(1000) b"

    async with connected(DATA) as client:
        # Nobody waits for rows that are not shown.
        rows = "FROM range(1000000000000)"
        answer = await Asked(client)("query", recording=AWQ, sql=rows, limit=2)
        assert [row["range"] for row in answer["data"]["rows"]] == [0, 1]
        assert answer["next_cursor"] == 2
        [server] = [p for p in psutil.Process().children() if "mcp" in p.cmdline()]
        with pytest.raises(MCPError):
            await client.call_tool(
                "query", {"recording": AWQ, "sql": endless}, read_timeout_seconds=2
            )
        for _ in range(300):
            if not server.children(recursive=True):
                break
            await anyio.sleep(0.1)
        assert not server.children(recursive=True)
        assert (await Asked(client)("recordings"))["data"]["rows"]


async def test_a_command_that_takes_too_long_is_ended() -> None:
    words = ["query", "--", str(DATA / AWQ), "SELECT count(*) FROM range(10000000000000)"]
    with pytest.raises(CommandError, match="query was ended after 1 seconds"):
        await CommandRuns().run(words, 1)
    assert not [p for p in psutil.Process().children() if "query" in p.cmdline()]


@pytest.mark.slow
async def test_what_the_folder_holds_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module beside the recordings, of a name that spark-prof imports."""
    (tmp_path / "orjson.py").write_text("open('imported', 'w')")
    (tmp_path / "spark_prof").mkdir()
    (tmp_path / "spark_prof" / "__init__.py").write_text("open('imported', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    words = ["report", "--format=json", "--", str(DATA / AWQ)]
    assert (await CommandRuns().run(words, 60)).code == 0
    assert not (tmp_path / "imported").exists()


@pytest.mark.slow
def test_stdout_has_nothing_but_the_protocol(tmp_path: Path) -> None:
    """A library that prints when it is imported, and later."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, threading\n"
        "class Noisy:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name in ('mcp.server', 'mcp.server.stdio'):\n"
        "            self.say()\n"
        "            threading.Timer(1.0, self.say).start()\n"
        "    def say(self):\n"
        "        print('noise', flush=True)\n"
        "        os.write(1, b'raw noise\\n')\n"
        "sys.meta_path.insert(0, Noisy())\n"
    )
    served = parameters(DATA, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    asked = [
        {"id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "t", "version": "0"}}},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "recordings", "arguments": {}}},
        "no json",
        {"id": 3, "method": "no/such", "params": {}},
        {"id": 4, "method": "tools/call", "params": {
            "name": "summary", "arguments": {"recording": AWQ}}},
    ]  # fmt: skip
    lines = [x if isinstance(x, str) else json.dumps({"jsonrpc": "2.0", **x}) for x in asked]
    process = subprocess.Popen(
        [served.command, *served.args], env=os.environ | served.env, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    process.stdin.write("\n".join(lines) + "\n")
    process.stdin.flush()
    messages: list[dict[str, Any]] = []
    while not any(message.get("id") == 4 for message in messages):
        messages.append(json.loads(process.stdout.readline()))
    time.sleep(1.0)
    out, err = process.communicate(timeout=60)
    messages += map(json.loads, out.splitlines())
    assert all(message["jsonrpc"] == "2.0" for message in messages)
    assert {1, 2, 3, 4} <= {message.get("id") for message in messages}
    assert err.count("noise") == 8
    assert "serving" in err
    assert process.returncode == 0


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spark-prof that says what it was given, makes a recording, and waits where it is told."""
    package = tmp_path / "fake" / "spark_prof" / "cli"
    package.mkdir(parents=True)
    (package / "main.py").write_text(
        "import os, shutil, sys, time\n"
        "words = sys.argv[1:]\n"
        "out = next((w[6:] for w in words if w.startswith('--out=')), '')\n"
        "print('the server is up', file=sys.stderr, flush=True)\n"
        "if 'wait' in words: open(out + '.pid', 'w').write(str(os.getpid())); time.sleep(600)\n"
        "if 'fail' in words: sys.exit('spark-prof: no GPU')\n"
        f"shutil.copytree({str(DATA / AWQ)!r}, out)\n"
        "print(words)\n"
        "open(out + '/words', 'w').write(str(words))\n"
        "if 'late' in words: time.sleep(600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


RUNS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("record", {"steps": 9, "warmup_steps": 2}, ["--steps=9", "--warmup-steps=2"]),
    ("ab", {"b": "moe=spark_prof", "batch_sizes": "1,8"},
     ["--b=moe=spark_prof", "--batch-sizes=1,8"]),
    ("tune", {"minutes": 8, "allow_requantize": True, "allow_kv_dtype": False, "context": 9},
     ["--allow-requantize", "--context=9"]),
    ("speculate", {"minutes": 8, "drafts": "1,2", "acceptance": "0.8,0.6", "contexts": "1k"},
     ["--drafts=1,2", "--acceptance=0.8,0.6", "--contexts=1k"]),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "arguments", "words"), RUNS)
async def test_a_measurement_is_run_and_shown(
    tool: str, arguments: dict[str, Any], words: list[str], fake: Path
) -> None:
    told: list[str | None] = []

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        told.append(message)

    server = build_server(AllowedFolders.of([fake]), allow_run=True)
    async with Client(server) as client:
        given = {"command": ["vllm", "serve", "--x; rm"], "out": tool, **arguments}
        result = await client.call_tool(tool, given, progress_callback=on_progress)
        found = json.loads(result.content[0].text)
        printed = found["data"]["printed"]
        begins = [
            tool,
            f"--out={fake / tool}",
            *(["--minutes=8"] if "minutes" in arguments else []),
        ]
        command = [*begins, *words, "--", "vllm", "serve", "--x; rm"]
        assert printed == ([] if tool == "record" else [str(command)])
        assert (fake / tool / "words").read_text() == str(command)
        assert found["next"]["arguments"] == {"recording": tool}
        again = await error_of(client, tool, given)
        assert "name a new folder" in again
        failing = await error_of(client, tool, given | {"command": ["fail"], "out": "other"})
        assert failing == "no GPU"
        elsewhere = await error_of(client, tool, given | {"out": "../other"})
        assert "name a new folder" in elsewhere
    assert told[0] == "the server is up"


async def test_a_measurement_that_is_cancelled_is_ended(fake: Path) -> None:
    server = build_server(AllowedFolders.of([fake]), allow_run=True)
    async with Client(server, mode="legacy") as client:
        arguments = {"command": ["wait"], "out": "new"}
        pid = fake / "new.pid"
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "record", arguments)
            while not pid.exists() or not pid.read_text():
                await anyio.sleep(0.05)
            process = psutil.Process(int(pid.read_text()))
            said = await error_of(client, "record", {"command": ["true"], "out": "other"})
            assert said.startswith("a measurement is running")
            group.cancel_scope.cancel()
        for _ in range(200):
            if not process.is_running():
                break
            await anyio.sleep(0.1)
        assert not process.is_running()
        assert (await client.list_tools()).tools


async def test_a_measurement_whose_time_is_over_is_shown(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_calls, "_MINUTE", 0.03)

    async with Client(build_server(AllowedFolders.of([fake]), allow_run=True)) as client:
        given = {"command": ["late"], "out": "late", "minutes": 30}
        data = (await Asked(client)("record", **given))["data"]
        assert data["exit_code"] is None
        assert data["said"] == ["the server is up", "record was ended after 1 seconds"]


async def test_measurements_are_no_tools_without_leave(fake: Path) -> None:
    async with Client(build_server(AllowedFolders.of([fake]), allow_run=False)) as client:
        for tool in STARTS:
            said = await error_of(client, tool, {"command": ["true"], "out": "new", "b": "x=y"})
            assert said.startswith(f"no tool '{tool}'")
    assert not list(fake.iterdir())


async def test_a_fault_of_a_tool_is_told_without_its_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("the secret")

    monkeypatch.setitem(tool_calls.ANSWERS, "recordings", broken)  # type: ignore[arg-type]

    async with Client(build_server(AllowedFolders.of([tmp_path]), allow_run=False)) as client:
        said = await error_of(client, "recordings", {})
    assert said == "recordings failed with RuntimeError: a fault of spark-prof"
    assert "the secret" in capsys.readouterr().err


Command = Callable[..., tuple[int, str, str]]


def test_the_command_says_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["spark-prof", "mcp", str(tmp_path / "none")])
    assert cli.main() == 2
    assert "is no folder" in capsys.readouterr().err
    for missing in ("mcp", "mcp_types"):
        there = {name: True for name in ("mcp", "mcp_types") if name != missing}
        monkeypatch.setattr("importlib.util.find_spec", lambda name, there=there: there.get(name))
        monkeypatch.setattr(sys, "argv", ["spark-prof", "mcp", str(tmp_path)])
        assert cli.main() == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert install_command("mcp") in said.err


async def test_the_example_can_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio_session, "CommandRuns", InProcess)
    shutil.copy(ROOT / "spark_prof" / "example.zip", tmp_path)

    async with Client(build_server(AllowedFolders.of([tmp_path]), allow_run=False)) as client:
        ask = Asked(client)
        answer = await ask("recordings")
        for _ in range(6):  # following nothing but what each answer says
            answer = await ask.next(answer)
        assert ask.bytes < 7 * 8_000
