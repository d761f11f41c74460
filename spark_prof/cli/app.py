"""The subcommands of `spark-prof`."""

from __future__ import annotations

import typer

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

app = typer.Typer(
    name="spark-prof",
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
