"""`spark-prof doctor`: which kernels were chosen and why, and what could be reached at most."""

from __future__ import annotations

import math
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_prof.cli.option_class import takes
from spark_prof.cli.options import (
    AllSections,
    FormatOption,
    Limit,
    OutOption,
    Section,
    laid_out,
    put,
    say,
)
from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError

if TYPE_CHECKING:
    from spark_prof.analyzers.ceilings.ceiling_rows import CheckpointCeilings, Question
    from spark_prof.analyzers.fallbacks.audit_rows import Audit
    from spark_prof.analyzers.finding import Finding, TypedCommand
    from spark_prof.dashboards.doctor_report import Diagnosis
    from spark_prof.dashboards.section import Layout
    from spark_prof.rules.gpus import Gpu
    from spark_prof.traces.measured import MeasuredMachine
    from spark_prof.traces.readers.engine_log import EngineLog

_MOST = 1_000_000_000
_MOST_REASONS = 2


def question_of(
    batch: int, context: int = 0, drafts: int = 0, accepted: float | None = None, ranks: int = 1
) -> Question:
    """The use that the ceilings are for.

    Args:
        context: tokens that each sequence has in the KV cache, 0 for the weights alone.
        accepted: tokens that a step yields a sequence; None if all drafts are accepted.
    """
    from spark_prof.analyzers.ceilings.ceiling_rows import Question

    yielded = 1.0 + drafts if accepted is None else accepted
    if not (math.isfinite(yielded) and 1 <= yielded <= 1 + drafts):
        raise CommandError(
            f"--tokens-per-step {yielded:g} cannot be with --drafts {drafts}: a step yields 1 to "
            f"{1 + drafts} tokens"
        )
    return Question(batch, context, 1 + drafts, yielded, ranks)


def model_ceilings(
    folder: Path, question: Question, first: Gpu | None, measured: MeasuredMachine | None
) -> CheckpointCeilings:
    """The ceilings of the model in a folder.

    Args:
        folder: as `traces.checkpoint.read_checkpoint` takes it.
        measured: what a machine reached; its GPU is shown first and read at that bandwidth.
    """
    from spark_prof.analyzers.ceilings.checkpoint_ceilings import ceilings_of
    from spark_prof.rules.gpus import GPUS, SourcedFigure, find_gpu
    from spark_prof.traces.checkpoint import read_checkpoint

    here = find_gpu(measured.device, measured.compute_capability) if measured else None
    read = measured.value("read") if measured else None
    gpus = [first] if first else []
    if measured and here and read:
        figure = SourcedFigure(read, f"measured on this machine, {measured.taken}")
        gpus = [replace(here, read_bandwidth=figure), *(gpu for gpu in gpus if gpu != here)]
    short_names = {gpu.short for gpu in gpus}
    gpus += [gpu for gpu in GPUS if gpu.short not in short_names]
    ceilings = ceilings_of(read_checkpoint(folder), question, gpus)
    if not ceilings.choices[0].step.read:
        why = [line.rstrip(".") for line in ceilings.model.lost[:_MOST_REASONS]]
        raise CommandError(f"{folder} tells no weights: {'; '.join(why) or 'it holds none'}")
    return ceilings


@dataclass(frozen=True)
class DoctorOptions:
    """What `doctor` is asked for."""

    source: Annotated[
        str | None,
        typer.Argument(
            help="A bundle, a trace, the URL of one, a log (- for stdin) or a model; by default "
            "this machine."
        ),
    ] = None
    container: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- docker run ...",
            help="What starts vLLM in a container: what its image has is looked at.",
        ),
    ] = None
    log: Annotated[
        Path | None,
        typer.Option(help="What the engine printed, in the same run if there is a source."),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="A model's folder or name: how fast can it be at most?"
        ),
    ] = None
    gpu: Annotated[
        str | None, typer.Option(help="The GPU that a log or a model is for, such as gb10.")
    ] = None
    batch: Annotated[
        int, typer.Option(min=1, max=_MOST, help="Sequences at a time, for --model.")
    ] = 1
    context: Annotated[
        int,
        typer.Option(
            min=0, max=_MOST, help="Tokens of context of each; 0 asks for the weights alone."
        ),
    ] = 0
    drafts: Annotated[
        int, typer.Option(min=0, max=_MOST, help="Tokens drafted for each in a step.")
    ] = 0
    accepted: Annotated[
        float | None,
        typer.Option("--tokens-per-step", help="Tokens that a step yields; by default all."),
    ] = None
    ranks: Annotated[
        int, typer.Option("--tensor-parallel", min=1, max=_MOST, help="GPUs that share a model.")
    ] = 1
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure this machine, which takes half a minute.")
    ] = False
    rank: Annotated[
        int | None, typer.Option(help="The rank of the source; by default the lowest.")
    ] = None
    format: FormatOption = None
    out: OutOption = None
    all_sections: AllSections = False
    limit: Limit = None
    section: Section = None
    list_issues: Annotated[
        bool, typer.Option("--known-issues", help="List the known issues of vLLM, with dates.")
    ] = False
    fail_on_findings: Annotated[
        bool, typer.Option("--fail-on-findings", help="Exit with 1 if anything was found.")
    ] = False


