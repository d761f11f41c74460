"""`spark-prof explore`: look at recordings in the browser; `demo`: at the package's own."""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from spark_prof.cli.options import next_report, say
from spark_prof.cli.written import AnswerOption, WriteReceipt, say_json
from spark_prof.errors import CommandError
from spark_prof.extras import install_command

TOKEN = "SPARK_PROF_TOKEN"

_Port = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="To listen on; by default 8501 or the next free one."),
]
_Show = Annotated[
    bool | None,
    typer.Option("--open/--no-open", help="Open a browser; by default where there is one."),
]


def explore(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE",
            help="Bundles, traces, folders of them, results of ab, or URLs; "
            "by default the newest in this folder.",
        ),
    ] = None,
    port: _Port = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; by default only this machine is let in.")
    ] = "127.0.0.1",
    rank: Annotated[
        list[int] | None,
        typer.Option(min=0, help="A rank to choose from, repeatable; by default all."),
    ] = None,
    show: _Show = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name of a proxy or tunnel in front of it, repeatable."),
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Whoever reaches the port may read.")
    ] = False,
    kind: AnswerOption = WriteReceipt.TEXT,
) -> None:
    """Look at recordings in the browser: where each token's time goes, down to single kernels."""
    if importlib.util.find_spec("streamlit") is None:
        raise CommandError(f"the explorer needs Streamlit; {install_command('explore')}")
    gc.set_threshold(100_000)  # imports and a reading make lasting objects: a tenth of the start
    from spark_prof.explorer.access import is_loopback
    from spark_prof.explorer.server import listen, serve

    allowed = _names(allow_host or ())
    token = None if no_token else _token()
    listening = listen(host, port)
    if not sources:
        from spark_prof.explorer.entries import newest_here

        sources = newest_here(Path())
    if not is_loopback(host):
        key = " and has the token" if token else ""
        say(
            f"anybody who reaches {host}:{listening.getsockname()[1]}{key} can read this; "
            "it is not encrypted"
        )

    def tell(address: str) -> None:
        say_json({"schema": 1, "address": address})

    serve(
        sources, rank or (), host, listening, allowed=allowed, token=token,
        show=_on_desktop() if show is None else show,
        on_ready=tell if kind is WriteReceipt.JSON else None,
    )  # fmt: skip


def _names(names: Sequence[str]) -> Sequence[str]:
    if names:
        from spark_prof.explorer.access import canonical_name

        for name in names:
            if canonical_name(name) is None:
                raise CommandError(
                    f"--allow-host {name!r} is no host name; give it without http:// and port"
                )
    return names


def _token() -> str:
    """That of the environment, for scripts; a new one if there is none."""
    from spark_prof.explorer.access import new_token

    # What is started from here has no need of it.
    token = os.environ.pop(TOKEN, "") or new_token()
    if not re.fullmatch(r"[A-Za-z0-9._~-]{8,200}", token):
        raise CommandError(f"{TOKEN} needs 8 to 200 letters, digits or any of . _ ~ -")
    return token


def _on_desktop() -> bool:
    """Whether somebody sits here: not a script, not at the far end of SSH."""
    screens = sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    return screens and "SSH_CONNECTION" not in os.environ and sys.stdout.isatty()


EXAMPLE = Path(__file__).resolve().parents[1] / "example.zip"
"""Qwen3-30B-A3B in NVFP4, 94 decode steps on an H100 with vLLM 0.26; random weights."""

PAIR = (EXAMPLE.with_name("example-before.zip"), EXAMPLE.with_name("example-after.zip"))
"""gpt-oss-20b in one engine on an H100, 60 decode steps each: with vLLM's kernels, then with
spark-prof's, recorded by `ab --b moe=spark_prof,router=spark_prof --mxfp4-layers qkv,o,lm_head`."""


def demo(
    pair: Annotated[
        bool,
        typer.Option("--compare", help="Two recordings, of gpt-oss-20b: its kernels were swapped."),
    ] = False,
    port: _Port = None,
    show: _Show = None,
    kind: AnswerOption = WriteReceipt.TEXT,
) -> None:
    """Look at a recording of Qwen3-30B-A3B NVFP4 on an H100, without GPU, vLLM or model."""
    if pair:
        before, after = map(str, PAIR)
        say("gpt-oss-20b on an H100 before and after its kernels were swapped, random weights")
        say(f"next: {shlex.join(['spark-prof', 'compare', before, after])}")
        explore([before, after], port=port, show=show, kind=kind)
        return
    say("Qwen3-30B-A3B NVFP4 on an H100, 94 decode steps, random weights")
    say(next_report(EXAMPLE))
    explore([str(EXAMPLE)], port=port, show=show, kind=kind)
