"""`spark-prof kernels bench` and `tune`: how fast kernels are beside others, and at their best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from spark_prof.cli.kernels import (
    DeviceOption,
    NameOption,
    Slot,
    SlotOption,
    group,
    own_candidate,
    own_slot,
    place_of,
)
from spark_prof.cli.options import FormatOption, Limit, OutOption, Section, laid_out, put, say
from spark_prof.errors import CommandError

if TYPE_CHECKING:
    from spark_prof.analyzers.recorded_work import RecordedRun
    from spark_prof.kernels.bench.request import BenchRequest
    from spark_prof.kernels.bench.results import BenchReport
    from spark_prof.kernels.registry import ReplacementKernel

_MOST_TOKENS = 16
"""At which kernels of your own are timed."""

ModelOption = Annotated[
    list[str] | None,
    typer.Option("--model", help="Part of a model's name whose layers are timed; repeatable."),
]
TokensOption = Annotated[
    list[int] | None, typer.Option(min=1, max=32, help="Rows of activations; repeatable.")
]
FromOption = Annotated[
    str | None,
    typer.Option("--from", help="Take the layers of this recording, and say what it ran there."),
]
_TOKENS = (1, 8, 16)
"""The dispatcher knows what lies between two measured numbers too."""
_BESIDE_S = 20
"""What measuring the machine, and ending what was begun, may take beside the search."""


@group.command(short_help="Time kernels beside others on an idle GPU.")
def bench(
    name: NameOption = None,
    slot: SlotOption = None,
    models: ModelOption = None,
    source: FromOption = None,
    tokens: TokensOption = None,
    seconds: Annotated[
        float, typer.Option(min=1, help="After which no further shape is begun.")
    ] = 240,
    tune: Annotated[
        bool, typer.Option("--tune", help="Then search better configurations, as tune.")
    ] = False,
    save: Annotated[
        bool, typer.Option("--save", help="Let the dispatcher go by this, as tune.")
    ] = False,
    only_list: Annotated[
        bool, typer.Option("--list", help="Say what would be timed; needs no GPU.")
    ] = False,
    format: FormatOption = None,  # noqa: A002 - the option's name is the contract's
    out: OutOption = None,
    limit: Limit = None,
    section: Section = None,
) -> None:
    """Time kernels beside others on a GPU that does nothing else; exit with 1 if one is wrong."""
    drawn_as = laid_out(format, out, limit, section)
    user_slot = own_slot(name, slot)
    if user_slot and (tune or save):
        raise CommandError("--tune and --save are for kernels of the list; leave out --slot")
    if user_slot in (Slot.NORM, Slot.ROUTER):
        raise CommandError(
            f"bench times matrices and experts; what a {user_slot.value} brings is told by"
            f" `spark-prof ab --b {user_slot.value}=FILE.py:FUNCTION`"
        )
    listed = () if user_slot else _raced_kernels(name)
    _check_tokens(listed, tokens or ())
    if not only_list:
        _on_gpu(listed)
    request, recorded = bench_request(listed, models or (), tokens or (), source, name)
    if user_slot:
        request = replace(request, custom=own_candidate(str(name), user_slot))
    from spark_prof.dashboards.kernel_races import render_bench, render_work

    if only_list:
        put(render_work(request, recorded, drawn_as), out)
        return
    report, right = _measured(replace(request, seconds=seconds, tune=tune))
    put(render_bench(report, drawn_as, recorded), out)
    if save:
        from spark_prof.kernels.bench.results import keep

        say(f"wrote {keep(report)}")
    if not right:
        raise typer.Exit(1)


@group.command(short_help="Find the best configurations on this GPU in minutes.")
def tune(
    name: NameOption = None,
    models: ModelOption = None,
    source: FromOption = None,
    tokens: TokensOption = None,
    minutes: Annotated[
        float, typer.Option(min=0.5, max=600, help="How long all of it may take.")
    ] = 4.5,
    format: FormatOption = None,  # noqa: A002 - the option's name is the contract's
    out: OutOption = None,
    limit: Limit = None,
    section: Section = None,
) -> None:
    """Time kernels on this GPU, search better configurations, and keep them for this machine."""
    drawn_as = laid_out(format, out, limit, section)
    listed = _raced_kernels(name)
    _check_tokens(listed, tokens or ())
    _on_gpu(listed)
    request, recorded = bench_request(listed, models or (), tokens or (), source, name)
    if not tokens:
        recorded_tokens = recorded.tokens if recorded else ()
        request = replace(request, tokens=sorted({*recorded_tokens, *_TOKENS}))
    seconds = 60 * minutes - _BESIDE_S
    report, right = _measured(replace(request, seconds=seconds, seconds_each=0.05, tune=True))
    from spark_prof.dashboards.kernel_races import render_bench
    from spark_prof.kernels.bench.results import keep, run_of

    put(render_bench(report, drawn_as, recorded), out)
    path = keep(report)
    rows = run_of(report).rows
    wins = sum(row.wins for row in rows)
    say(f"wrote {path}: the dispatcher takes the kernels for {wins} of {len(rows)} on this GPU")
    if not right:
        raise typer.Exit(1)


def _on_gpu(kernels: Sequence[ReplacementKernel]) -> None:
    """Makes sure of a GPU, and that kernels of the list compile for it.

    Raises:
        CommandError: there is none.
    """
    if place_of(DeviceOption.AUTO, kernels[0] if kernels else None)[1] != DeviceOption.CUDA.value:
        raise CommandError(
            "there is no GPU here that PyTorch can use, and times on the CPU would mean nothing"
        )


def _raced_kernels(name: str | None) -> Sequence[ReplacementKernel]:
    """The kernel of the list of that name, or all, as far as there is something to race them with.

    Raises:
        CommandError: nothing is comparable with that kernel, or there is none of that name.
    """
    from spark_prof.kernels.registry import ARCHITECTURES, find

    named = find(name)
    raced = [kernel for kernel in named if kernel.bench]
    if name is None:
        raced = [kernel for kernel in raced if kernel.targets == ARCHITECTURES]
    if not raced:
        raise CommandError(f"{named[0].name} has nothing to be timed beside; check can test it")
    return raced


def _check_tokens(kernels: Sequence[ReplacementKernel], tokens: Sequence[int]) -> None:
    """Refuses more rows of activations than all of the kernels take, or than peers are raced at."""
    most = min((kernel.tokens[1] for kernel in kernels), default=_MOST_TOKENS)
    if max(tokens, default=0) > most:
        raise CommandError(f"--tokens {max(tokens)}: these kernels take up to {most}; give fewer")


def bench_request(
    kernels: Sequence[ReplacementKernel],
    models: Sequence[str],
    tokens: Sequence[int],
    source: str | None,
    name: str | None,
) -> tuple[BenchRequest, RecordedRun | None]:
    """What to time: the layers of models, or those of a recording, which then is told too.

    Args:
        kernels: of the list; none for somebody's own.
        name: what was asked for; of a recording one name's slot alone is taken.

    Raises:
        CommandError: no layer fits.
    """
    from spark_prof.kernels.bench.request import KINDS, BenchRequest
    from spark_prof.kernels.bench.shapes import TOKENS, WeightFormat

    request = BenchRequest(models=models, tokens=tokens or TOKENS)
    if kernels:
        kinds = [kind for kind in KINDS if any(kernel.race == kind for kernel in kernels)]
        named = {form for kernel in kernels for form in kernel.formats}
        formats = [form for form in get_args(WeightFormat) if form in named]
        checks = [kernel.check for kernel in kernels]
        request = replace(request, only=kinds, formats=formats, kernels=checks)
    if source is None:
        if not request.pieces():
            raise CommandError(f"no layer is of a model named like {' or '.join(models)}")
        return request, None
    if models:
        raise CommandError("a recording is of one model: leave out --model or --from")
    from spark_prof.analyzers.recorded_work import recorded_work
    from spark_prof.datasets.opened import opened

    with opened(source) as bundle:
        run = recorded_work(bundle)
    slots = {kernel.slot for kernel in kernels}
    work = [layer for layer in run.work if name is None or not slots or layer.slots & slots]
    request = replace(
        request,
        tokens=tokens or run.tokens,
        work=[(layer.shape, layer.format) for layer in work],
        recorded={
            ((layer.shape, layer.format), count): recorded
            for layer in work
            for count, recorded in layer.recordings.items()
        },
    )
    if not request.pieces():
        layers = ", ".join(f"{'/'.join(layer.slots)} in {layer.format}" for layer in run.work)
        raise CommandError(f"{source} has no layer for {name}; its layers are {layers}")
    return request, run


def _measured(request: BenchRequest) -> tuple[BenchReport, bool]:
    """Times what was asked for, each line as soon as it is known.

    Returns:
        What was measured, and whether none of the kernels failed; one's own may abstain.

    Raises:
        CommandError: one's own kernel always abstained.
    """
    import torch

    from spark_prof.kernels.bench.machine_ceilings import measure_ceilings
    from spark_prof.kernels.bench.results import BenchCell, BenchReport, cell_line, machine_of
    from spark_prof.kernels.bench.run import run

    device = torch.device("cuda", torch.cuda.current_device())
    report = BenchReport(machine_of(device), measure_ceilings(device))
    for outcome in run(request, device):
        report.add(outcome)
        say(cell_line(outcome, report.ceilings) if isinstance(outcome, BenchCell) else outcome.what)
    results = [r for cell in report.cells for r in cell.results if r.contestant == cell.subject]
    failures = [result for result in results if result.failed]
    if request.custom is None:
        return report, not failures
    abstained = all(result.abstained for result in failures)
    if results and not any(result.us for result in results) and abstained:
        raise CommandError(f"{request.custom.name} was not timed anywhere: {failures[0].failed}")
    return report, abstained
