"""The command `spark-prof`: its subcommands, and errors as one line on stderr."""

from __future__ import annotations

import signal
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from spark_prof.cli import (
    ab,
    classify,
    compare,
    doctor,
    explore,
    export,
    import_,
    kernels,
    merge,
    query,
    record,
    report,
    salvage,
)
from spark_prof.ending import TerminatedError, ended_by_signals
from spark_prof.errors import CommandError, SparkProfError

__all__ = ["app", "main"]


class _InterruptedError(BaseException):
    """Ctrl-C, in a form that Typer hands on."""


class _Commands(TyperGroup):
    """The commands; some versions of Typer make an empty line of Ctrl-C, others an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command that the command line names."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _InterruptedError from error


app = typer.Typer(
    name="spark-prof",
    cls=_Commands,
    help="Says where each token's time goes in a vLLM run on an NVIDIA GPU.",
    add_completion=False,
    rich_markup_mode=None,  # importing rich would double the time that --help takes
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
record.add_to(app)
import_.add_to(app)
report.add_to(app)
compare.add_to(app)
classify.add_to(app)
doctor.add_to(app)
merge.add_to(app)
salvage.add_to(app)
explore.add_to(app)
export.add_to(app)
query.add_to(app)
kernels.add_to(app)
ab.add_to(app)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Show the version and exit."),
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"spark-prof {installed('spark-prof')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> int:
    """Runs the command line; returns the exit code."""
    try:
        with ended_by_signals():
            return _run()
    except (typer.Abort, KeyboardInterrupt, _InterruptedError):
        ended = signal.SIGINT
    except TerminatedError:
        ended = signal.SIGTERM
    print("spark-prof: stopped", file=sys.stderr)
    return 128 + ended


def _run() -> int:
    try:
        result = app(standalone_mode=False)
        return result if isinstance(result, int) else 0
    except CommandError as error:
        print(f"spark-prof: {error}", file=sys.stderr)
        return error.exit_code
    except SparkProfError as error:
        print(f"spark-prof: {error}", file=sys.stderr)
        return 2
    except typer.Exit as ended:
        return int(ended.exit_code)
    except typer.Abort:
        raise
    except Exception as error:
        # Typer's own usage errors know how to show themselves; anything else is our fault.
        show = getattr(error, "show", None)
        if show is None:
            raise
        message = getattr(error, "format_message", None)
        text = " ".join(str(message() if message else error).split()).rstrip(".")
        print(f"spark-prof: {text}; see spark-prof --help", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
