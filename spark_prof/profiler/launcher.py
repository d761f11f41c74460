"""Starts a command that runs vLLM, records it, and leaves a bundle."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError
from spark_prof.profiler import child as child_process
from spark_prof.profiler.alive import Pulse
from spark_prof.profiler.commands import Command, recognise, server_port, with_plugin_allowed
from spark_prof.profiler.compose import read_run, service_of
from spark_prof.profiler.container import (
    BUNDLE_TARGET,
    STAGING_TARGET,
    Mount,
    alone,
    container_command,
    missing_gpu,
    refuse_image,
    stage_package,
    without_terminal,
)
from spark_prof.profiler.container_run import open_to_container
from spark_prof.profiler.interrupts import Interrupts, interrupts
from spark_prof.profiler.nsys_record import REPORT, NsysRun, plan_nsys
from spark_prof.profiler.program import without_setsid
from spark_prof.profiler.py_spy_program import check_allowed, find_py_spy
from spark_prof.profiler.ray import with_ray_copies
from spark_prof.profiler.settings import ENVIRONMENT, Settings
from spark_prof.profiler.stack_sampler import StackSampler
from spark_prof.profiler.terminal import Terminal
from spark_prof.profiler.watch import Screen, Watcher
from spark_prof.profiler.why_nothing import has_begun, why_nothing
from spark_prof.rules.environment import version_of
from spark_prof.traces.assemble import assemble, with_later_engines
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.chunks import (
    LATER_ENGINE,
    RECORDING_FILE,
    boot_id,
    pid_namespace,
    pieces_folder,
    write_json,
)
from spark_prof.traces.claim import Claim, is_claimed
from spark_prof.traces.nsys_tool import Say

OLDEST_CUPTI = (13, 4)
"""The first release whose libcupti is known to sample counters under a CUDA 13.0 driver."""

_LIBRARY = "libcupti.so.13"
_TOOLKITS = Path("/usr/local")


def newest_cupti(toolkits: Path = _TOOLKITS) -> Path | None:
    """The folder of the newest libcupti 13.4 or later, installed by pip or with a CUDA toolkit."""
    candidates: list[tuple[tuple[int, ...], Path]] = []
    with suppress(PackageNotFoundError):
        package = distribution("nvidia-cuda-cupti")
        files = [file for file in package.files or () if file.name == _LIBRARY]
        paths = (Path(str(package.locate_file(file))).resolve() for file in files)
        candidates += [
            (version_of(package.version), path.parent) for path in paths if path.exists()
        ]
    for folder in toolkits.glob("cuda-*/extras/CUPTI/lib64"):
        if (folder / _LIBRARY).exists():
            candidates.append((version_of(folder.parents[2].name.removeprefix("cuda-")), folder))
    new = [item for item in candidates if item[0] >= OLDEST_CUPTI]
    return max(new, default=((), None), key=lambda item: item[0])[1]


def with_cupti(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment with the folder before all others where libraries are looked for.

    With such a libcupti a forked process crashes in its first call of CUDA (seen with 13.4 on an
    H100), so that vLLM is asked to start its processes anew, unless the user asked otherwise.
    """
    paths = [str(folder), *filter(None, [environment.get("LD_LIBRARY_PATH")])]
    anew = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    return anew | dict(environment) | {"LD_LIBRARY_PATH": os.pathsep.join(paths)}


_SMALLEST_DISK = 128 << 20
_NO_STEP_SECONDS = 1.0
"""How long is waited for processes that have begun no step; the first may begin just now."""


