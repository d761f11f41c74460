"""`spark-prof tune`: tries what may make an engine faster, and says what does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from spark_prof.cli import options, run_options
from spark_prof.cli.option_class import takes
from spark_prof.dashboards.section import Layout
from spark_prof.errors import CommandError


@dataclass(frozen=True)
class TuneOptions:
    """The options of the command."""

    command: run_options.Command = None
    minutes: run_options.Minutes = 20.0
    batch_sizes: run_options.BatchSizes = "1,8"
    context: run_options.Context = 128
    recording: Annotated[
        str,
        typer.Option(
            "--from", metavar="SOURCE", help="A recording of the engine; else one is made."
        ),
    ] = ""
    sides: Annotated[
        list[str] | None,
        typer.Option(
            "--try", metavar="SIDE", help="Also try this, written as for ab --b; repeatable."
        ),
    ] = None
    earlier_results: Annotated[
        list[Path] | None,
        typer.Option(
            "--known",
            metavar="FOLDER",
            help="Start from earlier results of ab and tune in here, too; each is measured again.",
        ),
    ] = None
    skip: Annotated[
        list[str] | None,
        typer.Option(metavar="SIDE", help="Do not try this, by its words in --list; repeatable."),
    ] = None
    allow_requantize: Annotated[
        bool, typer.Option("--allow-requantize", help="Weights may be quantized at load.")
    ] = False
    allow_kv_dtype: Annotated[
        bool, typer.Option("--allow-kv-dtype", help="The KV cache may get another format.")
    ] = False
    only_list: Annotated[
        bool,
        typer.Option("--list", help="Start nothing: print what would be tried, and why not more."),
    ] = False
    requests: run_options.Requests = None
    acceptance: run_options.Acceptance = ""
    text: run_options.Text = None
    gate_tokens: run_options.GateTokens = None
    timeout: run_options.Timeout = 600.0
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Go on with a tune that ended early.")
    ] = None
    kind: run_options.Kind = options.Format.TEXT
    out: run_options.Folder = None
    limit: options.Limit = None
    section: options.Section = None
    all_sections: options.AllSections = False


@takes(TuneOptions)
def tune(chosen: TuneOptions) -> int:
    """Search what makes an engine faster per token, measured and confirmed."""
    from spark_prof.ab.command import container_note, engine_command
    from spark_prof.dashboards.speculate_report import render_speculate
    from spark_prof.dashboards.tune_report import render_candidates, render_tune
    from spark_prof.tune.candidates import Allowed
    from spark_prof.tune.drafts import drafting_of
    from spark_prof.tune.tune_engines import TuneSettings
    from spark_prof.tune.tune_run import TuneChoices, run_tune
    from spark_prof.tune.unrecorded import command_to_list

    if chosen.resume and chosen.out:
        raise CommandError("--resume names the folder; leave out --out")
    folder = run_options.run_folder(
        "tune", chosen.resume or chosen.out, chosen.text, "minutes", chosen.minutes, chosen.timeout
    )
    engine = (command_to_list if chosen.only_list else engine_command)(chosen.command or [])
    drafting = drafting_of(engine, chosen.requests, chosen.acceptance)
    settings = TuneSettings(
        folder,
        chosen.minutes,
        run_options.sizes_of(chosen.batch_sizes),
        chosen.context,
        chosen.gate_tokens,
        chosen.text,
        chosen.timeout,
        drafting=drafting,
    )
    allowed = Allowed(chosen.allow_requantize, chosen.allow_kv_dtype)
    for folder_of_results in chosen.earlier_results or ():
        if not folder_of_results.exists():
            raise CommandError(f"--known {folder_of_results}: there is no such folder")
    request = TuneChoices(
        allowed,
        tuple(chosen.sides or ()),
        tuple(chosen.skip or ()),
        chosen.recording,
        tuple(chosen.earlier_results or ()),
        chosen.resume is not None,
        chosen.only_list,
        drafting is not None,
    )
    draw = partial(render_tune, layout=Layout("html"), typed=True)
    if (note := container_note(engine)) and not chosen.only_list:
        options.say(note)
    draw_drafts = partial(render_speculate, layout=Layout("html"), typed=True)
    result, table = run_tune(engine, settings, request, options.say, draw, draw_drafts)
    layout = run_options.run_layout(chosen.kind, chosen.limit, chosen.section)
    if chosen.only_list and not result.failure:
        print(render_candidates(table, layout, whole=chosen.all_sections))
        return 0
    drawn = render_tune(result, layout, typed=True, whole=chosen.all_sections)
    run_options.show_run(drawn, folder, result.failure)
    return 2 if result.failure else 0
