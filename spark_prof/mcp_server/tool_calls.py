"""What answers each tool: a command of spark-prof, and what of its JSON is shown."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread

from spark_prof.errors import CommandError
from spark_prof.mcp_server import report_views as views
from spark_prof.mcp_server.allowed_folders import LATEST, AllowedFolders
from spark_prof.mcp_server.bounded_answer import ToolAnswer, ToolCall, page_of, part_of
from spark_prof.mcp_server.command_runs import CommandRuns, Tell
from spark_prof.traces.resolve import source_state
from spark_prof.vocabulary import COMPONENTS

_MINUTE = 60.0
_READ_SECONDS = 600.0
_QUERY_SECONDS = 120.0
_TUNE_SECONDS = 600.0  # that a tune may take beyond its own minutes, to confirm what it found
_KEPT_BYTES = 32_000_000  # of JSON that commands wrote
_FILES = {"recording": "--from", "requests": "--requests"}
"""Options that name a file in the folders, by their argument."""
_MOST_PRINTED = 20  # lines of a run's output

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Desk:
    """What a call works with: the folders, and the commands with what they said before."""

    folders: AllowedFolders
    runs: CommandRuns
    tell: Tell | None = None  # is given each line that a measurement says
    records: dict[tuple[str, ...], tuple[Any, int]] = field(default_factory=dict)

    async def record(self, words: Sequence[str], sources: Sequence[str]) -> Any:
        """The JSON that a command writes of sources, read once while none of them changes."""
        states = [source_state(path) for source in sources for path in source.split(",")]
        key = (*words, "--", *sources, *map(str, states))
        if None in states or key not in self.records:
            command = [*words, "--format", "json", "--", *sources]
            # 1 tells of a limit that was not kept.
            ended = await self.runs.run(command, _READ_SECONDS, codes=(0, 1))
            self.records[key] = json.loads(ended.output), len(ended.output)
            while len(self.records) > 1 and sum(n for _, n in self.records.values()) > _KEPT_BYTES:
                del self.records[next(iter(self.records))]
        return self.records[key][0]

    async def any_report(self, arguments: Arguments, *options: str) -> Any:
        """The JSON of `report`, whatever it is of."""
        rank = [f"--rank={arguments['rank']}"] if "rank" in arguments else []
        return await self.record(
            ["report", *rank, *options], [self.folders.source(arguments["recording"])]
        )

    async def report(self, arguments: Arguments) -> views.Json:
        """The report of one recording; refuses what is something else."""
        report: views.Json = await self.any_report(arguments)
        if not views.is_report(report):
            raise CommandError(
                f"{arguments['recording']} is no single recording; ask details of it"
            )
        return report


def _next(arguments: Arguments, tool: str, why: str, **details: Any) -> ToolCall:
    """A call about the same recording; what a recording may have made up is no argument of it."""
    if details.get("component") not in COMPONENTS:
        details.pop("component", None)
    return ToolCall(
        tool, {k: arguments[k] for k in ("recording", "rank") if k in arguments} | details, why
    )


async def _recordings(desk: Desk, arguments: Arguments) -> ToolAnswer:
    words = arguments.get("name", "").lower()
    recordings, refused = await anyio.to_thread.run_sync(desk.folders.recordings)
    rows = [row for row in recordings if words in row["recording"].lower()]
    left = f"{refused} whose name or links this server refuses" if refused else ""
    after = ToolCall("recordings", {}, "all of them")
    if rows:
        # A folder's name may be anybody's words: none of them is an argument here.
        after = ToolCall(
            "summary", {"recording": f"{LATEST} {words}".strip()}, "the latest of them"
        )
    return ToolAnswer({"order": "newest first"}, after, left_out=left, **page_of(rows, arguments))


async def _summary(desk: Desk, arguments: Arguments) -> ToolAnswer:
    record = await desk.any_report(arguments)
    if views.is_drafts(record):
        after = _next(arguments, "details", "each number of drafts", part="bests")
        of_drafts, by_batch = views.drafts(record)
        return ToolAnswer(of_drafts, after, **page_of(by_batch, arguments))
    if not views.is_report(record):
        data, rows = part_of(record, "")
        large = next((key for key, value in record.items() if isinstance(value, list)), "")
        return ToolAnswer(data, _next(arguments, "details", "a part of it", part=large), rows)
    tool, why = ("findings", "what to change") if record["findings"] else ("kernels", "the time")
    return ToolAnswer(views.summary(record), _next(arguments, tool, why))


async def _findings(desk: Desk, arguments: Arguments) -> ToolAnswer:
    report = await desk.report(arguments)
    rows = [{k: v for k, v in row.items() if v} for row in report["findings"]]
    page = page_of(rows, arguments)
    about = next((row["components"][0] for row in page["rows"] if row.get("components")), None)
    after = _next(arguments, "layers", "whether one layer is slower than others")
    if about:
        after = _next(arguments, "kernels", "kernels of the first finding", component=about)
    data = {"order": "by what a change saves at most", **views.issues(report)}
    return ToolAnswer(data, after, **page)


async def _kernels(desk: Desk, arguments: Arguments) -> ToolAnswer:
    report = await desk.report(arguments)
    rows = views.kernel_rows(report, arguments)
    data: views.Json = {}
    if arguments.get("conversions"):
        parts, _ = part_of(report["conversions"], "")
        data = {k: parts[k] for k in ("us_per_token", "share", "fused", "load_time") if k in parts}
    after = _next(arguments, "findings", "what to change")
    if rows and arguments.get("details"):
        after = _next(arguments, "layers", "in each layer", component=rows[0]["component"])
    elif rows:
        top = {"component": rows[0]["component"], "details": True}
        after = _next(arguments, "kernels", "machine code, bytes and launches", **top)
    return ToolAnswer(data, after, **page_of(rows, {"limit": 15} | dict(arguments)))


async def _layers(desk: Desk, arguments: Arguments) -> ToolAnswer:
    if "layer" in arguments:
        data, rows = views.one_layer(
            await desk.any_report(arguments, f"--layer={arguments['layer']}")
        )
        part = {"component": rows[0]["component"]} if rows else {}
        return ToolAnswer(
            data, _next(arguments, "kernels", "them", **part), **page_of(rows, arguments)
        )
    data, rows = views.layer_rows(await desk.report(arguments), arguments.get("component"))
    after = _next(arguments, "kernels", "its kernels are placed in no layer")
    if slow := data["slowest_layers"]:
        after = _next(arguments, "layers", "the slowest beside layers like it", layer=slow[0])
    return ToolAnswer(data, after, **page_of(rows, arguments))


async def _details(desk: Desk, arguments: Arguments) -> ToolAnswer:
    after = _next(arguments, "findings", "what to change")
    return _part(await desk.any_report(arguments), arguments, after)


def _part(record: Any, arguments: Arguments, after: ToolCall) -> ToolAnswer:
    data, rows = part_of(record, arguments.get("part", ""))
    return ToolAnswer(data, after, **({} if rows is None else page_of(rows, arguments)))


async def _query(desk: Desk, arguments: Arguments) -> ToolAnswer:
    first, limit = arguments.get("cursor", 0), arguments.get("limit", 50)
    words = [
        "query",
        "--format=json",
        "--",
        desk.folders.source(arguments["recording"]),
        arguments["sql"],
    ]
    # A line a row after one with a bracket, and one more row to know whether more follow.
    ended = await desk.runs.run(words, _QUERY_SECONDS, most_lines=first + limit + 2)
    lines = [line.rstrip(b",") for line in ended.output.split(b"\n") if line.startswith(b"{")]
    rows = [json.loads(line) for line in lines[first : first + limit]]
    total = None if ended.code is None else len(lines)
    after = _next(arguments, "query", "the columns of a table", sql="DESCRIBE placed")
    return ToolAnswer({}, after, rows, first, total, len(lines) > first + limit)


async def _compare(desk: Desk, arguments: Arguments) -> ToolAnswer:
    named = [[v] if isinstance(v, str) else v for v in (arguments["a"], arguments["b"])]
    sides = [[desk.folders.source(path) for path in side] for side in named]
    if any("," in path for side in sides for path in side):
        raise CommandError("a path with a comma cannot be compared; rename it")
    limits = [f"--fail-on={limit}" for limit in arguments.get("fail_on", ())]
    record = await desk.record(["compare", *limits], [",".join(side) for side in sides])
    after = ToolCall("summary", {"recording": named[1][0]}, "side b alone")
    if "part" in arguments:
        return _part(record, arguments, after)
    data, rows = views.comparison(record)
    if rows:
        kernels = {
            "a": arguments["a"],
            "b": arguments["b"],
            "part": "comparisons.0.phases.0.kernels",
        }
        after = ToolCall("compare", kernels, "which kernels differ")
    return ToolAnswer(data, after, **page_of(rows, arguments))


async def _why(desk: Desk, arguments: Arguments) -> ToolAnswer:
    names = ("gpu", "batch", "tensor_parallel", "measured")
    options = [
        f"--{name.replace('_', '-')}={arguments[name]}" for name in names if name in arguments
    ]
    sources = [desk.folders.source(source) for source in arguments["sources"]]
    record = await desk.record(["why", *options], sources)
    measured = [
        s for s, side in zip(arguments["sources"], record["sides"], strict=True) if side["us"]
    ]
    after = ToolCall("recordings", {}, "the time of kernels is in no checkpoint")
    if measured:
        after = ToolCall("findings", {"recording": measured[0]}, "what to change")
    if "part" in arguments:
        return _part(record, arguments, after)
    data, rows = views.why(record)
    return ToolAnswer(data, after, **page_of(rows, arguments))


async def _run(desk: Desk, arguments: Arguments, command: str) -> ToolAnswer:
    """Runs a measurement into a new folder, and shows what it said."""
    out, minutes = desk.folders.new_folder(arguments["out"]), arguments.get("minutes", 30)
    keeps_time = command in ("tune", "speculate")
    words = [command, f"--out={out}"] + ([f"--minutes={minutes}"] if keeps_time else [])
    for name, option in _FILES.items():
        if name in arguments:
            words.append(f"{option}={desk.folders.source(arguments[name])}")
    for name, value in arguments.items():
        if name not in ("command", "out", "minutes", *_FILES) and value is not False:
            option = f"--{name.replace('_', '-')}"
            words.append(option if value is True else f"{option}={value}")
    seconds = _MINUTE * minutes + (_TUNE_SECONDS if keeps_time else 0.0)
    if desk.runs.measuring.locked():
        raise CommandError("a measurement is running: two at a time would disturb each other")
    async with desk.runs.measuring:
        # 1 tells of a check that failed; what was measured before the time was over counts too.
        ended = await desk.runs.run(
            [*words, "--", *arguments["command"]], seconds, tell=desk.tell, codes=(0, 1, None)
        )
    if not Path(out).exists():
        raise CommandError(ended.stderr_lines[-1] if ended.stderr_lines else "nothing was written")
    lines = ended.output.decode("utf-8", "replace").splitlines()
    if command == "record":  # what vLLM says
        lines = []
    data: views.Json = {"recording": desk.folders.short_path(out), "exit_code": ended.code}
    data |= {"printed": lines[:_MOST_PRINTED], "said": ended.stderr_lines}
    left = (
        f"{len(lines) - _MOST_PRINTED} lines that it printed" if len(lines) > _MOST_PRINTED else ""
    )
    after = ToolCall("summary", {"recording": data["recording"]}, "what was measured")
    return ToolAnswer(data, after, left_out=left)


ANSWERS: Mapping[str, Callable[[Desk, Arguments], Awaitable[ToolAnswer]]] = {
    "recordings": _recordings,
    "summary": _summary,
    "findings": _findings,
    "kernels": _kernels,
    "layers": _layers,
    "details": _details,
    "query": _query,
    "compare": _compare,
    "why": _why,
    **{name: partial(_run, command=name) for name in ("record", "ab", "tune", "speculate")},
}
"""By the name of the tool."""