def prepare_bundle(folder: Path, command: Sequence[str], settings: Settings) -> Claim:
    """Makes the folder that the recorded processes write into; its claim keeps others out."""
    claim = Claim(folder)
    try:
        pieces_folder(folder).mkdir()  # at once or not at all, whatever other hosts do
        free = shutil.disk_usage(folder).free
        who = {"pid": os.getpid(), "pid_namespace": pid_namespace()}
        who["locked_in"] = boot_id() if is_claimed(folder) else ""
        value = {"command": list(command), "settings": asdict(settings)} | who
        write_json(pieces_folder(folder), RECORDING_FILE, value)
        claim.when_released(Pulse(pieces_folder(folder)).end)
    except OSError as error:
        if not isinstance(error, FileExistsError):
            remove_empty(folder)
        claim.release()
        why = error.strerror or error
        raise CommandError(f"cannot write to {folder}: {why}; choose another --out") from error
    if free < _SMALLEST_DISK:
        remove_empty(folder)
        claim.release()
        raise CommandError(f"only {free >> 20} MiB are free for {folder}; a recording needs more")
    return claim


def remove_empty(folder: Path, claim: Claim | None = None) -> None:
    """Removes a bundle folder in which nothing was recorded, and that nobody else has made anew."""
    with suppress(OSError):
        if (claim is not None and not claim.intact()) or has_steps(pieces_folder(folder)):
            return
        shutil.rmtree(pieces_folder(folder), ignore_errors=True)
        left = list(folder.iterdir())
        if all(path.stem == REPORT for path in left):  # no bundle, but nsys wrote its report
            for path in left:
                path.unlink()
            folder.rmdir()


def has_steps(pieces: Path) -> bool:
    """Whether any recorded step has been written."""
    return any(pieces.glob("*.steps.npy"))


def quarters(say: Say) -> Callable[[int, int], None]:
    """What is told which of all pieces is being written, and says so four times."""

    def progress(pieces: int, total: int) -> None:
        if total > 4 and 4 * pieces // total > 4 * (pieces - 1) // total:
            say(f"writing piece {pieces} of {total}")

    return progress


def make_bundle(folder: Path, watcher: Watcher, say: Say, state: str) -> Bundle:
    """Assembles the bundle, with progress where it takes long."""
    say("writing the bundle")
    try:
        return assemble(folder, state=state, progress=quarters(say), ends=watcher.ends())
    except CommandError:
        watcher.check()
        raise


def record(
    argv: Sequence[str], settings: Settings, say: Say, screen: Screen | None = None
) -> tuple[Bundle, int]:
    """Runs the command and records it into a folder that it makes; its exit code as well."""
    command = recognise(argv)
    for note in (command.note, _container_note(command)):
        if note:
            say(note)
    settings = replace(settings, run=settings.run or secrets.token_hex(8))
    py_spy = _py_spy_for(command) if settings.host else ""
    nsys = plan_nsys(command, settings, say)
    with interrupts() as received, prepare_bundle(settings.folder, argv, settings) as claim:
        pieces, port = pieces_folder(claim.folder), server_port(command)
        watcher = Watcher(pieces, settings.watched_steps, say, port=port, screen=screen)
        try:
            with temporary_folder() as staging, ExitStack() as stack:
                stage_package(staging)
                started = command._replace(argv=tuple(nsys.argv)) if nsys else command
                child = _start(started, settings, staging)
                stacks = StackSampler(pieces, py_spy) if py_spy else None
                run = _RecordedCommand(command, child, watcher, say, nsys, claim, received, stacks)
                stack.callback(run.end)
                bundle, code = run.follow()
            bundle = with_later_engines(bundle)
            if LATER_ENGINE in bundle.meta.lost:
                say(LATER_ENGINE)
            return bundle, code
        finally:
            remove_empty(settings.folder, claim)


def _py_spy_for(command: Command) -> str:
    """The py-spy that may look into this command's processes; else a CommandError."""
    if command.kind == "container":
        raise CommandError(
            "--host sees processes of this machine; run spark-prof inside the container, started "
            "with --cap-add SYS_PTRACE"
        )
    program = find_py_spy()
    check_allowed(program)
    return program


