"""`spark-prof record`: makes a bundle from a live vLLM run, and shows it meanwhile."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_prof.cli.option_class import takes
from spark_prof.cli.options import next_report, say, whole_numbers
from spark_prof.cli.written import AnswerOption, WriteReceipt, print_json_answer, stdout_is_ours
from spark_prof.errors import CommandError
from spark_prof.profiler.settings import DEFAULT_STEPS, Settings
from spark_prof.profiler.terminal import BottomLines

if TYPE_CHECKING:
    from spark_prof.profiler.live_figures import LiveReader
    from spark_prof.traces.bundle import Bundle


_SECONDS = 0.5  # between two pictures of the same state


class LiveScreen:
    """Figures of the pieces in a folder, drawn over the last rows of stderr's terminal.

    A fault in it ends the screen, never the recording.
    """

    def __init__(self, pieces: Path) -> None:
        self._pieces = pieces
        self._lines: BottomLines | None = None
        self._reader: LiveReader | None = None
        self._drawn_at = 0.0
        self._state = ""
        self._ended = False

    def show(self, state: str) -> bool:
        """Draws the figures of now; False where nothing can be drawn."""
        if self._ended:
            return False
        try:
            return self._show(state)
        except Exception:
            self.close()
            return False

    def _show(self, state: str) -> bool:
        # What these import takes half a second, for which nothing is recorded yet.
        from spark_prof.dashboards.live_screen import ROWS, live_lines
        from spark_prof.profiler.live_figures import LiveReader

        self._lines = self._lines or BottomLines(sys.stderr.fileno(), ROWS)
        self._reader = self._reader or LiveReader(self._pieces)
        width = self._lines.columns
        if not width:
            return False
        now = time.monotonic()
        if state != self._state or now - self._drawn_at >= _SECONDS:
            color = not os.environ.get("NO_COLOR")
            self._lines.show(live_lines(state, self._reader.figures, width, color=color))
            self._state, self._drawn_at = state, now
        return True

    def clear(self) -> None:
        """Gives the rows back, until something is drawn again."""
        if self._lines:
            self._lines.close()
        self._drawn_at = 0.0

    def close(self) -> None:
        """Gives the rows back for good."""
        self._ended = True
        if self._reader:
            self._reader.close()
        self.clear()


def live_screen(pieces: Path) -> LiveScreen | None:
    """The screen of a recording; None where a person would not see it."""
    dumb = os.environ.get("TERM", "dumb") in ("", "dumb")
    visible = sys.stdout.isatty() and sys.stderr.isatty() and not dumb
    return LiveScreen(pieces) if visible else None


@contextmanager
def closing_screen(screen: LiveScreen | None) -> Iterator[None]:
    """Ends the screen, however what it shows has ended."""
    try:
        yield
    finally:
        if screen:
            screen.close()


class BackendOption(StrEnum):
    """What watches the kernels."""

    AUTO = "auto"
    CUPTI = "cupti"
    NSYS = "nsys"
    TORCH = "torch"


@dataclass(frozen=True)
class RecordOptions:
    """What `record` is asked for."""

    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND...",
            help="What starts vLLM: vllm serve, vllm bench, python script.py, docker run ...",
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="The bundle's folder; by default named by the time.",
        ),
    ] = None
    steps: Annotated[
        int, typer.Option(min=0, help="Steps to record; 0 records until the command ends.")
    ] = DEFAULT_STEPS
    warmup_steps: Annotated[
        int, typer.Option(min=0, help="Steps to let pass before recording begins.")
    ] = 0
    decode_only: Annotated[
        bool, typer.Option("--decode-only", help="Record only steps without any prefill.")
    ] = False
    steady: Annotated[
        bool,
        typer.Option(
            "--steady",
            help="Record --steps decode steps of each batch size, once their times have settled.",
        ),
    ] = False
    batch_sizes: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="With --steady: end when these batch sizes are done."),
    ] = None
    duty_cycle: Annotated[
        str | None,
        typer.Option(
            "--duty-cycle",
            "--stretches",
            metavar="STEPS/PERIOD",
            help="Profile so many steps of each period and only time the others; 1/1 profiles all. "
            "By default 8/256 on an NVIDIA GPU after the first steps of each kind; 25/50 with "
            "--steady.",
        ),
    ] = None
    backend: Annotated[BackendOption, typer.Option(help="What watches the kernels.")] = (
        BackendOption.AUTO
    )
    counters: Annotated[
        bool, typer.Option("--counters", help="Also sample the GPU's hardware counters.")
    ] = False
    nvtx: Annotated[
        bool, typer.Option("--nvtx", help="Also record the NVTX ranges of the command.")
    ] = False
    host: Annotated[
        bool,
        typer.Option(
            "--host", help="Also sample the Python stacks of its processes from outside (py-spy)."
        ),
    ] = False
    attach: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Record the server that listens there instead."),
    ] = None
    stop: Annotated[
        bool,
        typer.Option("--stop", help="With --attach: end the recording of that server, if any."),
    ] = False
    live: Annotated[
        bool,
        typer.Option(
            "--live/--no-live", help="Show times and kernels while it records, in a terminal."
        ),
    ] = True
    answer: AnswerOption = WriteReceipt.TEXT

    def check(self) -> None:
        """Refuses what does not go together."""
        if bool(self.command) == bool(self.attach):
            raise CommandError(
                "give either a command after -- or --attach URL, such as: "
                "spark-prof record -- vllm serve MODEL"
            )
        if self.batch_sizes is not None and not self.steady:
            raise CommandError("--batch-sizes belongs to --steady; give both")
        if self.steady and self.warmup_steps:
            raise CommandError(
                "--steady waits by itself until steps settle; leave out --warmup-steps"
            )
        cupti = self.backend in (BackendOption.AUTO, BackendOption.CUPTI)
        if self.nvtx and (self.attach or not cupti):
            raise CommandError(
                "--nvtx needs the CUPTI backend from the start of a command; leave it out "
                "(the nsys backend keeps NVTX in its own report)"
            )
        if self.host and self.attach:
            raise CommandError("--host needs a command that spark-prof starts; leave it out")

    def settings(self, folder: Path) -> Settings:
        """The recorder's settings for a bundle in that folder."""
        cycle = self.duty_cycle
        if cycle is None and (self.steady or self.host):
            cycle = "25/50"  # without recorded kernels a step has no gaps
        stretch, period = 0, 0
        if cycle is not None:
            numbers = whole_numbers(cycle, "--duty-cycle 50/1000", separator="/", repeats=True)
            if len(numbers) != 2 or numbers[0] > numbers[1]:
                raise CommandError(
                    f"{cycle!r:.40} is no duty cycle; give --duty-cycle 50/1000, say"
                )
            stretch, period = numbers
        sizes = self.batch_sizes
        return Settings(
            bundle=str(folder),
            steps=self.steps,
            warmup_steps=self.warmup_steps,
            decode_only=self.decode_only,
            steady=self.steady,
            batch_sizes=() if sizes is None else whole_numbers(sizes, "--batch-sizes 1,8"),
            stretch=stretch,
            period=period,
            sampled=cycle is None,
            backend=self.backend.value,
            counters=self.counters,
            nvtx=self.nvtx,
            host=self.host,
        )


