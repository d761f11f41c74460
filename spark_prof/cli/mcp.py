"""`spark-prof mcp`: recordings, and with leave measurements, for an agent over stdio."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Annotated

import typer

from spark_prof.cli.options import say
from spark_prof.errors import CommandError
from spark_prof.extras import install_command


def mcp(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FOLDER",
            help="What an agent may read; by default this folder.",
            show_default=False,
        ),
    ] = None,
    allow_run: Annotated[
        bool,
        typer.Option(
            "--allow-run", help="Also let it run commands of its choice: record, ab and tune."
        ),
    ] = False,
) -> None:
    """Serve recordings to an agent: a Model Context Protocol server on stdin and stdout."""
    # Version 1 of the SDK, which older vLLMs bring, has no mcp_types.
    if any(importlib.util.find_spec(name) is None for name in ("mcp", "mcp_types")):
        raise CommandError(f"this needs version 2 of the MCP SDK: {install_command('mcp')}")
    from spark_prof.mcp_server.allowed_folders import AllowedFolders

    allowed = AllowedFolders.of(folders or [Path()])
    # Stdout is the protocol's alone: whatever a library prints goes to stderr.
    protocol = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from spark_prof.mcp_server.stdio_session import serve

    say(f"serving {', '.join(map(str, allowed.roots))} over stdio")
    serve(allowed, protocol, allow_run=allow_run)
