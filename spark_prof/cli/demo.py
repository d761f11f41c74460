"""`spark-prof demo`: the recording that the package brings, in the explorer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spark_prof.cli.explore import explore
from spark_prof.cli.options import next_report, say

EXAMPLE = Path(__file__).resolve().parents[1] / "example.zip"
"""Qwen3-30B-A3B in NVFP4, 94 decode steps on an H100 with vLLM 0.26; random weights."""


def demo(
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="To listen on; by default 8501 or the next free one."),
    ] = None,
    show: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open a browser; by default where there is one."),
    ] = None,
) -> None:
    """Look at a recording of Qwen3-30B-A3B NVFP4 on an H100, without GPU, vLLM or model."""
    say("Qwen3-30B-A3B NVFP4 on an H100, 94 decode steps, random weights")
    say(next_report(EXAMPLE))
    explore([str(EXAMPLE)], port=port, show=show)
