"""An engine in a process of its own: started, asked, and ended whatever happens."""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from spark_prof.ab.command import EngineCommand
from spark_prof.ab.messages import Answer, Facts, Failed, Request, Shutdown, Start, receive, send
from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError
from spark_prof.profiler.attach import Registered, recordable_among, registered, registered_in
from spark_prof.profiler.child import descendants, end_child
from spark_prof.profiler.commands import with_plugin_allowed
from spark_prof.profiler.container import stage_package, why_it_failed
from spark_prof.profiler.container_run import as_here, staged
from spark_prof.profiler.interrupts import Patience
from spark_prof.profiler.settings import ENVIRONMENT, REGISTRY, WATCH_GRAPHS

_TAIL_BYTES = 256 << 10
_ERROR = re.compile(r"\b(\w*Error|error|Exception|out of memory|spark-prof)\b: ?\S")
_CONSEQUENCE = re.compile(
    r"Engine core initialization failed|EngineDeadError|EngineCore encountered|WorkerProc|"
    r"Worker proc|shutting down|Engine process failed|leaked shared_memory"
)
"""What vLLM says after the line that says why."""
_LOG_PREFIX = re.compile(r"^(\(.*?\) )?(\w+ [\d-]+ [\d:]+ \[[^]]*\] )?")


def last_words(log: Path) -> str:
    """The last line of a log that names an error, else its last line."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return "(no log)"
    lines = [_LOG_PREFIX.sub("", line).strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line) and not _CONSEQUENCE.search(line)]
    return (errors or lines or ["(nothing was logged)"])[-1][:400]


_FAILED_ALLOCATION = b"memory allocation failed with OOM"
"""What torch's allocator warns of where it frees memory and tries again (CUDACachingAllocator)."""


def failed_allocations(log: Path) -> int:
    """How often a GPU had too little memory while an engine loaded that came up all the same."""
    try:
        with open(log, "rb") as file:
            return sum(_FAILED_ALLOCATION in line for line in file)
    except OSError:
        return 0


def with_advice(reason: str, logged: str) -> str:
    """A failure with what the log says of it, and the way out where memory ran out."""
    if re.search(r"out of memory|OutOfMemory|No available memory", f"{reason} {logged}"):
        return f"{reason}; leave it more with a lower --max-model-len, or swap fewer slots"
    if _CONSEQUENCE.search(reason) and _ERROR.search(logged):
        return logged
    if logged not in reason and re.search(r"exit code|Engine ?[Cc]ore|EngineDead", reason):
        return f"{reason}: {logged}"
    return reason


_DRIVER = ("-m", "spark_prof.ab.driver")
_POLL_SECONDS = 0.5
_END_SECONDS = 30.0
_ENDING = Patience(0.0, 0.0, ((signal.SIGINT, 10.0), (signal.SIGTERM, 10.0)), 10.0)
_AT_ONCE = Patience(0.0, 0.0, ((signal.SIGTERM, 2.0),), 2.0)

_Kind = TypeVar("_Kind", bound=Answer)


class EngineError(CommandError):
    """That an engine failed, ended or fell silent, and where its log is."""

    def __init__(self, fault: str, log: Path, way_out: str = "") -> None:
        super().__init__("; ".join(filter(None, (fault, f"its log is {log}", way_out))))
        self.fault = fault


