"""`spark-prof ab`: what a change to vLLM brings, side against side, and whether it agrees."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_prof.cli import options, run_options
from spark_prof.cli.option_class import takes
from spark_prof.dashboards.section import Layout
from spark_prof.errors import CommandError

if TYPE_CHECKING:
    from spark_prof.ab.sides import Side

_LONGEST_SERVE = 900


@dataclass(frozen=True)
class AbOptions:
    """The options of the command."""

    command: run_options.Command = None
    b: Annotated[
        str,
        typer.Option(
            "--b",
            metavar="SIDE",
            help="What is asked about: swaps (moe=spark_prof, lm_head=mxfp4, norm=my.py:build), "
            "backends (moe=marlin), NAME=VALUE, vLLM's options.",
        ),
    ] = ""
    a: Annotated[str, typer.Option("--a", metavar="SIDE", help="What it is compared with.")] = (
        "stock"
    )
    mxfp4_layers: Annotated[
        str, typer.Option(metavar="SLOT,SLOT", help="Adds SLOT=mxfp4 to side b.")
    ] = ""
    fp8_layers: Annotated[
        str, typer.Option(metavar="SLOT,SLOT", help="Adds SLOT=fp8 to side b.")
    ] = ""
    mode: Annotated[
        str,
        typer.Option(
            metavar="auto|one|two",
            help="Both sides in one engine, or engines of their own, started in turns.",
        ),
    ] = "auto"
    batch_sizes: run_options.BatchSizes = "1,2,4,8,16"
    prefill: Annotated[
        str, typer.Option(metavar="N,N", help="Lengths of prompts to measure; none for none.")
    ] = "128,1024"
    seconds: run_options.Seconds = 20.0
    context: run_options.Context = 128
    contexts: run_options.Contexts = ""
    gate_tokens: run_options.GateTokens = None
    text: run_options.Text = None
    starts: Annotated[
        int,
        typer.Option(
            min=2,
            help="Engines to start with --mode two; a multiple of 4, or 2 for a quick look, which "
            "has no interval.",
        ),
    ] = 4
    at_once: Annotated[
        bool,
        typer.Option(
            "--at-once",
            help="With --mode two: load all engines at once and measure them in turn; the GPU "
            "holds all of them.",
        ),
    ] = False
    no_record: Annotated[
        bool, typer.Option("--no-record", help="Do not record where the gain comes from.")
    ] = False
    time_anyway: Annotated[
        bool,
        typer.Option("--time-anyway", help="Take times after a failed gate; they do not count."),
    ] = False
    timeout: run_options.Timeout = 600.0
    kind: run_options.Kind = options.Format.TEXT
    out: run_options.Folder = None
    limit: options.Limit = None
    section: options.Section = None
    all_sections: options.AllSections = False
    apply: Annotated[
        bool,
        typer.Option(
            "--apply",
            help="Measure nothing: print the environment with which vllm serve runs side b, or "
            "that of a result.json given after --, and on stderr the options to add.",
        ),
    ] = False


@takes(AbOptions)
def ab(chosen: AbOptions) -> int:
    """Compare two ways to run a model: time per token, where it comes from, and agreement."""
    from spark_prof.ab.sides import parse_side, with_formats

    side = with_formats(parse_side(chosen.b), chosen.mxfp4_layers, chosen.fp8_layers)
    if chosen.apply:
        return _apply(side, chosen.command or [], chosen.kind)
    from spark_prof.ab.command import container_note, engine_command
    from spark_prof.ab.protocol import run_ab
    from spark_prof.ab.result import exit_code, outcome_of
    from spark_prof.ab.setting import Options
    from spark_prof.analyzers.finding import command as typed_command
    from spark_prof.dashboards.ab_report import render_ab
    from spark_prof.redact import redacted

    if chosen.starts % 4 and chosen.starts != 2:
        raise CommandError(
            f"--starts {chosen.starts}: give a multiple of 4, for the order A B B A, or 2"
        )
    folder = run_options.run_folder(
        "ab", chosen.out, chosen.text, "seconds", chosen.seconds, chosen.timeout
    )
    sizes = run_options.sizes_of(chosen.batch_sizes)
    lengths = run_options.contexts_of(chosen.contexts, chosen.context)
    none = chosen.prefill.strip() in ("", "none")
    prompts = (
        ()
        if none
        else options.whole_numbers(chosen.prefill, "--prefill 128", most=run_options.MOST)
    )
    settings = Options(
        folder,
        sizes,
        prompts,
        chosen.seconds,
        lengths,
        chosen.gate_tokens,
        not chosen.no_record,
        chosen.starts,
        chosen.timeout,
        chosen.time_anyway,
        chosen.text,
        chosen.at_once,
    )
    engine, other = engine_command(chosen.command or []), parse_side(chosen.a)
    if note := container_note(engine, (*other.options, *side.options)):
        options.say(note)
    result = run_ab(
        engine, other, side, chosen.mode, settings, sys.argv[1:], options.say,
        lambda interim: render_ab(interim, Layout("html")),
    )  # fmt: skip
    drawn = render_ab(
        result,
        run_options.run_layout(chosen.kind, chosen.limit, chosen.section),
        whole=chosen.all_sections,
    )
    run_options.show_run(drawn, folder, result.failure)
    if outcome_of(result) == "faster":
        formats = (("mxfp4", chosen.mxfp4_layers), ("fp8", chosen.fp8_layers))
        added = [f"{s.strip()}={f}" for f, slots in formats for s in slots.split(",") if s.strip()]
        behind = engine.text if engine.container else (str(folder / "result.json"),)
        words = ["--b", " ".join(filter(None, (chosen.b, *added))), "--", *redacted(list(behind))]
        options.say(f"to serve it: {typed_command('spark-prof', 'ab', '--apply', *words)}")
    return exit_code(result)


def _apply(side: Side, words: list[str], kind: options.Format) -> int:
    from spark_prof.ab.apply import (
        container_serve,
        engine_of_result,
        exports_of,
        lines_of,
        serve_line,
        side_of_result,
    )
    from spark_prof.ab.command import engine_command

    if kind not in (options.Format.TEXT, options.Format.JSON):
        raise CommandError(f"--apply prints no {kind.value}; give --format json, or none")
    result = Path(words[0]) if len(words) == 1 and not Path(words[0]).is_dir() else None
    served_side = side_of_result(result, side) if result else side
    engine = engine_of_result(result) if result else engine_command(words) if words else None
    if engine is not None and engine.container is None:
        raise CommandError("--apply takes one result.json, or the docker run that shall serve")
    started = shlex.join(container_serve(served_side, engine)) if engine else ""
    serve = started or serve_line(served_side)
    if kind is options.Format.JSON:
        record = {
            "environment": exports_of(served_side),
            "options": served_side.options,
            "serve": serve or "vllm serve MODEL",
        }
        print(json.dumps(record, indent=2))
        return 0
    if started:
        if not started.isprintable():
            raise CommandError("the command has a control character; --format json has it")
        print(started)
        options.say('start it with: eval "$(spark-prof ab --apply ...)"')
        return 0
    # The lines are evaluated: all of them, or none.
    for line in list(lines_of(served_side)):
        print(line)
    if serve:
        readable = serve.isprintable() and len(serve) <= _LONGEST_SERVE
        names = (word.partition("=")[0] for word in served_side.options)
        whole = next((name.partition(".")[0] for name in names if "." in name), "")
        beside = f"; where you give {whole} yourself, put it into that" if whole else ""
        options.say(
            f"start it with: {serve}{beside}"
            if readable
            else "its options cannot be shown in a line; --format json has them"
        )
    return 0
