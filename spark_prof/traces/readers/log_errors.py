"""How an engine ended: the error at the root of a start that failed, or of an engine that died.

vLLM's processes pass an error on, each with a traceback of its own; what counts is the first one
that says what happened, not those that only say that another process failed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from spark_prof.redact import redacted_text
from spark_prof.rules.engine_failures import FAILURES
from spark_prof.traces.readers.log_lines import LogLine

WORDS: tuple[bytes, ...] = (
    b"Error: ", b"Exception: ", b"AssertionError", b"NotImplementedError", b"EngineDeadError",
    b"Traceback (most", b'", line ', b"direct cause", b"During handling", b"what():", b": error: ",
    b"failed to start", b"nitialization failed", b"initialization failed", b"fatal error",
    b"died unexpectedly", b"exited unexpectedly", b"hit an exception", b"received sigquit",
    b"Received sigquit", b"Segmentation fault", b"Segfault encountered", b"Killed",
    b"Exception ignored", b"ptxas fatal", b"nvcc fatal", b"Application startup complete",
)  # fmt: skip
"""What stands in lines that are of use here."""

_FAILED = re.compile(
    r"(?:EngineCore|WorkerProc|Engine process) failed to start|"
    r"(?:Engine core|WorkerProc|Frontend process failed during engine core) initialization(?: "
    r"failed|\.)|Scheduler hit an exception"
)
_DIED = re.compile(
    r"EngineCore encountered (?:a fatal error|an issue)|EngineDeadError|Engine process died|"
    r"died unexpectedly|engine core exited unexpectedly|[Rr]eceived sigquit from a child process"
)
_READY = re.compile(r"EngineCore encountered a fatal error|EngineDeadError")
_UP = re.compile(r"Application startup complete|Exception in ASGI application")
_WRAPPERS = re.compile(
    r"[Ss]ee root cause above|[Ss]ee stack trace|EngineDeadError|EngineGenerateError|"
    r"Engine core initialization failed|initialization failed due to an exception|"
    r"CancelledError|KeyboardInterrupt|SystemExit|BrokenPipeError|ChildFailedError|"
    r"ProcessExitedException|process .{0,40} terminated"
)
"""Errors that say no more than that there was another."""

_ERROR = re.compile(
    r"\s{0,4}(?P<name>(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80}"
    r"(?:Error|Exception|Failed|Exit|Interrupt|Deprecated))(?::\s?(?P<message>.*))?$"
)
_BARE = re.compile(r"(?P<name>(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80})(?::\s(?P<message>.*))?$")
"""What follows a traceback, whatever its class is called."""

_OTHER_ERRORS = (
    (re.compile(r"\s*what\(\):\s*(?P<message>.+)"), "C++ exception"),
    (re.compile(r"[\w. -]{1,60}: error: (?P<message>.+)"), "argument error"),
    (re.compile(r"(?P<message>(?:ptxas|nvcc) fatal\s*:.+)"), "compiler error"),
    (re.compile(r"(?:\S{1,80}: line \d+:\s+\d+ )?(?P<message>Killed)\s*(?:$|\S+ )"), "Killed"),
    (re.compile(r"(?P<message>.{0,40}(?:Segmentation fault|Segfault encountered).{0,40})"),
     "Killed"),
)  # fmt: skip
_SIGNAL = re.compile(
    r"exit code: -(\d{1,2})\b|core proc\(s\): \{[^}]{0,200}?: -(\d{1,2})\b|(Killed)$|(Seg)"
)
_SIGNALS = ("", "", "9", "11")
_FRAME = re.compile(r'File "(?P<file>[^"]{1,400})", line \d+, in (?P<function>[\w<>.]{1,100})')
_TRACEBACK, _CAUSE, _AGAIN = "Traceback (most", "direct cause", "During handling"
_IGNORED = "Exception ignored"

_LONGEST = 600
_MOST_FRAMES = 40
_MOST_REASONS = 6
_MOST_ERRORS = 400
_MOST_STARTS = 1000


@dataclass(frozen=True)
class EngineFailure:
    """The end of an engine."""

    serving: bool  # whether it had been serving; else it did not start
    error: str  # the class of the error, such as RuntimeError
    message: str
    reasons: tuple[str, ...]  # the lines after the message that belong to it
    frames: tuple[str, ...]  # file and function of the traceback, the innermost last
    process: str  # which one, as vLLM calls it
    line: int  # of the log, from 1; where the error stands
    recovered: bool  # whether an engine came up afterwards

    @property
    def text(self) -> str:
        """Class, message and reasons in one line."""
        return " ".join((f"{self.error}: {self.message}".strip(": "), *self.reasons))


@dataclass
class _Raised:
    """An error as a process printed it."""

    name: str
    message: str
    line: int
    process: str
    head: str
    raw: bool  # whether it was printed without a logger: nothing caught it
    again: bool  # whether it was raised while the one before it was handled
    frames: tuple[str, ...] = ()
    reasons: list[str] = field(default_factory=list)

    @property
    def wraps(self) -> bool:
        return bool(_WRAPPERS.search(f"{self.name}: {self.message}"))

    @property
    def has_rule(self) -> bool:
        text = " ".join((f"{self.name}: {self.message}", *self.reasons))
        return any(rule.pattern.search(text) for rule in FAILURES)


@dataclass
class _FailureLine:
    """A line that says that an engine failed."""

    line: int
    failed: bool  # whether it says that a start failed
    ready: bool  # whether only an engine that had started can say it
    signal: str  # that ended a process; empty where it names none


class ErrorWatch:
    """Reads tracebacks, and what tells that an engine failed, line by line."""

    def __init__(self) -> None:
        self._errors: list[_Raised] = []
        self._marks: list[_FailureLine] = []
        self._starts: list[int] = []
        self._up: list[int] = []
        self._alive = 0  # the last line that only an engine writes that goes on
        self._server = False  # whether an API server writes here too
        self._frames: dict[str, list[str]] = {}
        self._logged: dict[str, int] = {}  # the last line that a process wrote with a level
        self._uncaught_in: set[str] = set()  # processes whose last traceback nothing announced
        self._again: set[str] = set()
        self._ignored: set[str] = set()  # processes whose next error does no harm

    @property
    def failing(self) -> bool:
        """Whether the engine that started last has failed: errors that follow are its own."""
        return bool(self._marks) and self._marks[-1].line > max((*self._starts, *self._up, 0))

    def started(self, number: int) -> None:
        """In this line an engine says with which configuration it starts."""
        if len(self._starts) < _MOST_STARTS:
            self._starts.append(number)

    def lives(self, number: int) -> None:
        """In this line an engine says that another part of its start is done."""
        self._alive = number

    def add(self, line: LogLine) -> bool:
        """A line, in the order of the log; whether it tells of an error's place or end."""
        self._server = self._server or line.process.startswith("APIServer")
        if line.level in ("INFO", "DEBUG", "WARNING"):
            if _UP.search(line.body):
                self._up = [*self._up[-_MOST_STARTS:], line.number]
            return False
        body = line.body
        if _UP.search(body):
            self._up = [*self._up[-_MOST_STARTS:], line.number]
        marked = self._marked(line)
        if line.level:
            self._logged[line.process] = line.number
        if _TRACEBACK in body:
            self._frames[line.process] = []
            # A logger may print the traceback below its line, without its prefix.
            if self._logged.get(line.process, -1) != line.number - 1:
                self._uncaught_in.add(line.process)
            else:
                self._uncaught_in.discard(line.process)
        elif match := _FRAME.search(body):
            frames = self._frames.setdefault(line.process, [])
            frames.append(f"{_tail(match['file'])} {match['function']}")
            del frames[:-_MOST_FRAMES]
        elif _IGNORED in body:
            self._ignored.add(line.process)
        elif _AGAIN in body:
            self._again.add(line.process)
        elif _CAUSE in body:
            self._again.discard(line.process)
        elif not self._raised(line):
            self._reason(line)
            return marked
        return True

    def _marked(self, line: LogLine) -> bool:
        failed = bool(_FAILED.search(line.body))
        if not failed and not _DIED.search(line.body):
            return False
        if len(self._marks) < _MOST_STARTS:
            ready = bool(_READY.search(line.body))
            self._marks.append(_FailureLine(line.number, failed, ready, _signal(line.body)))
        return True

    def _raised(self, line: LogLine) -> bool:
        name, message = "", ""
        if match := _ERROR.match(line.body):
            name, message = match["name"].rsplit(".", 1)[-1], match["message"] or ""
        else:
            for pattern, kind in _OTHER_ERRORS:
                if match := pattern.match(line.body):
                    name, message = kind, match["message"]
                    break
        if not name and self._frames.get(line.process) and (match := _BARE.match(line.body)):
            name, message = match["name"].rsplit(".", 1)[-1], match["message"] or ""
        if not name:
            return False
        frames = tuple(self._frames.pop(line.process, ()))
        again = line.process in self._again
        self._again.discard(line.process)
        if line.process in self._ignored:
            self._ignored.discard(line.process)
            return True
        if len(self._errors) >= _MOST_ERRORS:
            del self._errors[_MOST_ERRORS // 2]  # the first and the last ones tell most
        self._errors.append(
            _Raised(
                name, redacted_text(message[:_LONGEST]), line.number, line.process, line.head,
                not line.level and self._is_uncaught(line, frames), again, frames,
            )
        )  # fmt: skip
        return True

    def _is_uncaught(self, line: LogLine, frames: Sequence[str]) -> bool:
        return not frames or line.process in self._uncaught_in

    def _reason(self, line: LogLine) -> None:
        """A line that goes on with the message of the error before it."""
        last = self._errors[-1] if self._errors else None
        text = line.body.strip()
        if last is None or not text or line.number - last.line > _MOST_REASONS:
            return
        same = (line.process, line.head) == (last.process, last.head)
        if same and len(last.reasons) == line.number - last.line - 1 < _MOST_REASONS:
            last.reasons.append(redacted_text(text[:_LONGEST]))

    def failure(self, served_first: int = 0, served_last: int = 0) -> EngineFailure | None:
        """How the last engine that failed did; None where none did.

        Args:
            served_first: number of the first line that only a server that runs writes, 0 for none.
            served_last: the same of the last one.
        """
        up = sorted({*self._up, *filter(None, (served_first, served_last))})
        marks = self._marks or self._uncaught(up)
        if not marks:
            return None
        last = marks[-1].line
        begin = max((line for line in self._starts if line < last), default=0)
        # Two engines of one server start one after the other, and fail together.
        window = [mark for mark in marks if mark.line > begin]
        first = window[0].line
        was_up = any(begin < line < first for line in up)
        # Without a server an engine serves as soon as it is ready.
        worked = begin < self._alive < first and not self._server
        # What failed to start may tell of a dead process too, not the other way round.
        ended = not any(one.failed for one in window) and (
            not begin or any(one.ready for one in window)
        )
        serving = was_up or worked or ended
        failure = EngineFailure(
            serving, "", "", (), (), "", first,
            recovered=any(line > last for line in up),
        )  # fmt: skip
        # Of several engines one may fail before the last one has said that it starts.
        if root := self._root(begin, first) or self._root(0, first):
            return replace(
                failure, error=root.name, message=root.message, reasons=tuple(root.reasons),
                frames=root.frames, process=root.process, line=root.line,
            )  # fmt: skip
        if signal := next((mark.signal for mark in window if mark.signal), ""):
            return replace(failure, error=f"Killed by signal {signal}")
        return failure

    def _uncaught(self, up: Sequence[int]) -> list[_FailureLine]:
        """The last error that nothing caught, where no engine was up: the server's own end."""
        last = max((*self._starts, self._alive))
        raised = [e for e in self._errors if e.raw and not e.wraps and e.line > last]
        if not raised or any(line > max((*self._starts, 0)) for line in up):
            return []
        one = raised[-1]
        offline = bool(self._alive) and not self._server
        # What a person's own program does wrong with an engine that is ready is none of its ends.
        if offline and not any("vllm/" in frame for frame in one.frames):
            return []
        return [_FailureLine(one.line, not offline, offline, "")]

    def _root(self, begin: int, first: int) -> _Raised | None:
        """The error at the root: after the first line that tells of the end, or else before it."""
        errors = [one for one in self._errors if one.line > begin and not one.wraps]
        after = [one for one in errors if one.line >= first]
        before = [one for one in errors if one.line < first]
        if after:
            chain = [after[0]]
            for one in after[1:]:
                if not (one.again and one.process == chain[0].process):
                    break
                chain.append(one)
            explained = [one for one in chain if one.has_rule] or chain
            root = (
                explained[-1]
                if explained[-1].has_rule
                else next(filter(_is_known, after), explained[-1])
            )
        elif before:
            root = next(filter(_is_known, reversed(before)), before[-1])
        else:
            return None
        return _killed(root) if root.name == "Killed" else root


def _is_known(error: _Raised) -> bool:
    return error.has_rule


def _killed(error: _Raised) -> _Raised:
    signal = "11" if "Seg" in error.message else "9"
    return replace(error, name=f"Killed by signal {signal}", message="")


def _signal(text: str) -> str:
    match = _SIGNAL.search(text)
    if not match:
        return ""
    at = next(index for index, group in enumerate(match.groups()) if group)
    return _SIGNALS[at] or match.groups()[at]


def _tail(path: str) -> str:
    """The last parts of a path: enough to tell whose code it is."""
    return "/".join(path.replace("\\", "/").split("/")[-6:])
