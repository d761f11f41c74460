"""`spark-prof explore`: look at recordings in the browser."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from spark_prof.errors import CommandError

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    app.command()(explore)


def explore(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE]...",
            help="Bundles, traces, folders of them, results of ab, or URLs; "
            "by default the newest in this folder.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="To listen on; by default 8501 or the next free one."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; by default only this machine is let in.")
    ] = "127.0.0.1",
    rank: Annotated[
        list[int] | None,
        typer.Option(min=0, help="A rank to choose from, repeatable; by default all."),
    ] = None,
    show: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open a browser; by default where there is one."),
    ] = None,
) -> None:
    """Look at recordings in the browser: where each token's time goes, down to single kernels."""
    if importlib.util.find_spec("streamlit") is None:
        raise CommandError("the explorer needs Streamlit; pip install 'spark-prof[explore]'")
    from spark_prof.datasets.prepared import begin as begin_to_read

    if sources:
        # Before anything else is imported: the largest bundle is there half a second sooner.
        begin_to_read(sources[0], rank[0] if rank else None)
    from spark_prof.explorer.ports import find_port, is_loopback

    found = find_port(host, port)
    names = sources or _newest()
    ranks = tuple(rank or ())
    from spark_prof.explorer.server import serve

    def ready() -> None:
        from spark_prof.explorer.start import begin

        begin(names, ranks)()

    def then() -> None:
        from spark_prof.explorer.start import warm

        warm(names, ranks)

    if not is_loopback(host):
        print(f"spark-prof: anybody who reaches {host}:{found} can read this", file=sys.stderr)
    serve(names, ranks, host, found, ready, then, show=_on_desktop() if show is None else show)


def _newest() -> list[str]:
    from spark_prof.explorer.entries import newest_here

    return newest_here(Path())


def _on_desktop() -> bool:
    """Whether somebody sits here: not a script, not at the far end of SSH."""
    screens = sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    return screens and "SSH_CONNECTION" not in os.environ and sys.stdout.isatty()