class Engine:
    """One engine; a context manager that has ended it afterwards."""

    def __init__(
        self,
        command: EngineCommand,
        environment: Mapping[str, str],  # variables beyond this process's own
        log: Path,  # the file that takes what it prints
        silence: float,  # seconds after which an engine that neither answers nor logs is given up
        until: float = math.inf,  # the moment of time.monotonic() at which it is given up
        files: Sequence[Path] = (),  # of this host that it reads, such as a kernel's
    ) -> None:
        self._command = command
        self._files = tuple(files)
        self._registry: Path | None = None  # of a container
        self._environment = dict(environment)
        self.log = log
        self.silence = silence
        self.until = until
        self._temporary = ExitStack()
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._idle = False  # no engine yet that has to be ended in order

    def __enter__(self) -> Engine:
        try:
            self._launch()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def process(self) -> psutil.Process | None:
        """The process that holds the engine, vLLM's others below it; None for a container."""
        assert self._child is not None
        return None if self._command.container else psutil.Process(self._child.pid)

    def recordable(self) -> Registered:
        """The processes of the engine that can be recorded."""
        if self._registry is not None:
            return registered_in(self._registry)
        return registered(recordable_among(self.process) if self.process else ())

    def open(self, *folders: Path) -> None:
        """Lets a container's user write into folders of this host."""
        if self._command.container:
            self._command.container.open(*folders)

    def check_alive(self) -> None:
        """Raises CommandError if the process has ended."""
        if not self.alive:
            raise self._failed("running")

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._child is not None and self._child.poll() is None

    def start(
        self,
        arguments: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        drafts: tuple[int, ...] | None = None,  # as of `Start`, where the drafter is as served
    ) -> Facts:
        """Builds the engine, of the command's arguments or others, with further variables."""
        arguments = self._command.arguments if arguments is None else arguments
        request = Start(
            self._command.form, tuple(arguments), dict(environment or {}), drafts, bool(drafts)
        )
        return self.ask(request, Facts, "starting")

    def ask(self, request: Request, kind: type[_Kind], doing: str) -> _Kind:
        """Sends a request and waits for its answer; CommandError where it failed or fell silent."""
        assert self._connection is not None
        connection, self._idle = self._connection, False
        try:
            send(connection, request)
        except OSError as error:
            raise self._failed(doing) from error
        line = self._wait(lambda: receive(connection, _POLL_SECONDS), doing)
        try:
            answer: Answer = msgspec.json.decode(line, type=Answer)
        except msgspec.DecodeError as error:
            raise CommandError(
                f"the engine's answer while {doing} is no message: {error}"
            ) from error
        self._idle = True
        if isinstance(answer, Failed):
            why = with_advice(answer.reason, self._words())
            if lacks := self._lacks(None):
                why = f"{lacks}; {why}"
            raise EngineError(f"the engine failed while {doing}: {why}", self.log)
        if not isinstance(answer, kind):
            raise CommandError(f"the engine answered {type(answer).__name__} while {doing}")
        return answer

    def _wait(self, read: Callable[[], bytes | None], doing: str) -> bytes:
        """Waits as long as the engine lives and either answers or goes on logging."""
        since, size = time.monotonic(), self._log_size()
        while True:
            try:
                line = read()
            except EOFError as error:
                raise self._failed(doing) from error
            if line is not None:
                return line
            if (now := self._log_size()) != size:
                since, size = time.monotonic(), now
            if time.monotonic() > self.until:
                raise CommandError(f"the engine has used its time while {doing}")
            if time.monotonic() - since > self.silence:
                raise EngineError(
                    f"the engine has been silent for {self.silence:.0f} s while {doing}; the last "
                    f"line of its log: {self._words()}",
                    self.log,
                    "--timeout sets how long to wait",
                )
            assert self._child is not None
            if self._child.poll() is not None:
                raise self._failed(doing)

    def _launch(self) -> None:
        folder = self._temporary.enter_context(temporary_folder("spark-prof-ab-"))
        stage_package(folder)
        path = folder / "socket"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(1)
            listener.settimeout(_POLL_SECONDS)
            argv, variables = self._started(folder, path)
            try:
                with open(self.log, "ab") as log:
                    self._child = subprocess.Popen(
                        argv,
                        env=variables,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        process_group=0,  # Ctrl-C is for spark-prof, which ends it in order
                    )
            except OSError as error:
                why = error.strerror or error
                raise CommandError(f"cannot start {argv[0]}: {why}") from error
            sockets: list[socket.socket] = []

            def accept() -> bytes | None:
                with suppress(TimeoutError):
                    sockets.append(listener.accept()[0])
                    return b""
                return None

            self._wait(accept, "its process started")
            self._connection = Connection(sockets[0].detach())

    def _started(self, folder: Path, answers: Path) -> tuple[list[str], dict[str, str]]:
        """The command line of the driver that answers at the socket, and its environment."""
        command = self._command
        if command.container is None:
            argv = [*command.prefix, command.python, *_DRIVER, str(answers)]
            return argv, self._variables(folder)
        self._registry = folder / "registry"
        self._registry.mkdir()
        answers.chmod(0o666)  # its folder keeps all others out
        self.open(folder, self._registry, self.log.parent)
        mounts = [
            staged(folder),
            as_here(folder, writable=True),
            as_here(self.log.parent, writable=True),
        ]
        for path in dict.fromkeys(file.absolute() for file in self._files):
            if not any(path.is_relative_to(mount.source) for mount in mounts):
                mounts.append(as_here(path))
        inside = {ENVIRONMENT: WATCH_GRAPHS, REGISTRY: str(self._registry), **self._environment}
        driver = [*_DRIVER, str(answers)]
        name = self._temporary.enter_context(command.container.named())
        words = command.container.command(name, command.python, driver, mounts, inside)
        return words, dict(os.environ)

    def _variables(self, staging: Path) -> dict[str, str]:
        variables = {**os.environ, ENVIRONMENT: WATCH_GRAPHS, **self._environment}
        paths = [str(staging), *filter(None, [variables.get("PYTHONPATH")])]
        return with_plugin_allowed({**variables, "PYTHONPATH": os.pathsep.join(paths)})

    def _failed(self, doing: str) -> CommandError:
        assert self._child is not None
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(10)
        code = self._child.returncode
        how = "closed its connection" if code is None else f"ended with exit code {code}"
        words = self._words()
        if lacks := self._lacks(code):
            return EngineError(lacks, self.log)
        why = with_advice(words, words)
        return EngineError(f"the engine {how} while {doing}: {why}", self.log)

    def _words(self) -> str:
        return last_words(self.log)

    def _lacks(self, code: int | None) -> str:
        """What its container lacks; empty where there is none, or nothing that is known."""
        container = self._command.container
        return why_it_failed(container.line, code, self._words()) if container else ""

    def _log_size(self) -> int:
        with suppress(OSError):
            return self.log.stat().st_size
        return 0

    def _end(self) -> None:
        """Ends the process in order if it answers, else as Ctrl-C would, else harder."""
        child = self._child
        if child is not None:
            family = descendants(child.pid)
            if child.poll() is None and self._connection is not None and self._idle:
                with suppress(OSError, EOFError):
                    send(self._connection, Shutdown())
                    if receive(self._connection, _END_SECONDS) is not None:
                        child.wait(_END_SECONDS)
            end_child(child, _ENDING if time.monotonic() < self.until else _AT_ONCE, family)
        if self._connection is not None:
            self._connection.close()
        self._temporary.close()