@takes(DoctorOptions)
def doctor(options: DoctorOptions) -> None:
    """Say which kernels were chosen and why, settings that do nothing, and what would be faster."""
    layout = laid_out(options.format, options.out, options.limit, options.section)
    if options.list_issues:
        put(_known_issues(layout), options.out)
        return
    from spark_prof.dashboards.doctor_report import render_diagnosis

    diagnosis = diagnose(
        options.source,
        options.log,
        options.model,
        options.gpu,
        question_of(
            options.batch, options.context, options.drafts, options.accepted, options.ranks
        ),
        container=options.container,
        measure=options.measure,
        rank=options.rank,
    )
    put(render_diagnosis(diagnosis, layout, whole=options.all_sections), options.out)
    if options.fail_on_findings and diagnosis.findings:
        raise typer.Exit(1)


def diagnose(
    source: str | None = None,
    log: Path | None = None,
    model: str | None = None,
    gpu: str | None = None,
    question: Question | None = None,
    *,
    container: list[str] | None = None,
    measure: bool = False,
    rank: int | None = None,
) -> Diagnosis:
    """What the matter is with a recording, a log, a model's use of a GPU, or this machine.

    diagnose("serve.log", gpu="gb10").findings

    Args:
        source: what is recognised as one of them; this machine if nothing is given.
        question: the use that a model's lower bounds are for.
        container: what follows the source where that starts a container.
    """
    from spark_prof.analyzers.fallbacks.machine_checks import machine_findings
    from spark_prof.analyzers.startup.start_account import startup_of
    from spark_prof.analyzers.startup.start_memory import start_memory_of
    from spark_prof.dashboards.doctor_report import Diagnosis
    from spark_prof.profiler.installed import installed, installed_in
    from spark_prof.rules.gpus import find_gpu
    from spark_prof.traces.checkpoint import model_folder

    named = gpu_named(gpu)
    started = _started(source, container)
    if source == _PIPED:
        source, log = None, Path(_PIPED)
    source, read, model = _recognised(None if started else source, log, model)
    audit, findings = _audit_of(source, rank, read, named, log)
    measured = _measured() if measure else None
    ceilings = None
    if model:
        first = named or (find_gpu(audit.engine.gpu) if audit and audit.engine.gpu else None)
        ceilings = model_ceilings(model_folder(model), question or question_of(1), first, measured)
    machine = None
    if source is None and read is None and model is None and not measure:
        machine = installed_in(started) if started else installed()
        findings = machine_findings(machine)
    inputs = (source, read.path if read else None, model)
    subjects = [str(subject) for subject in inputs if subject is not None]
    return Diagnosis(
        ", ".join(subjects) or ("the container" if started else "this machine"),
        findings,
        audit,
        machine,
        ceilings,
        measured,
        named is not None,
        startup_of(read) if read else None,
        start_memory_of(read) if read else None,
    )


def _audit_of(
    source: str | None, rank: int | None, read: EngineLog | None, gpu: Gpu | None, log: Path | None
) -> tuple[Audit | None, tuple[Finding, ...]]:
    """What a recording or a log says of its engine, and the findings of that."""
    from spark_prof.analyzers.finding import command

    if source is not None:
        return _of_source(source, rank, read)
    if read is None:
        return None, ()
    on = ("--gpu", gpu.short) if gpu else ()
    return _of_log(read, gpu, command("spark-prof", "doctor", "--log", str(log or read.path), *on))


_PIPED = "-"
"""In place of a log: it comes in on stdin."""