def _container_note(command: Command) -> str:
    """What may be missing in a container that is started; CommandError for a vLLM too old."""
    if command.kind != "container":
        return ""
    run = read_run(command.argv)
    service = service_of(run)
    refuse_image(service.image if service else run.target)
    publishes = {option.name for option in run.options} & {"-p", "--publish", "--service-ports"}
    if service and service.publishes and not publishes:
        return "the service's ports are not published: add --service-ports to reach its server"
    return missing_gpu(run)


class _RecordedCommand:
    """One command while it is recorded."""

    def __init__(
        self,
        command: Command,
        child: subprocess.Popen[bytes],
        watcher: Watcher,
        say: Say,
        nsys: NsysRun | None,
        claim: Claim,
        received: Interrupts,
        stacks: StackSampler | None,
    ) -> None:
        self._stacks = stacks
        self._command = command
        self._child = child
        self._watcher = watcher
        self._say = say
        self._nsys = nsys
        self._claim = claim
        self._received = received
        self._terminal: Terminal | None = None
        self._interrupted = False
        self._vanished: CommandError | None = None
        self._bundle: Bundle | None = None

    def follow(self) -> tuple[Bundle, int]:
        """Waits for the window and for the command's end; the bundle and its exit code."""
        watcher, child = self._watcher, self._child
        try:
            self._terminal = Terminal(child, self._say, watcher.clear)
            self._received.heed()
            if self._stacks is not None:
                self._stacks.start()
            self._wait_for_window()
            watcher.clear()
            if child.poll() is None and has_steps(watcher.pieces):
                self._close_window()
            child.wait()
        except KeyboardInterrupt:
            self._interrupted = True
            if self._bundle is None and not self._has_vanished():
                self._say("ending the recording and keeping what there is")
                self._flush()
        self.end()
        code = child.returncode
        watcher.ended(child.pid, code)
        if self._bundle is None:
            self._bundle = self._bundle_at_end(code)
        return self._bundle, 0 if self._interrupted else code

    def _wait_for_window(self) -> None:
        watcher, child = self._watcher, self._child
        while child.poll() is None and not watcher.all_finished():
            if self._has_vanished():
                self._say(f"{self._claim.folder} was removed or moved; the command goes on without")
                child.wait()
                return
            watcher.check()
            watcher.show()
            watcher.wait(lambda: child.poll() is not None, 0.2)

    def _close_window(self) -> None:
        """Makes the bundle while the command goes on."""
        watcher, child = self._watcher, self._child
        watcher.stop()
        watcher.wait_for_engine()
        # Ranks that end before the window is full were shut down: so is the command.
        if self._nsys is not None and self._nsys.by_ray:
            self._say("Ray's workers write their reports when they end; end the command")
        elif watcher.full() or not watcher.wait(lambda: child.poll() is not None, 10.0):
            with self._received.finishing_bundle():
                if self._nsys is not None:
                    self._nsys.stop()
                    self._nsys.collect()
                self._finish_stacks()
                try:
                    self._bundle = make_bundle(self._claim.folder, watcher, self._say, "complete")
                except CommandError as error:  # a full disk ends no server
                    self._say(f"{error}; the command goes on, Ctrl-C ends it")
                    return
            self._say(f"{self._bundle.path} is ready; the command goes on, Ctrl-C ends it")

    def _flush(self) -> None:
        """Lets every rank write its last piece before the command hears of the end."""
        watcher, received, begun = self._watcher, self._received, time.monotonic()

        def enough() -> bool:
            waited = time.monotonic() - begun
            patience = received.patience.flush_s if has_begun(watcher.pieces) else _NO_STEP_SECONDS
            ended = watcher.all_finished() if self._child.poll() is None else watcher.settled()
            return ended or waited > patience

        watcher.stop()
        if self._stacks is not None:
            self._stacks.ask_to_end()
        watcher.wait(enough, received.patience.flush_s)
        watcher.wait_for_engine(received.patience.engine_s)
        if has_steps(watcher.pieces):
            if self._nsys is not None:
                self._nsys.stop()
            elif received.urgent:  # whoever sent it may kill this next
                self._bundle = self._make(self._state(0))

    def _bundle_at_end(self, code: int) -> Bundle:
        if self._has_vanished() and self._vanished:
            raise self._vanished
        watcher = self._watcher
        patience = self._received.patience
        watcher.wait(lambda: watcher.settled() or self._received.count > 2, patience.flush_s)
        if not has_steps(watcher.pieces):
            watcher.check()
            raise CommandError(why_nothing(self._command, watcher, code, self._interrupted))
        if self._nsys is not None:
            self._nsys.collect()
        return self._make(self._state(code))

    def _make(self, state: str) -> Bundle:
        with self._received.finishing_bundle():
            self._finish_stacks()
            return make_bundle(self._claim.folder, self._watcher, self._say, state)

    def _finish_stacks(self) -> None:
        """Has what py-spy saw written before the bundle is made."""
        if self._stacks is not None:
            self._stacks.finish(self._received.patience.flush_s)

    def _state(self, code: int) -> str:
        """Complete where the recording holds what was asked for, and nothing ended it early."""
        if not self._interrupted:
            return "interrupted" if code else "complete"
        full = self._watcher.full() or not (self._watcher.steps or self._received.hung_up)
        return "complete" if full else "interrupted"

    def _has_vanished(self) -> bool:
        self._vanished = self._vanished or vanished_folder(self._claim)
        return self._vanished is not None

    def end(self) -> None:
        """Ends the command as the terminal would, if it runs, and takes the terminal back."""
        received, child = self._received, self._child
        received.defer()
        if self._stacks is not None:
            self._stacks.ask_to_end()
        patience = received.patience
        whole = self._nsys is not None or received.urgent or received.count > 2
        family = child_process.descendants(child.pid) if whole else ()
        child_process.end_child(child, patience, family, self._send, lambda: received.count)
        if self._terminal is not None:
            self._terminal.close()

    def _send(self, sent: int) -> None:
        """Sends the command's group a signal; sudo's processes get none from another user."""
        try:
            os.killpg(self._child.pid, sent)
        except PermissionError:
            if self._terminal is not None and self._terminal.give():
                self._say("the command belongs to another user: press Ctrl-C again to end it")


