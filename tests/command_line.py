"""Command lines of `spark-prof`, run or parsed in this process."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import typer


def ran(*words: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    from spark_prof.cli.main import main

    given, out, err = sys.argv, io.StringIO(), io.StringIO()
    try:
        sys.argv = ["spark-prof", *map(str, words)]
        with redirect_stdout(out), redirect_stderr(err):
            code = main()
    finally:
        sys.argv = given
    return code, out.getvalue(), err.getvalue()


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """The parameters of a command as its words set them."""
    from spark_prof.cli.app import app

    command: Any = typer.main.get_command(app)
    rest, context = list(words), command.make_context("spark-prof", list(words))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, list(rest), parent=context)
    return dict(context.params)
