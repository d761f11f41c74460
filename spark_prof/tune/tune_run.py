"""A run of `spark-prof tune`, from the command of an engine to the result."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from spark_prof.ab.command import EngineCommand
from spark_prof.ab.engine_options import set_options
from spark_prof.ab.machine import check_memory, free_bytes
from spark_prof.ab.measuring import MeasuredShape
from spark_prof.ab.refusals import refuse, refuse_shapes, why_no_side
from spark_prof.ab.setting import put, put_page
from spark_prof.ab.sides import Side
from spark_prof.analyzers.summary import summarize
from spark_prof.datasets.opened import ceilings_for, opened
from spark_prof.errors import CommandError, one_line
from spark_prof.profiler.facts import nvml_gpu, processor
from spark_prof.profiler.interrupts import terminated_as_interrupt
from spark_prof.redact import redacted
from spark_prof.speculate.plan import OPTION, SpeculateOptions, default_drafts, drafts_at
from spark_prof.speculate.requests import recorded_acceptance
from spark_prof.speculate.run import run_speculate
from spark_prof.speculate.speculate_result import SpeculateResult
from spark_prof.swaps.swap_settings import kernel_folders
from spark_prof.traces.bundle import META_FILE, Bundle
from spark_prof.traces.claim import Claim
from spark_prof.traces.resolve import RESULT_FILE
from spark_prof.tune.bench import Budget
from spark_prof.tune.candidates import Allowed, candidates_of
from spark_prof.tune.drafts import (
    SOURCE,
    CommandDrafts,
    draft_candidates,
    earlier_table,
)
from spark_prof.tune.earlier_results import Like, digest_of, earlier_gains, with_earlier
from spark_prof.tune.engine_traits import recorded_facts
from spark_prof.tune.journal import Journal, Subject
from spark_prof.tune.search import Search
from spark_prof.tune.tune_engines import Engines, TuneSettings
from spark_prof.tune.tune_result import TuneResult, left_out, to_json, with_search_result
from spark_prof.tune.tune_trial import (
    Candidate,
    CandidateTable,
    EngineEndedError,
    TimeUpError,
    TuneTrial,
    UntriedCandidate,
    side_of,
    swaps_only,
)
from spark_prof.tune.unrecorded import unrecorded_table

_RECORDING = "recording"
_DRAFTS_FOLDER = "drafts"
_DRAFTS_SHARE = 0.4  # of the minutes, for what drafts cost
_DRAFTS_SECONDS = 20.0  # of each batch size
_MOST_DRAFTS = 7
_MEASURED_FIRST = (
    "what its drafts cost is measured first, as by spark-prof speculate; the best numbers are tried"
)
_NO_ACCEPTANCE = (
    "the command drafts tokens: say what is accepted, with --requests FILE or --acceptance "
    "0.8,0.6, or name a result of spark-prof speculate with --known"
)


@dataclass(frozen=True)
class TuneChoices:
    """What a person wants tried, and may be changed."""

    allowed: Allowed
    sides: tuple[str, ...] = ()  # further candidates, as `spark-prof ab --b` takes them
    skipped: tuple[str, ...] = ()  # candidates that are not tried
    recording: str = ""  # of the engine, in place of one that is made
    result_folders: tuple[Path, ...] = ()  # of earlier results, besides those beside it
    resume: bool = False  # goes on with what the folder holds
    only_list: bool = False  # nothing is tried
    drafts: bool = False  # the engine has a drafter


def run_tune(
    command: EngineCommand,
    settings: TuneSettings,
    choices: TuneChoices,
    say: Callable[[str], None],
    draw: Callable[[TuneResult], str],
    draw_drafts: Callable[[SpeculateResult], str] = lambda _: "",
) -> tuple[TuneResult, CandidateTable]:
    """Records, searches, confirms. What was found before a failure is kept, with its line.

    Args:
        draw_drafts: the page of what drafts cost, where the engine has a drafter.

    Raises:
        CommandError: the folder or a side cannot be; nothing was started.
        KeyboardInterrupt: after what was found has been kept.
    """
    sides = [side_of((words,)) for words in choices.sides]
    folders = kernel_folders(swap for side in sides for swap in side.swaps)
    settings = replace(settings, files=(*folders, *filter(None, [settings.text])))
    journal = Journal(settings.folder)
    if choices.only_list:  # starts nothing, and needs neither vLLM nor a GPU
        run = _TuneRun(command, settings, choices, journal, say)
        run.make_list()
        return run.result, run.table
    refuse(command, sides)
    shapes = [MeasuredShape("decode", size, settings.context) for size in settings.batch_sizes]
    refuse_shapes(command, [Side()], shapes, refuse_any=True)
    if choices.resume:
        journal.read()
    subject = Subject(
        tuple(redacted(list(command.text))),
        settings.batch_sizes,
        settings.context,
        _version(command),
        _gpu(),
    )
    with Claim(settings.folder, again=choices.resume):
        journal.begin(subject)
        run = _TuneRun(command, settings, choices, journal, say)
        try:
            if settings.drafting:
                settings = replace(settings, drafting=run.measure_drafts(draw_drafts))
            with terminated_as_interrupt(), Engines(command, settings, journal, say) as engines:
                run.go(engines)
                if run.result.finished:
                    engines.forget()
        except CommandError as error:
            run.result = replace(run.result, failure=str(error))
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt)
            why = "it was stopped" if stopped else one_line(f"{type(error).__name__}: {error}")
            run.result = replace(run.result, failure=f"{why}; --resume goes on with it")
            raise
        finally:
            put(settings.folder / RESULT_FILE, to_json(run.result))
            put_page(settings.folder, draw(run.result))
    return run.result, run.table


class _TuneRun:
    """One tune: its result until now."""

    def __init__(
        self,
        command: EngineCommand,
        settings: TuneSettings,
        choices: TuneChoices,
        journal: Journal,
        say: Callable[[str], None],
    ) -> None:
        self._command, self._settings, self._choices = command, settings, choices
        self._journal, self._say = journal, say
        self.table = CandidateTable((), ())
        self._table: CandidateTable | None = None  # of drafts
        subject = journal.subject
        self.result = TuneResult(
            model=command.model,
            engine=tuple(redacted(list(command.text))),
            minutes=settings.minutes,
            batch_sizes=settings.batch_sizes,
            context=settings.context,
            taken=datetime.now(UTC).isoformat(timespec="seconds"),
            gpu=subject.gpu if subject else "",
            vllm=subject.vllm if subject else "",
            model_digest="" if command.container else digest_of(command.model),
        )

    def measure_drafts(self, draw: Callable[[SpeculateResult], str]) -> CommandDrafts:
        """What drafts cost here: as an earlier result says, or measured in a share of the time.

        The table is of what that leaves to be tried.
        """
        settings, drafting = self._settings, self._drafting()
        result = self._earlier_drafts(drafting, self.result.gpu)
        if result is None:
            if not drafting.acceptance and not drafting.prompts:
                raise CommandError(_NO_ACCEPTANCE)
            config = dict(drafting.config)
            most = max(_MOST_DRAFTS, drafts_at(config, min(settings.batch_sizes)))
            number = len(list(settings.folder.glob(f"{_DRAFTS_FOLDER}*")))
            options = SpeculateOptions(
                settings.folder / f"{_DRAFTS_FOLDER}{f'-{number + 1}' if number else ''}",
                default_drafts(config, most), tuple(sorted(settings.batch_sizes)),
                (settings.context,), _DRAFTS_SHARE * settings.minutes, _DRAFTS_SECONDS,
                drafting.acceptance, drafting.prompts, at_once=2, proof=False,
                timeout=settings.timeout,
            )  # fmt: skip
            result = run_speculate(self._command, options, self._say, draw)
            if result.failure:
                raise CommandError(f"drafts were not measured: {result.failure}")
            self._say(f"what drafts cost is in {options.folder}")
        else:
            self._say(f"what drafts cost was measured {result.taken[:10]}; the best is confirmed")
        self._table = draft_candidates(result, drafting.config, settings.batch_sizes)
        return replace(drafting, acceptance=drafting.acceptance or result.acceptance)

    def _drafting(self) -> CommandDrafts:
        """What is known of drafts; of a recording that is named, too."""
        drafting = self._settings.drafting
        assert drafting is not None
        if self._choices.recording and not (drafting.acceptance or drafting.prompts):
            with opened(self._choices.recording) as bundle:
                return replace(drafting, acceptance=recorded_acceptance(bundle))
        return drafting

    def _earlier_drafts(self, drafting: CommandDrafts, gpu: str) -> SpeculateResult | None:
        """An earlier result of what drafts cost."""
        settings = self._settings
        beside = (settings.folder, settings.folder.absolute().parent)
        folders = (*beside, *self._choices.result_folders)
        return earlier_table(folders, Like(gpu, self._model), drafting, settings.batch_sizes)

    def go(self, engines: Engines) -> None:
        """Records, makes the table, searches."""
        first: tuple[TuneTrial, ...] = ()
        if self._table is not None:
            self._fill(self._table, Like(self.result.gpu, self._model, self.result.model_digest))
        else:
            with self._recording(engines) as (bundle, first):
                self._make_table(bundle)
        alone = self._too_large()
        search = Search(
            self.table.candidates, engines, self._say, first, alone, self._journal.add,
            frozenset(self.table.beside_layer),
        )  # fmt: skip
        search_result = None
        try:
            search_result = search.run()
            engines.close()
        finally:
            result = with_search_result(
                self.result, search_result or search.result(), self.table, self._command
            )
            self.result = replace(
                result, others=engines.other_load, finished=search_result is not None
            )

    @contextmanager
    def _recording(self, engines: Engines) -> Iterator[tuple[Bundle | None, tuple[TuneTrial, ...]]]:
        recordings = sorted(self._settings.folder.glob(f"{_RECORDING}*"))
        whole = [str(path) for path in recordings if (path / META_FILE).is_file()]
        if source := self._choices.recording or next(iter(whole), ""):
            with opened(source) as opened_bundle:
                yield opened_bundle, ()
            return
        folder = self._settings.folder / (
            f"{_RECORDING}-{len(recordings) + 1}" if recordings else _RECORDING
        )
        self._say("starting the engine as it is, to record it")
        try:
            bundle, first = engines.record(folder)
        except TimeUpError as error:
            raise CommandError(
                f"the engine as it is had not been measured after {engines.start_s:.0f} s; give "
                f"--minutes {Budget(engines).minutes_for(swaps=1, groups=0)} or more"
            ) from error
        except EngineEndedError as error:
            raise CommandError(f"the engine as it is cannot be measured: {error}") from error
        if bundle is None:
            line = "the engine was not recorded, so that only --try is tried"
            self.result = replace(self.result, missing=(*self.result.missing, line))
        yield bundle, first

    def make_list(self) -> None:
        """Makes the table, of a recording if there is one, and starts nothing."""
        if self._settings.drafting:
            table = CandidateTable((), (UntriedCandidate(OPTION, SOURCE, _MEASURED_FIRST),))
            drafting = self._drafting()
            if result := self._earlier_drafts(drafting, ""):
                table = draft_candidates(result, drafting.config, self._settings.batch_sizes)
            self._fill(table, Like("", self._model))
        elif self._choices.recording:
            with opened(self._choices.recording) as bundle:
                self._make_table(bundle)
        else:
            self._fill(
                unrecorded_table(self._command, self._choices.allowed), Like("", self._model)
            )

    @property
    def _model(self) -> str:
        return self._command.model

    def _make_table(self, bundle: Bundle | None) -> None:
        table, gpu = CandidateTable((), ()), self.result.gpu
        if bundle is not None:
            report = summarize(bundle, measured=ceilings_for(bundle, None))
            facts = replace(recorded_facts(bundle), batch_sizes=self._settings.batch_sizes)
            table = candidates_of(report, self._command, facts, self._choices.allowed)
            gpu = gpu or facts.gpu
        self._fill(table, Like(gpu, self._model, self.result.model_digest))

    def _fill(self, table: CandidateTable, like: Like) -> None:
        """Adds what a person asks for, and what is known before, to the table."""
        folder = self._settings.folder.absolute()
        earlier = earlier_gains((folder.parent, *self._choices.result_folders), like, folder)
        if earlier:
            faster = [row for row in earlier if row.gain]
            self._say(
                f"known of {'this GPU and' if like.gpu else 'this'} model: {len(faster)} that were "
                f"faster and {len(earlier) - len(faster)} that were not; each is measured again"
            )
        table = with_earlier(table, earlier, self._choices.allowed)
        self.table = _with_sides(table, self._choices, self._command)
        redacted_rows = tuple(
            replace(e, words=" ".join(redacted(e.words.split()))) for e in earlier
        )
        self.result = replace(self.result, left_out=left_out(self.table), earlier=redacted_rows)

    def _too_large(self) -> frozenset[str]:
        """Swaps for whose copies of weights there is no room beside the others'."""
        free, fitting, alone = free_bytes(), Side(), set()
        for candidate in self.table.candidates:
            if not swaps_only((candidate.words,)):
                continue
            extended = Side(fitting.swaps + side_of((candidate.words,)).swaps)
            if check_memory(self._command, Side(), extended, free)[0] is False:
                alone.add(candidate.words)
            else:
                fitting = extended
        return frozenset(alone)


