"""`spark-prof speculate`: how many tokens to draft, measured in the live engine."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_prof.cli import options
from spark_prof.dashboards.section import Layout
from spark_prof.errors import CommandError

if TYPE_CHECKING:
    from spark_prof.speculate.acceptance import Acceptance

_MOST = 1_000_000
_MOST_DRAFTS = 64


def speculate(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND...",
            help="As for ab, with a drafter: vllm serve MODEL --speculative-config '{...}'.",
        ),
    ] = None,
    requests: Annotated[
        Path | None,
        typer.Option(
            "--requests",
            help="Your traffic, a prompt a line: text, or JSON with a prompt. Its acceptance "
            "decides.",
        ),
    ] = None,
    acceptance: Annotated[
        str,
        typer.Option(
            metavar="P,P",
            help="In place of --requests: the share of steps that accept each position with all "
            "before it, such as 0.8,0.6.",
        ),
    ] = "",
    recording: Annotated[
        str,
        typer.Option(
            "--from", metavar="SOURCE", help="In place of --requests: a recording with drafts."
        ),
    ] = "",
    server: Annotated[
        str,
        typer.Option(metavar="URL", help="In place of --requests: the server that runs."),
    ] = "",
    drafts: Annotated[
        str, typer.Option(metavar="N,N", help="Drafts of a step to measure; none always is, too.")
    ] = "1,2,3,4,5,6,7",
    batch_sizes: Annotated[
        str, typer.Option(metavar="N,N", help="Batch sizes that matter.")
    ] = "1,4,16",
    contexts: Annotated[
        str, typer.Option(metavar="N,N", help="Tokens of each prompt; the first is served.")
    ] = "128",
    minutes: Annotated[
        float, typer.Option(min=1, help="Time to spend in all, which is kept.")
    ] = 10.0,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="At most, on each batch size and context.")
    ] = 20.0,
    answer_tokens: Annotated[
        int, typer.Option(min=8, max=65536, help="That each of --requests generates at most.")
    ] = 256,
    at_once: Annotated[
        int,
        typer.Option(
            min=1, max=16, help="Engines alive together, measured in turns, where memory allows."
        ),
    ] = 2,
    no_proof: Annotated[
        bool, typer.Option("--no-proof", help="Do not serve the best and measure its tokens/s.")
    ] = False,
    timeout: options.Timeout = 600.0,
    kind: options.KindOption = options.Format.TEXT,
    out: options.FolderOption = None,
    limit: options.Limit = None,
    section: options.Section = None,
    all_sections: options.AllSections = False,
) -> int:
    """Find how many tokens to draft, by batch size: cost, acceptance, and the option to set."""
    from spark_prof.ab.command import container_note, engine_command
    from spark_prof.dashboards.speculate_report import render_speculate
    from spark_prof.speculate.plan import SpeculateOptions
    from spark_prof.speculate.requests import read_requests
    from spark_prof.speculate.run import run_speculate

    named = [bool(word) for word in (requests, acceptance, recording, server)]
    if sum(named) > 1:
        raise CommandError("give one of --requests, --acceptance, --from and --server")
    folder = options.run_folder("speculate", out, None, "minutes", minutes, timeout)
    counts = sorted(options.whole_numbers(drafts, "--drafts 1,2,3", most=_MOST_DRAFTS))
    sizes = sorted(options.whole_numbers(batch_sizes, "--batch-sizes 1,8", most=_MOST))
    lengths = options.whole_numbers(contexts, "--contexts 128", most=_MOST)
    prompts = read_requests(requests) if requests else ()
    plan = SpeculateOptions(
        folder, tuple(counts), tuple(sizes), lengths, minutes, seconds,
        _acceptance(acceptance, recording, server), prompts, answer_tokens, at_once,
        not no_proof, timeout,
    )  # fmt: skip
    engine = engine_command(command or [])
    if note := container_note(engine):
        options.say(note)
    draw = partial(render_speculate, layout=Layout("html"), typed=True)
    result = run_speculate(engine, plan, options.say, draw)
    layout = options.run_layout(kind, limit, section)
    drawn = render_speculate(result, layout, typed=True, whole=all_sections)
    options.show_run(drawn, folder, result.failure)
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
