"""What the commands share that start engines: ab, tune and speculate."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from spark_prof.cli.options import Format, say, terminal_width, token_counts, whole_numbers
from spark_prof.dashboards.section import DocumentBounds, Layout
from spark_prof.errors import CommandError

MOST = 1_000_000
"""Of requests at a time, and of tokens."""

Command = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- MODEL | COMMAND...",
        help="A model with vLLM's options, or vllm serve, vllm bench latency or throughput, also "
        "in docker run; where it drafts tokens, with --speculative-config '{...}'.",
    ),
]
BatchSizes = Annotated[
    str, typer.Option(metavar="N,N", help="Batch sizes at which decoding is measured.")
]
Context = Annotated[
    int, typer.Option(min=1, help="Tokens of each prompt when decoding is measured.")
]
Contexts = Annotated[
    str,
    typer.Option(metavar="N,N", help="Several such lengths, each measured: 1k,8k (k is 1,024)."),
]
Minutes = Annotated[float, typer.Option(min=1, help="Time to spend in all, which is kept.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="Time to spend on each measurement.")]
Requests = Annotated[
    Path | None,
    typer.Option(
        help="Your traffic, a prompt a line: text, or JSON with a prompt. What it accepts of "
        "drafts decides."
    ),
]
Acceptance = Annotated[
    str,
    typer.Option(
        metavar="P,P",
        help="In place of --requests: the share of steps that accept each position with all "
        "before it, such as 0.8,0.6.",
    ),
]
GateTokens = Annotated[
    int | None,
    typer.Option(
        min=8, max=4096, help="Tokens of each request in the gate; by default 256 in all."
    ),
]
Text = Annotated[
    Path | None,
    typer.Option(
        help="A text that the gate holds both sides to, for their perplexity; by default what "
        "side a says to made-up prompts."
    ),
]
Timeout = Annotated[
    float, typer.Option(min=1, help="Seconds of silence after which an engine is given up.")
]
Kind = Annotated[Format, typer.Option("--format", help="How to show it.")]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", metavar="FOLDER", help="The run's folder; by default named by the time."
    ),
]


def sizes_of(text: str) -> tuple[int, ...]:
    """The batch sizes of an option's text."""
    return whole_numbers(text, "--batch-sizes 1,8", most=MOST)


def contexts_of(text: str, context: int) -> tuple[int, ...]:
    """The contexts of an option's text, or the one where none are named."""
    return token_counts(text, "--contexts 1k,8k") if text else (context,)


def run_layout(kind: Format, limit: int | None, section: Sequence[str] | None) -> Layout:
    """How to print the result of a run of engines."""
    return Layout(kind.value, terminal_width(), bounds=DocumentBounds(limit, tuple(section or ())))


def run_folder(
    command: str, out: Path | None, text: Path | None, name: str, spent: float, timeout: float
) -> Path:
    """The folder of a run of engines; refuses a text that is missing, and endless times."""
    if not (math.isfinite(spent) and math.isfinite(timeout)):
        raise CommandError(f"--{name} and --timeout are finite numbers; give --{name} 20, say")
    if text and not text.is_file():
        raise CommandError(f"--text {text}: there is no such file")
    return out or Path(time.strftime(f"spark-prof-{command}-%Y%m%d-%H%M%S"))


def show_run(drawn: str, folder: Path, failure: str) -> None:
    """Prints the result of a run of engines, and says where it is and what ended it early."""
    print(drawn)
    say(f"result.json and report.html are in {folder}")
    if failure:
        say(failure)
