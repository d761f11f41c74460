"""What every command prints of every recording in `tests/data`, as one text a recording."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.command_line import ran
from tests.golden.plain_json import plain

if TYPE_CHECKING:
    from spark_prof.traces.benchmarks.load_test import BenchmarkResult
    from spark_prof.traces.bundle import Bundle
    from spark_prof.traces.measured import Measured
    from spark_prof.traces.readers.engine_log import EngineLog
    from spark_prof.traces.resolve import Source

DATA = Path(__file__).parents[1] / "data"

Command = tuple[str, ...]
_WHY = (
    ("models/qwen3-next-80b-a3b-nvfp4", "models/qwen3-next-80b-a3b-fp8"),
    ("models/qwen3-30b-a3b-nvfp4", "h100-qwen3-30b-a3b-nvfp4-graphs"),
    ("code-h100/dense-nvfp4", "code-h100/dense-awq", "code-h100/dense-fp8-token"),
)
_PAGES = ("overview", "layers", "kernels", "conversions", "fallbacks", "steps")
_ALL_PAGES = ("code-h100/dense-fp8-block", "compare-h100/gpt-graph", "kineto/qwen3-graphs")
_TWO_PAGES = ("architectures/*/default", "kineto/*")
"""Recordings whose every page is drawn, and those with the tables that no report has."""

_COMPARED = (
    ("ab-h100/recording-a-1", "ab-h100/recording-b-1"),
    ("code-h100/dense-bf16", "code-h100/dense-awq"),
    ("code-h100/dense-bf16", "code-h100/dense-fp8-block"),
    ("code-h100/dense-fp8-token", "code-h100/dense-nvfp4"),
    ("compare-h100/gpt-graph", "compare-h100/gpt-duty"),
    ("compare-h100/gpt-graph", "compare-h100/qwen-graph"),
    ("h100-gpt-oss-20b-mxfp4-eager", "h100-gpt-oss-20b-mxfp4-graphs"),
    ("kineto/gpt-oss-eager.json.gz", "kineto/gpt-oss-graphs"),
)
"""As text and JSON; beside the eager and the default run of each architecture."""


def documents() -> dict[str, list[Command]]:
    """The commands whose outputs one file of `expected` holds, by its name."""
    recordings = [_name(path.parent) for path in sorted(DATA.rglob("meta.json"))]
    traces = _named("kineto/*", "proton/*", "ncu-h100/*", "cupti/1*")
    two_pages = _named(*_TWO_PAGES)
    found: dict[str, list[Command]] = {}
    for source in recordings + traces:
        pages = _PAGES if source in _ALL_PAGES else ("layers", "kernels")
        drawn = source in _ALL_PAGES or source in two_pages
        found[source] = [
            *_both(("report", source)),
            ("report", source, "--all"),
            ("doctor", source),  # its JSON is in the report's
            *(_both(("classify", source)) if source in traces else [_as_json("classify", source)]),
            *(("explore", source, page) for page in pages if drawn),
        ]
    for eager in _named("architectures/*/eager"):
        default = eager.replace("eager", "default")
        found[f"compare/{eager}"] = [_as_json("compare", eager, default)]
    for a, b in _COMPARED:
        found[f"compare/{a}--{Path(b).name}"] = _both(("compare", a, b))
    results = _named("benchmarks/*.*", "ab-*/result.json")
    found |= {name: _both(("report", name)) for name in results if not name.endswith("README.md")}
    for sides in _WHY:
        found[f"why/{Path(sides[0]).name}"] = _both(("why", *sides))
    for log in _named("logs/*"):
        found[log] = _both(("doctor", "--log", log, "--gpu", "h100"))
    for config in _named("models/*/config.json"):
        model = str(Path(config).parent)
        asked = ("--batch", "4", "--context", "4096", "--gpu", "gb10")
        found[model] = [("doctor", "--model", model, *asked)]
    return found


def _name(path: Path) -> str:
    return str(path.relative_to(DATA))


def _named(*patterns: str) -> list[str]:
    return [_name(path) for pattern in patterns for path in sorted(DATA.glob(pattern))]


def _both(command: Command) -> list[Command]:
    return [command, _as_json(*command)]


def _as_json(*command: str) -> Command:
    return (*command, "--format", "json")


def output(commands: list[Command]) -> str:
    """What the commands print, one below the other, and the long strings of their tables."""
    long: dict[str, str] = {}
    lines: list[str] = []
    for command in commands:
        lines += ["=" * 100, f"$ spark-prof {' '.join(command)}", "=" * 100]
        lines += _tables(command, long) if command[0] == "explore" else _printed(command, long)
    OPEN.close()
    lines += ["=" * 100, *(f"{short} = {text}" for short, text in sorted(long.items()))]
    return "\n".join(lines) + "\n"


OPEN = ExitStack()
"""The recordings that commands share until it is closed, such as those of a document."""


def _read_once() -> None:
    """Lets commands open and summarize a recording once while `OPEN` is: each draws it anew."""
    import typer.main

    from spark_prof.analyzers import summary
    from spark_prof.datasets import opened

    read, sum_up = opened.opened, summary.summary_of
    bundles: dict[str, Bundle] = {}
    summaries: dict[tuple[int, int | None], summary.Summary] = {}

    @contextmanager
    def read_once(source: str | Source) -> Iterator[Bundle]:
        name = source if isinstance(source, str) else source.name
        if not bundles:
            OPEN.callback(bundles.clear)
            OPEN.callback(summaries.clear)
        if name not in bundles:
            bundles[name] = OPEN.enter_context(read(source))
        yield bundles[name]

    def sum_up_once(
        bundle: Bundle,
        rank: int | None = None,
        log: EngineLog | None = None,
        measured: Measured | None = None,
        results: Sequence[BenchmarkResult] = (),
    ) -> summary.Summary:
        if log or measured or results or bundle not in bundles.values():
            return sum_up(bundle, rank, log, measured, results)
        key = id(bundle), bundle.ranks[0] if rank is None and bundle.ranks else rank
        if key not in summaries:
            summaries[key] = sum_up(bundle, rank)
        return summaries[key]

    opened.opened, summary.summary_of = read_once, sum_up_once
    typer.main.get_command = cache(typer.main.get_command)  # the same commands for every call


@contextmanager
def reading_once() -> Iterator[None]:
    """The same for a while, after which commands read as always."""
    from spark_prof.analyzers import summary
    from spark_prof.datasets import opened

    kept = opened.opened, summary.summary_of
    _read_once()
    try:
        yield
    finally:
        OPEN.close()
        opened.opened, summary.summary_of = kept


def _printed(command: Command, long: dict[str, str]) -> Iterator[str]:
    code, out, err = ran(*command)
    if command[-1] == "json" and code == 0:
        yield from plain(json.loads(out), long)
    else:
        yield from out.rstrip("\n").split("\n")
    for line in err.splitlines():
        yield f"stderr: {line}"
    if code:
        yield f"exit code {code}"


def _tables(command: Command, long: dict[str, str]) -> Iterator[str]:
    from tests.explorer.framed import framed

    _, source, page = command
    for number, table in enumerate(framed([source], page).dataframe):
        yield from plain(json.loads(table.value.to_json(orient="records")), long, f"{number}")


def _prepare(cache: str) -> None:
    """Lets a process see the recordings alone: no measured ceilings, caches or settings."""
    os.chdir(DATA)
    os.environ |= {"HOME": cache, "XDG_CACHE_HOME": cache, "XDG_CONFIG_HOME": cache}
    for name in [name for name in os.environ if name.startswith(("SPARK_PROF_", "VLLM_"))]:
        del os.environ[name]
    logging.disable(logging.ERROR)
    _read_once()


def outputs(names: list[str]) -> Iterator[tuple[str, str]]:
    """The name and the text of each document of these, two at a time."""
    wanted = documents()
    # The largest first: the last one should not run alone.
    names = sorted(names, key=lambda name: len(wanted[name]), reverse=True)
    with TemporaryDirectory() as cache:
        pool = ProcessPoolExecutor(2, get_context("spawn"), _prepare, (cache,))
        with pool:
            yield from zip(names, pool.map(output, [wanted[name] for name in names]), strict=True)
