"""`spark-prof speculate`: how many tokens to draft, measured in the live engine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from spark_prof.cli import options, run_options
from spark_prof.cli.option_class import takes
from spark_prof.dashboards.section import Layout
from spark_prof.errors import CommandError

if TYPE_CHECKING:
    from spark_prof.speculate.acceptance import Acceptance

_MOST_DRAFTS = 64


@dataclass(frozen=True)
class SpeculateCommand:
    """The options of the command."""

    command: run_options.Command = None
    requests: run_options.Requests = None
    acceptance: run_options.Acceptance = ""
    recording: Annotated[
        str,
        typer.Option(
            "--from", metavar="SOURCE", help="In place of --requests: a recording with drafts."
        ),
    ] = ""
    server: Annotated[
        str,
        typer.Option(metavar="URL", help="In place of --requests: the server that runs."),
    ] = ""
    drafts: Annotated[
        str, typer.Option(metavar="N,N", help="Drafts of a step to measure; none always is, too.")
    ] = "1,2,3,4,5,6,7"
    batch_sizes: run_options.BatchSizes = "1,4,16"
    context: run_options.Context = 128
    contexts: run_options.Contexts = ""
    minutes: run_options.Minutes = 10.0
    seconds: run_options.Seconds = 20.0
    answer_tokens: Annotated[
        int, typer.Option(min=8, max=65536, help="That each of --requests generates at most.")
    ] = 256
    at_once: Annotated[
        int,
        typer.Option(
            min=1, max=16, help="Engines alive together, measured in turns, where memory allows."
        ),
    ] = 2
    no_proof: Annotated[
        bool, typer.Option("--no-proof", help="Do not serve the best and measure its tokens/s.")
    ] = False
    gate_tokens: run_options.GateTokens = None
    timeout: run_options.Timeout = 600.0
    kind: run_options.Kind = options.Format.TEXT
    out: run_options.Folder = None
    limit: options.Limit = None
    section: options.Section = None
    all_sections: options.AllSections = False


@takes(SpeculateCommand)
def speculate(chosen: SpeculateCommand) -> int:
    """Find how many tokens to draft, by batch size: cost, acceptance, and the option to set."""
    from spark_prof.ab.command import container_note, engine_command
    from spark_prof.dashboards.speculate_report import render_speculate
    from spark_prof.speculate.plan import SpeculateOptions
    from spark_prof.speculate.requests import read_requests
    from spark_prof.speculate.run import run_speculate

    named = [
        bool(word) for word in (chosen.requests, chosen.acceptance, chosen.recording, chosen.server)
    ]
    if sum(named) > 1:
        raise CommandError("give one of --requests, --acceptance, --from and --server")
    folder = run_options.run_folder(
        "speculate", chosen.out, None, "minutes", chosen.minutes, chosen.timeout
    )
    counts = sorted(options.whole_numbers(chosen.drafts, "--drafts 1,2,3", most=_MOST_DRAFTS))
    sizes = sorted(run_options.sizes_of(chosen.batch_sizes))
    lengths = run_options.contexts_of(chosen.contexts, chosen.context)
    prompts = read_requests(chosen.requests) if chosen.requests else ()
    plan = SpeculateOptions(
        folder,
        tuple(counts),
        tuple(sizes),
        lengths,
        chosen.minutes,
        chosen.seconds,
        _acceptance(chosen.acceptance, chosen.recording, chosen.server),
        prompts,
        chosen.answer_tokens,
        chosen.at_once,
        not chosen.no_proof,
        chosen.timeout,
        chosen.gate_tokens,
    )
    engine = engine_command(chosen.command or [])
    if note := container_note(engine):
        options.say(note)
    draw = partial(render_speculate, layout=Layout("html"), typed=True)
    result = run_speculate(engine, plan, options.say, draw)
    layout = run_options.run_layout(chosen.kind, chosen.limit, chosen.section)
    drawn = render_speculate(result, layout, typed=True, whole=chosen.all_sections)
    run_options.show_run(drawn, folder, result.failure)
    return 2 if result.failure else 0


def _acceptance(rates: str, recording: str, server: str) -> Acceptance | None:
    from spark_prof.datasets.opened import opened
    from spark_prof.speculate.acceptance import given_acceptance
    from spark_prof.speculate.requests import recorded_acceptance, served_acceptance

    if rates:
        return given_acceptance(rates)
    if server:
        return served_acceptance(server)
    if not recording:
        return None
    with opened(recording) as bundle:
        return recorded_acceptance(bundle)