def vanished_folder(claim: Claim) -> CommandError | None:
    """What is said where the folder that is recorded into was removed, moved or emptied."""
    if claim.intact() and (pieces_folder(claim.folder) / RECORDING_FILE).exists():
        return None
    return CommandError(
        f"{claim.folder} was removed or moved while it was recorded into, and the recording "
        "is lost; record again, and leave the folder in place until the bundle is ready"
    )


def _start(command: Command, settings: Settings, staging: Path) -> subprocess.Popen[bytes]:
    argv, environment = _launch(command, settings, staging, os.environ)
    words = without_setsid(argv)
    return child_process.start(words, environment, session=words != argv)


def _launch(
    command: Command, settings: Settings, staging: Path, environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The command line and environment that record."""
    if command.kind == "container":
        open_to_container([settings.folder, pieces_folder(settings.folder)], command.argv)
        inside = {ENVIRONMENT: replace(settings, bundle=BUNDLE_TARGET).to_json()}
        words = alone(command.argv)
        if sys.stdin.isatty() or read_run(words).start.compose:
            words = without_terminal(words)
        mounts = (
            Mount(staging, STAGING_TARGET),
            Mount(settings.folder, BUNDLE_TARGET, writable=True),
        )
        argv = container_command(words, mounts=mounts, environment=inside)
        return argv, dict(environment)
    paths = [str(staging), *filter(None, [environment.get("PYTHONPATH")])]
    added = {ENVIRONMENT: settings.to_json(), "PYTHONPATH": os.pathsep.join(paths)}
    if settings.counters and (libraries := newest_cupti()):
        environment = with_cupti(environment, libraries)
    environment = with_ray_copies(dict(environment) | added, ENVIRONMENT)
    return list(command.argv), with_plugin_allowed(environment)
