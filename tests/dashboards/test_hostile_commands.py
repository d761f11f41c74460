"""What a file says is printed as a command in no format, unless a table lets it through."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest

import spark_prof
from spark_prof.ab.result import read_result
from spark_prof.analyzers.finding import Finding, TypedCommand
from spark_prof.analyzers.findings.next_command import with_next_command
from spark_prof.analyzers.findings.ranking import findings_of
from spark_prof.analyzers.model import Report
from spark_prof.cli.main import main
from spark_prof.dashboards.ab_report import render_ab
from spark_prof.dashboards.render import Layout, draw, render_report
from spark_prof.dashboards.section import RECORDED_AS, DocumentBounds, document
from spark_prof.dashboards.short_report import changes
from spark_prof.dashboards.tune_report import render_tune
from spark_prof.mcp_server.allowed_folders import AllowedFolders
from spark_prof.mcp_server.bounded_answer import ToolAnswer, ToolCall, answer_text
from spark_prof.mcp_server.tool_calls import ANSWERS, Desk
from spark_prof.tune.tune_result import TuneResult
from tests.analyzers.fallbacks.issue_runs import LOGS
from tests.command_line import ran
from tests.dashboards import hostile
from tests.dashboards.hostile import MARK
from tests.explorer.framed import framed
from tests.mcp_server.client import InProcess
from tests.rows import each_row

ROOT = Path(__file__).parents[2]
EAGER = ROOT / "tests/data/h100-gpt-oss-20b-mxfp4-eager"
TUNED = ROOT / "benchmarks/results/tune-gpt-oss-20b-h200.json"
ASKED = ("eager-mode", "compiled-in-flight", "read-more-than-needed", "idle-gpu",
         "copies-in-decode", "slow-steps")  # fmt: skip
COMMANDS = list(hostile.commands())
FINDINGS = Layout("json", bounds=DocumentBounds(sections=("findings",)))
SPLIT = {"text": r"^\$ (.*)$", "md": r"^    (.*)$"}
HTML = re.compile(r'<pre class="command"[^>]*><code>(.*?)</code>', re.S)


@pytest.fixture(scope="module")
def eager() -> Report:
    return spark_prof.report(EAGER)


def planted(report: Report, command: list[str], model: str = "x") -> Report:
    """The report of a recording that says it was started so, with a finding of each action."""
    run = replace(report.run, command=shlex.join(command), model_name=model)
    told = replace(report, run=run, findings=())
    asked = [with_next_command(Finding(id_, 0.1, "text", "fix"), told, "steps") for id_ in ASKED]
    return replace(told, findings=(*findings_of(told), *asked))


def typed(drawn: str, kind: str) -> list[str]:
    """The commands of a text, a Markdown or an HTML document."""
    if kind == "html":
        return [unescape(found) for found in HTML.findall(drawn)]
    return re.findall(SPLIT[kind], drawn, re.M)


def in_json(value: Any, keys: tuple[str, ...]) -> Iterator[str]:
    """What stands under keys of commands, however deep."""
    if isinstance(value, list):
        for entry in value:
            yield from in_json(entry, keys)
    elif isinstance(value, dict):
        for key, entry in value.items():
            if key in keys:
                yield entry if isinstance(entry, str) else json.dumps(entry)
            else:
                yield from in_json(entry, keys)


def test_there_are_enough() -> None:
    assert len(COMMANDS) >= 100
    assert all(MARK in "".join(words) for words in COMMANDS)


@pytest.mark.slow
def test_no_hostile_recording_is_printed_as_a_command(eager: Report) -> None:
    shown = 0
    for number, words in enumerate(COMMANDS):
        report = planted(eager, words)
        for kind in ("text", ("md", "html")[number % 2]):
            drawn = draw(
                lambda found=report: document("t", (), changes(found.findings)), dict, Layout(kind)
            )
            commands = typed(drawn, kind)
            assert commands, (kind, words)
            assert not [line for line in commands if MARK in line], (kind, words)
            assert all(c.isprintable() or c == "\n" for c in drawn) or kind == "html", words
        record = json.loads(render_report(report, FINDINGS))
        found = list(in_json(record["findings"], ("command", "verify")))
        assert not [line for line in found if MARK in line or not line.isprintable()], words
        answer = answer_text(ToolAnswer({}, ToolCall("findings", {}, ""), record["findings"]))
        assert answer.isprintable()
        found = list(in_json(json.loads(answer), ("command", "verify")))
        assert not [line for line in found if MARK in line], words
        told = list(in_json(record["findings"], ("recorded_as",)))
        assert all(line.isprintable() for line in told), words
        shown += any(MARK in line for line in told)
    # Engines that `ab` starts without what is hostile about them have nothing to be shown.
    assert shown == len(COMMANDS)


def test_what_is_not_let_through_is_shown_and_marked(eager: Report) -> None:
    words = ["vllm", "serve", "m/x", "--middleware", "os.system", "--port", "80"]
    report = planted(eager, words)
    text = render_report(report, Layout("text", 200))
    shown = "spark-prof ab --a=--enforce-eager --b stock -- vllm serve m/x --middleware os.system"
    assert f"{RECORDED_AS}: {shown} --port 80 (from the file" in text
    assert f"$ {shown}" not in text
    [finding] = [f for f in report.findings if f.id == "eager-mode" and f.fix != "fix"]
    assert (finding.command, finding.verify[:19]) == ("", "spark-prof compare ")


def test_the_model_of_a_recording_is_checked(eager: Report) -> None:
    for name in ("a;touch PWN", "$(PWN)", "-PWN", "a\nPWN"):
        for words in (["python3", "run.py"], [], ["python3", "run.py", f"x/{name}"]):
            for finding in planted(eager, words, name).findings:
                assert MARK not in finding.command + finding.verify, (name, words)


@pytest.mark.slow
def test_no_hostile_result_is_printed_as_a_command() -> None:
    whole = msgspec.json.decode(TUNED.read_bytes(), type=TuneResult)
    honest = replace(whole, tried=whole.tried[:3], left_out=whole.left_out[:3])
    served = typed(render_tune(honest, Layout("text", 400)), "text")
    assert len(served) == 2
    number = 0
    for answer in hostile.answers():
        result = replace(honest, **answer)  # type: ignore[arg-type]
        kind = ("text", "md", "html")[number % 3]
        drawn = render_tune(result, Layout(kind))
        assert not [line for line in typed(drawn, kind) if MARK in line], (kind, answer)
        record = json.loads(render_tune(result, Layout("json")))
        assert MARK not in record["serve"] + json.dumps(record["environment"]), answer
        text = render_tune(result, Layout("text", 400))
        commands = typed(text, "text")
        assert not [line for line in commands if MARK in line], answer
        assert commands or RECORDED_AS in text, answer
        number += 1
    assert number >= 100


def poisoned(found: Any, text: str, kept: frozenset[str]) -> Any:
    """A record with the text behind every text of it but those of these fields."""
    if isinstance(found, TypedCommand):
        return found
    if isinstance(found, str):
        return f"{found}{text}"
    if isinstance(found, tuple) and not hasattr(found, "_fields"):
        return tuple(poisoned(entry, text, kept) for entry in found)
    if is_dataclass(found) and not isinstance(found, type):
        changed = {
            field.name: poisoned(getattr(found, field.name), text, kept)
            for field in fields(found)
            if field.init and field.name not in kept
        }
        return replace(found, **changed)
    return found


WORDS = frozenset({
    "source", "command", "component", "components", "phase", "kind", "conversion", "units", "state",
    "layer", "part", "basis", "owner_basis", "engine", "steps_by", "limiter", "cause", "evidence",
    "id", "precision", "slot", "vendor", "compute_capability", "suffix", "stored",
})  # fmt: skip
"""Fields of a few words, which a reader of the file makes, and what is tested above."""
POISONED = ("run", "gpu", "kernels", "modules", "machine_code", "conversions", "roofline", "audit",
            "shapes", "conflicts")  # fmt: skip


def test_no_other_text_of_a_recording_is_in_a_command() -> None:
    honest = spark_prof.report(ROOT / "tests/data/code-h100/qwen3-30b-a3b-nvfp4")
    shown = 0
    for text in hostile.TEXTS:
        parts = {name: poisoned(getattr(honest, name), text, WORDS) for name in POISONED}
        told = replace(honest, findings=(), **parts)
        asked = [with_next_command(Finding(id_, 0.1, "x", "y"), told, "steps") for id_ in ASKED]
        found = replace(told, findings=(*findings_of(told), *asked))
        assert len(found.findings) > len(ASKED)
        for kind in ("text", "md", "html"):
            drawn = draw(
                lambda found=found: document("t", (), changes(found.findings)), dict, Layout(kind)
            )
            assert typed(drawn, kind), (kind, text)
            assert not [line for line in typed(drawn, kind) if MARK in line], (kind, text)
            shown += MARK in drawn
        record = json.loads(render_report(found, FINDINGS))["findings"]
        for said in (
            record,
            json.loads(answer_text(ToolAnswer({}, ToolCall("findings", {}, ""), record))),
        ):
            lines = list(in_json(said, ("command", "verify")))
            assert lines, text
            assert not [line for line in lines if MARK in line or not line.isprintable()], text
    assert shown  # what rules say of kernels has their names


@pytest.mark.slow
def test_no_hostile_result_of_ab_is_printed_as_a_command() -> None:
    whole = read_result(ROOT / "tests/data/ab-h100/result.json")
    honest = replace(
        whole,
        swaps=tuple(replace(rank, swaps=rank.swaps[:3]) for rank in whole.swaps),
        attributions=tuple(
            replace(one, layers=one.layers[:3], kernels=one.kernels[:3], proofs=one.proofs[:3])
            for one in whole.attributions
        ),
    )
    kept = frozenset({"kind", "side", "slot", "state", "bits", "mode", "what", "of", "component"})
    for text in hostile.TEXTS:
        result = poisoned(honest, text, kept)
        for kind in ("text", "md", "html"):
            drawn = render_ab(result, Layout(kind))
            assert MARK in drawn, (kind, text)
            assert not [line for line in typed(drawn, kind) if MARK in line], (kind, text)


@pytest.mark.slow
def test_no_hostile_log_is_printed_as_a_command(tmp_path: Path) -> None:
    logs = list(hostile.logged())
    assert len(logs) >= 60
    path, proven = tmp_path / "vllm.log", 0
    for number, given in enumerate(({"model": "/models/served"}, *logs)):
        run = replace(LOGS["weight-only-before-fp4"], given=given)
        if "model" in given:
            run = replace(run, model=given["model"])
        path.write_text("\n".join(run.lines()), encoding="utf-8")
        for kind in ("json", ("text", "md", "html")[number % 3]):
            code, out, err = ran("doctor", "--log", str(path), "--gpu", "gb10", "--format", kind)
            assert code in (0, 1), err
            lines = [*in_json(json.loads(out), ("command", "verify"))] if kind == "json" else []
            lines = lines or typed(out, kind)
            assert not [line for line in lines if MARK in line], (kind, given)
            proven += kind == "json" and any(" ab " in line for line in lines)
    assert 0 < proven < len(logs)  # the honest one has a command, and not every other has


END_TO_END = [
    ["sh", "-c", f"touch {MARK}; vllm serve m"],
    ["vllm", "serve", "evil/m", "--trust-remote-code", "--worker-cls", f"{MARK}.W"],
    ["docker", "run", "--privileged", "-v", f"/:/{MARK}", "evil/img"],
    ["--attach", f"http://x/{MARK}\n#"],
]


@pytest.mark.slow
@each_row("words", END_TO_END)
def test_the_program_itself(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As its commands, MCP's tools and the explorer show it."""
    folder = tmp_path / "bundle"
    shutil.copytree(EAGER, folder)
    meta = json.loads((folder / "meta.json").read_text())
    meta["command"] = words
    (folder / "meta.json").write_text(json.dumps(meta))
    monkeypatch.chdir(tmp_path)

    def ran(*asked: str) -> str:
        monkeypatch.setattr(sys, "argv", ["spark-prof", *asked])
        assert main() in (0, 1)
        return capsys.readouterr().out

    for kind, *asked in (("text", "report"), ("md", "report", "--all"), ("text", "why")):
        drawn = ran(*asked, "bundle", "--format", kind)
        lines = typed(drawn, kind)
        assert lines or RECORDED_AS in drawn, asked
        assert not [line for line in lines if MARK in line], (asked, kind)
    for command, part in (("report", "findings"), ("doctor", "findings"), ("why", "next")):
        record = json.loads(ran(command, "bundle", "--format", "json"))
        found = in_json(record[part], ("command", "verify"))
        assert not [line for line in found if MARK in line], command
    desk = Desk(AllowedFolders((tmp_path,)), InProcess())
    for tool, named in (("findings", {"recording": "bundle"}), ("why", {"sources": ["bundle"]})):
        answer = json.loads(answer_text(asyncio.run(ANSWERS[tool](desk, named))))
        found = in_json(answer["data"], ("command", "verify"))
        assert not [line for line in found if MARK in line], tool
    app = framed([folder])
    page = "".join(str(node.proto) for node in app.get("html"))
    assert 'class=\\"command\\"' in page
    assert not [block for block in page.split("</pre>") if "<pre class" in block and MARK in block]


def test_who_has_just_typed_it_gets_it_whole() -> None:
    honest = msgspec.json.decode(TUNED.read_bytes(), type=TuneResult)
    own = replace(honest, serve="vllm serve m --trust-remote-code", environment={"X": "a b"})
    assert typed(render_tune(own, Layout("text", 400), typed=True), "text") == [
        "export X='a b'", "vllm serve m --trust-remote-code",
    ]  # fmt: skip


def test_only_the_door_makes_commands() -> None:
    """Elsewhere a text becomes no command: mypy sees to it, if nobody calls the type."""
    door = ROOT / "spark_prof/analyzers/finding.py"
    made = re.compile(r"\bCommand\((?!\))")
    for path in (ROOT / "spark_prof").rglob("*.py"):
        found = made.search(path.read_text())
        assert not found or path == door or "class Command" in path.read_text(), path