_NO_SWAPS = "kernels are switched between steps of one token each: tune without the drafter"
_DRAFTS = ("--speculative-config", "--spec-method", "--spec-model", "--speculative-model")


def _with_sides(
    table: CandidateTable, choices: TuneChoices, command: EngineCommand
) -> CandidateTable:
    """The table with a person's own candidates first, without what no trial can measure."""
    named = [Candidate(words, "yours", "given with --try", "", None) for words in choices.sides]
    candidates: list[Candidate] = []
    left = list(table.left_out)
    for candidate in {c.words: c for c in (*named, *table.candidates)}.values():
        options = set_options(side_of((candidate.words,)).options)
        if choices.drafts and side_of((candidate.words,)).swaps:
            left.append(UntriedCandidate(candidate.words, candidate.source, _NO_SWAPS))
        elif not choices.drafts and any(name.startswith(_DRAFTS) for name in options):
            why = (
                "a step with drafts has no fixed number of tokens: spark-prof speculate measures it"
            )
            left.append(UntriedCandidate(candidate.words, candidate.source, why))
        elif candidate.words in choices.skipped:
            left.append(UntriedCandidate(candidate.words, candidate.source, "--skip names it"))
        elif why := why_no_side(command, side_of((candidate.words,)), anywhere=choices.only_list):
            left.append(UntriedCandidate(candidate.words, candidate.source, why))
        else:
            candidates.append(candidate)
    return replace(table, candidates=tuple(candidates), left_out=tuple(left))


def _version(command: EngineCommand) -> str:
    """Of vLLM in the command's Python; empty where that does not tell."""
    code = (
        "import importlib.metadata as m; "
        "print(m.version((m.packages_distributions().get('vllm') or ['vllm'])[0]))"
    )
    with ExitStack() as stack:
        argv = [*command.prefix, command.python, "-c", code]
        if command.container is not None:
            name = stack.enter_context(command.container.named())
            argv = command.container.command(name, command.python, ["-c", code])
        with suppress(OSError, subprocess.SubprocessError):
            process = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
            return one_line(process.stdout.strip())[:40]
    return ""


def _gpu() -> str:
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    with suppress(Exception):  # absent package, or no driver
        nvml, handle = nvml_gpu(first or "0")
        name = nvml.nvmlDeviceGetName(handle)
        return name.decode() if isinstance(name, bytes) else str(name)
    return processor()
