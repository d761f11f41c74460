"""Reports of twelve recordings of `tests/data` as JSON, and three screens of text."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.command_line import ran
from tests.golden.plain_json import plain

DATA = Path(__file__).parents[1] / "data"

Command = tuple[str, ...]
RECORDINGS = (
    "ab-h100/recording-a-1",
    "architectures/deepseek-v3-mtp/default",
    "architectures/falcon-h1/default",
    "architectures/qwen3-next/eager",
    "code-h100/dense-fp8-block",
    "code-h100/qwen3-30b-a3b-nvfp4",
    "compare-h100/gpt-duty",
    "cupti/13.0.85",
    "h100-gpt-oss-20b-mxfp4-graphs",
    "h100-qwen3-30b-a3b-nvfp4-graphs",
    "kineto/gpt-oss-eager.json.gz",
    "proton/tree.hatchet",
)
"""Whose report as JSON is stored."""

TEXTS: tuple[Command, ...] = (
    ("report", "h100-qwen3-30b-a3b-nvfp4-graphs"),
    ("compare", "compare-h100/gpt-graph", "compare-h100/qwen-graph"),
    ("doctor", "--log", "logs/qwen3-30b-a3b-nvfp4.log", "--gpu", "h100"),
)
"""Whose text is: a screen of each of the three commands that people read first."""

DIGITS = 4


def documents() -> dict[str, Command]:
    """The command whose output a file of `expected` holds, by the file's name."""
    reports = {name: ("report", name, "--format", "json") for name in RECORDINGS}
    return reports | {f"{words[0]}-text": words for words in TEXTS}


def output(command: Command, digits: int = DIGITS) -> str:
    """What a command prints: JSON as tables, with the long strings of them at the end.

    Args:
        command: its words, after `spark-prof`.
        digits: significant ones of a float.
    """
    code, out, err = ran(*command)
    long: dict[str, str] = {}
    if command[-1] == "json" and code == 0:
        lines = list(plain(json.loads(out), long, digits=digits))
    else:
        lines = out.rstrip("\n").split("\n")
    ends = [f"stderr: {line}" for line in err.splitlines()] + [f"exit code {code}"] * bool(code)
    names = [f"{short} = {text}" for short, text in sorted(long.items())]
    return "\n".join([f"$ spark-prof {' '.join(command)}", *lines, *ends, *names]) + "\n"


def _prepare(cache: str) -> None:
    """Lets a process see the recordings alone: no measured ceilings, caches or settings."""
    os.chdir(DATA)
    os.environ |= {"HOME": cache, "XDG_CACHE_HOME": cache, "XDG_CONFIG_HOME": cache}
    for name in [name for name in os.environ if name.startswith(("SPARK_PROF_", "VLLM_"))]:
        del os.environ[name]
    logging.disable(logging.ERROR)


def outputs(names: list[str]) -> Iterator[tuple[str, str]]:
    """The name and the text of each document of these, two at a time."""
    commands = documents()
    with TemporaryDirectory() as cache:
        pool = ProcessPoolExecutor(2, get_context("spawn"), _prepare, (cache,))
        with pool:
            texts = pool.map(output, [commands[name] for name in names])
            yield from zip(names, texts, strict=True)