@takes(RecordOptions)
def record(options: RecordOptions) -> int:
    """Run COMMAND, record every step of its vLLM engine, and write a bundle."""
    if options.stop:
        if options.command or not options.attach:
            raise CommandError("--stop belongs to --attach URL; give both, and no command")
        from spark_prof.profiler.attach import stop_recording

        stop_recording(options.attach, say)
        return 0
    options.check()
    folder = (options.out or Path(time.strftime("spark-prof-%Y%m%d-%H%M%S"))).absolute()
    bundle, code = _recorded(options, options.settings(folder))
    target, answer = options.out or folder.name, options.answer
    if print_json_answer(answer, "record", target, "bundle", bundle.meta.lost, None, bundle, code):
        return 1 if code else 0
    say(f"{steps_of(bundle.meta.tables)} in {target}; {next_report(target)}")
    if code:
        say(f"the command itself ended with exit code {code}")
    return 1 if code else 0


def _recorded(options: RecordOptions, settings: Settings) -> tuple[Bundle, int]:
    """The bundle of a command or a running server, and the exit code of the command."""
    text = options.answer is WriteReceipt.TEXT
    screen = live_screen(settings.pieces) if options.live and text else None
    if options.attach:
        if options.backend is BackendOption.NSYS:
            raise CommandError(
                "nsys cannot begin to watch a running server; start it under 'spark-prof record "
                "--backend nsys -- vllm serve ...'"
            )
        from spark_prof.profiler.attach import attach

        with closing_screen(screen):
            return attach(options.attach, settings, say, screen), 0
    from spark_prof.profiler.launcher import record as record_command

    with stdout_is_ours(options.answer), closing_screen(screen):
        return record_command(options.command or [], settings, say, screen)


def steps_of(tables: Mapping[str, int]) -> str:
    """How many steps there are; replicas of a model each have their own number."""
    counts = [n for name, n in tables.items() if name.startswith("steps-")]
    least, most = min(counts, default=0), max(counts, default=0)
    count = f"{least} steps" if least == most else f"{least} to {most} steps"
    return count + (f" on each of {len(counts)} ranks" if len(counts) > 1 else "")
