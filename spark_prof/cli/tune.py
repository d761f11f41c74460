"""`spark-prof tune`: tries what may make an engine faster, and says what does."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from spark_prof.cli import options
from spark_prof.dashboards.section import Layout
from spark_prof.errors import CommandError

_MOST = 1_000_000


def tune(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND...", help="As for ab: vllm serve MODEL, or a model."),
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=1, help="Time to spend in all, which is kept.")
    ] = 20.0,
    batch_sizes: Annotated[
        str, typer.Option(metavar="N,N", help="Batch sizes that matter.")
    ] = "1,8",
    context: options.ContextOption = 128,
    recording: Annotated[
        str,
        typer.Option(
            "--from", metavar="SOURCE", help="A recording of the engine; else one is made."
        ),
    ] = "",
    sides: Annotated[
        list[str] | None,
        typer.Option(
            "--try", metavar="SIDE", help="Also try this, written as for ab --b; repeatable."
        ),
    ] = None,
    earlier_results: Annotated[
        list[Path] | None,
        typer.Option(
            "--known",
            metavar="FOLDER",
            help="Start from earlier results of ab and tune in here, too; each is measured again.",
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(metavar="SIDE", help="Do not try this, by its words in --list; repeatable."),
    ] = None,
    allow_requantize: Annotated[
        bool, typer.Option("--allow-requantize", help="Weights may be quantized at load.")
    ] = False,
    allow_kv_dtype: Annotated[
        bool, typer.Option("--allow-kv-dtype", help="The KV cache may get another format.")
    ] = False,
    only_list: Annotated[
        bool,
        typer.Option("--list", help="Start nothing: print what would be tried, and why not more."),
    ] = False,
    text: options.TextOption = None,
    gate_tokens: options.GateTokens = None,
    timeout: options.Timeout = 600.0,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Go on with a tune that ended early.")
    ] = None,
    kind: options.KindOption = options.Format.TEXT,
    out: options.FolderOption = None,
    limit: options.Limit = None,
    section: options.Section = None,
    all_sections: options.AllSections = False,
) -> int:
    """Search what makes an engine faster per token, measured and confirmed."""
    from spark_prof.ab.command import container_note, engine_command
    from spark_prof.dashboards.tune_report import render_candidates, render_tune
    from spark_prof.tune.candidates import Allowed
    from spark_prof.tune.tune_engines import TuneSettings
    from spark_prof.tune.tune_run import TuneChoices, run_tune
    from spark_prof.tune.unrecorded import command_to_list

    if resume and out:
        raise CommandError("--resume names the folder; leave out --out")
    folder = options.run_folder("tune", resume or out, text, "minutes", minutes, timeout)
    sizes = options.whole_numbers(batch_sizes, "--batch-sizes 1,8", most=_MOST)
    settings = TuneSettings(folder, minutes, sizes, context, gate_tokens, text, timeout)
    allowed = Allowed(allow_requantize, allow_kv_dtype)
    for folder_of_results in earlier_results or ():
        if not folder_of_results.exists():
            raise CommandError(f"--known {folder_of_results}: there is no such folder")
    request = TuneChoices(
        allowed, tuple(sides or ()), tuple(skip or ()), recording, tuple(earlier_results or ()),
        resume is not None, only_list,
    )  # fmt: skip
    engine = (command_to_list if only_list else engine_command)(command or [])
    draw = partial(render_tune, layout=Layout("html"), typed=True)
    if (note := container_note(engine)) and not only_list:
        options.say(note)
    result, table = run_tune(engine, settings, request, options.say, draw)
    layout = options.run_layout(kind, limit, section)
    if only_list and not result.failure:
        print(render_candidates(table, layout, whole=all_sections))
        return 0
    drawn = render_tune(result, layout, typed=True, whole=all_sections)
    options.show_run(drawn, folder, result.failure)
    return 2 if result.failure else 0
