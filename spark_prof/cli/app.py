"""The subcommands of `spark-prof`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

from spark_prof.cli import kernels, kernels_bench, kernels_replay  # noqa: F401 - its commands
from spark_prof.cli.ab import ab
from spark_prof.cli.classify import classify
from spark_prof.cli.compare import compare
from spark_prof.cli.completion import completion
from spark_prof.cli.doctor import doctor
from spark_prof.cli.explore import demo, explore
from spark_prof.cli.export import export, query
from spark_prof.cli.mcp import mcp
from spark_prof.cli.merge import import_traces, merge, salvage
from spark_prof.cli.record import record
from spark_prof.cli.report import report
from spark_prof.cli.speculate import speculate
from spark_prof.cli.tune import tune
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
_COMMANDS = (
    (record, "Run a command and record every step of its vLLM engine.",
     "record -o my-run -- vllm serve MODEL"),
    (report, "One screen: verdict, what to change, where the time goes.", "report my-run"),
    (explore, "Look at recordings in the browser, down to one kernel.", "explore my-run"),
    (demo, "Explore the recording that comes with spark-prof.", "demo"),
    (why, "Why one checkpoint or run decodes faster than another.",
     "why models/nvfp4 models/fp8 --gpu gb10"),
    (compare, "Where the difference between recordings comes from.", "compare before after"),
    (ab, "Measure a change in the live engine, and prove its gain.",
     "ab --b moe=spark_prof -- vllm serve MODEL"),
    (tune, "Search what makes an engine faster, measured and confirmed.",
     "tune --minutes 20 -- vllm serve MODEL"),
    (speculate, "How many tokens to draft: cost, acceptance, best k and its option.",
     "speculate --requests prompts.txt -- vllm serve MODEL --speculative-config '{...}'"),
    (doctor, "Kernels chosen and why, settings that do nothing, limits.",
     "doctor serve.log --gpu gb10"),
    (classify, "Tensor cores or not, in which precision, on what evidence.",
     "classify my-run"),
    (import_traces, "Make a bundle of another tool's trace.", "import trace.json.gz -o my-run"),
    (mcp, "Let an agent ask recordings: a server of the Model Context Protocol.", "mcp my-runs"),
    (merge, "Join the ranks of one run, recorded on several hosts.",
     "merge host-1 host-2 -o my-run"),
    (salvage, "Make a bundle of what a killed recording had flushed.", "salvage my-run"),
    (export, "Write a trace for ui.perfetto.dev, CSV or Parquet.",
     "export my-run -o my-run.perfetto.json"),
    (query, "Ask the tables of recordings in SQL.",
     "query my-run 'select name, count(*) from kernels group by 1'"),
    (completion, "Print what completes commands and options in bash, zsh or fish.",
     "completion bash > ~/.local/share/bash-completion/completions/spark-prof"),
)  # fmt: skip
"""Each command with its line in the list of them, and an example."""
for command, line, example in _COMMANDS:
    app.command(
        "import" if command is import_traces else None,
        short_help=line,
        epilog=f"Example: spark-prof {example}",
        context_settings=_OF_A_COMMAND if command in (record, ab, tune, speculate) else None,
    )(command)
_TAKES = {
    "gpu": "GPU", "host": "ADDRESS", "model": "MODEL", "section": "NAME", "slot": "SLOT",
    "int": "N", "float": "X", "path": "FILE", "Path": "FILE", "str": "TEXT",
}  # fmt: skip
"""What an option takes, by its name, else by its type."""


class _HelpCommand(TyperCommand):
    """Its help says what an option takes, not which type Python has for it."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, each with a word for its value."""
        parameters: list[Any] = super().get_params(ctx)
        for parameter in parameters:
            typed = (
                parameter.display_type(ctx).strip("<>")
                if hasattr(parameter, "display_type")
                else ""
            )
            if parameter.param_type_name == "argument":
                parameter.metavar = parameter.metavar or parameter.name.upper()
                parameter.display_type = lambda _: ""
            elif parameter.metavar is None and typed and not parameter.is_flag:
                kind = typed.removeprefix("list[").rstrip("]").removesuffix(" range")
                parameter.metavar = _TAKES.get(parameter.name, _TAKES.get(kind, kind))
        return parameters


app.add_typer(kernels.group)
for registered in (*app.registered_commands, *kernels.group.registered_commands):
    registered.cls = _HelpCommand


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
