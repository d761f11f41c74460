"""The subcommands of `spark-prof`."""

from __future__ import annotations

import typer

from spark_prof.cli import kernels
from spark_prof.cli.ab import ab
from spark_prof.cli.classify import classify
from spark_prof.cli.compare import compare
from spark_prof.cli.demo import demo
from spark_prof.cli.doctor import doctor
from spark_prof.cli.explore import explore
from spark_prof.cli.export import export
from spark_prof.cli.import_ import import_traces
from spark_prof.cli.merge import merge
from spark_prof.cli.query import query
from spark_prof.cli.record import record
from spark_prof.cli.report import report
from spark_prof.cli.salvage import salvage
from spark_prof.cli.why import why

app = typer.Typer(
    name="spark-prof",
    help="Says where each token's time goes in a vLLM run on an NVIDIA GPU.",
    add_completion=False,
    rich_markup_mode=None,  # importing rich would double the time that --help takes
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Everything after the first word that is no option of ours belongs to the command.
_OF_A_COMMAND = {"allow_interspersed_args": False}
app.command(context_settings=_OF_A_COMMAND)(record)
app.command("import")(import_traces)
for command in (
    report, demo, why, compare, classify, doctor, merge, salvage, explore, export, query,
):  # fmt: skip
    app.command()(command)
app.add_typer(kernels.group)
app.command(context_settings=_OF_A_COMMAND)(ab)


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