def _read_log(log: Path) -> EngineLog:
    """A log, or what is piped in: `docker logs NAME 2>&1 | spark-prof doctor -`."""
    from spark_prof.traces.readers.engine_log import read_engine_log

    if str(log) != _PIPED:
        return read_engine_log(log)
    if sys.stdin.isatty():
        raise CommandError("no log comes in; try: docker logs NAME 2>&1 | spark-prof doctor -")
    with temporary_folder() as folder:
        path = folder / "log"
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        piped = read_engine_log(path, "standard input")
    if not piped.is_of_engine:
        raise CommandError(piped.lost[0])
    return piped


def _started(source: str | None, container: list[str] | None) -> list[str]:
    """The command line that starts a container; none where a source was given."""
    if not container or source is None:
        return []
    from spark_prof.profiler.commands import recognise

    words = [source, *container]
    try:
        kind = recognise(words).kind
    except CommandError as error:
        raise CommandError(
            "doctor takes one source, or -- docker run ... IMAGE; "
            + (
                f"here that may be: spark-prof doctor {container[0]}"
                if Path(container[0]).exists()
                else str(error)
            )
        ) from error
    if kind != "container":
        raise CommandError(
            f"{source} starts no container, and vLLM here is looked at by spark-prof doctor alone; "
            "give one source, or -- docker run ... IMAGE"
        )
    return words


def _recognised(
    source: str | None, log: Path | None, model: str | None
) -> tuple[str | None, EngineLog | None, str | None]:
    """The source as what it is: a recording, a log or a model; a log is read once."""
    from spark_prof.traces.checkpoint import is_model, model_folder
    from spark_prof.traces.formats import FormatError, UnknownFormatError
    from spark_prof.traces.readers.engine_log import read_engine_log
    from spark_prof.traces.resolve import LoadTest, resolve

    engine_log = _read_log(log) if log else None
    if source is None:
        return source, engine_log, model
    if model is None and is_model(source):
        return None, engine_log, source
    path = Path(source)
    try:
        input_source = resolve(source)
    except CommandError as error:
        # Whatever looked for a format of traces may have read it as a log already.
        read = error.log if isinstance(error, FormatError) else None
        if log is None and path.is_file() and (read := read or read_engine_log(path)).is_of_engine:
            return None, read, model
        if not path.exists():
            model_folder(source)  # says where a model of that name would be
        if isinstance(error, UnknownFormatError):
            raise CommandError(
                f"{source} is no log of vLLM or SGLang, no recording or trace, and no model; "
                "doctor reads one of these, or docker logs NAME 2>&1 | spark-prof doctor -"
            ) from error
        raise
    # What a server writes while it serves is what load generators print, too.
    if (
        isinstance(input_source, LoadTest)
        and log is None
        and (read := read_engine_log(path)).is_of_engine
    ):
        return None, read, model
    return source, engine_log, model


def gpu_named(name: str | None) -> Gpu | None:
    """The GPU that a person named; None where nobody did."""
    if name is None:
        return None
    from spark_prof.rules.gpus import GPUS, find_gpu

    named_gpu = find_gpu(name)
    if named_gpu is None:
        names = ", ".join(gpu.short for gpu in GPUS)
        raise CommandError(f"--gpu {name} is not known; known are {names}")
    return named_gpu


def _of_source(
    source: str, rank: int | None, log: EngineLog | None
) -> tuple[Audit | None, tuple[Finding, ...]]:
    from spark_prof.analyzers.summary import summary_of
    from spark_prof.datasets.opened import opened

    with opened(source) as bundle:
        report = summary_of(bundle, rank, log).report
        return report.audit, report.findings


def _of_log(
    log: EngineLog, gpu: Gpu | None, verify: TypedCommand
) -> tuple[Audit, tuple[Finding, ...]]:
    from spark_prof.analyzers.fallbacks.audit import audit_of_log
    from spark_prof.analyzers.finding import keyed
    from spark_prof.analyzers.findings.audit_findings import findings_of_audit

    audit = audit_of_log(log, gpu.name if gpu else "", gpu.compute_capability if gpu else "")
    return audit, keyed(findings_of_audit(audit), verify)


def _known_issues(drawn_as: Layout) -> str:
    from spark_prof.analyzers.fallbacks.known_issues import every_known_issue
    from spark_prof.dashboards.doctor_report import render_known_issues

    return render_known_issues(every_known_issue(), drawn_as)


def _measured() -> MeasuredMachine:
    from spark_prof.traces.measured import keep_measured

    try:
        from spark_prof.profiler.measure import measure
    except ImportError as error:
        raise CommandError(
            f"measuring needs torch ({error}); run it with the Python that runs vLLM"
        ) from error
    ceilings = measure(say)
    say(f"wrote {keep_measured(ceilings)}")
    return ceilings
