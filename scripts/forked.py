"""Plants a mutant into a fork of a process that has collected the tests once."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType

import pytest

PLAIN = ("-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow")
_PACKAGES = ("spark_prof", "tests", "conftest")


class Failures:
    """A plugin of pytest that remembers the first test that fails, and skips what is too late."""

    failed = ""
    until = 0.0  # seconds that this process and its ended children computed; 0 for any time

    def pytest_runtest_setup(self) -> None:
        """Begins no test after the last second."""
        if self.is_late:
            pytest.skip("no time is left")

    @property
    def is_late(self) -> bool:
        """Whether the time is up."""
        return 0 < self.until < sum(os.times()[:4])

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """How a test, or the collecting of a file, ended."""
        if report.failed:
            self.failed = self.failed or report.nodeid

    pytest_collectreport = pytest_runtest_logreport


class Collected(Failures):
    """Tests that were collected once; a plugin of the pytest that did it.

    `work` is called with it where pytest would run them.
    """

    def __init__(self, tree: Path, work: Callable[[Collected], None]) -> None:
        self.tree = tree
        self.work = work
        self.items: dict[str, pytest.Item] = {}
        self._functions: dict[tuple[str, int, str], list[FunctionType]] = defaultdict(list)

    @classmethod
    def collect(cls, tree: Path, files: Sequence[str], work: Callable[[Collected], None]) -> None:
        """Collects the tests of these files of a copied tree, and does the work."""
        os.chdir(tree)
        sys.path.insert(0, str(tree))
        sys.dont_write_bytecode = True
        os.environ |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        # A fork has none of torch's threads, and would wait for them for ever.
        os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        pytest.main(
            [*PLAIN, f"--rootdir={tree}", "--continue-on-collection-errors", *files],
            plugins=[cls(tree, work)],
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Does the work in place of running all tests."""
        self.items = {item.nodeid: item for item in session.items}
        for thing in gc.get_objects():
            if type(thing) is FunctionType:
                code = thing.__code__
                key = code.co_filename, code.co_firstlineno, code.co_name
                self._functions[key].append(thing)
        gc.freeze()
        self.work(self)
        return True

    def expanded(self, names: Sequence[str]) -> list[str]:
        """These tests, a file's in its place."""
        return list(dict.fromkeys(
            item for name in names for item in
            ([name] if name in self.items else [i for i in self.items if i.startswith(f"{name}::")])
        ))  # fmt: skip

    def first_failure(
        self, names: Sequence[str], seconds: float, file: Path | None = None, after: bytes = b""
    ) -> str:
        """The first of these tests that fails with a file changed; empty where none does.

        Args:
            seconds: that they may compute: later ones are left out, and one that then computes
                for twice as long has no end.
        """
        whole = file.read_bytes() if file else b""
        answer = self.tree / "first-failure"
        answer.unlink(missing_ok=True)
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                most = 2 * round(seconds) + 10
                resource.setrlimit(resource.RLIMIT_CPU, (most, most + 5))
                self.until = seconds
                nowhere = os.open(os.devnull, os.O_RDWR)
                for stream in (0, 1, 2):
                    os.dup2(nowhere, stream)
                if file is not None:
                    file.write_bytes(after)
                answer.write_text(self._run(names, file, whole, after))
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        if file is not None:
            file.write_bytes(whole)
        if answer.exists():
            return answer.read_text()
        ended = os.waitstatus_to_exitcode(status)
        return "no end" if ended in (-signal.SIGXCPU, -signal.SIGKILL) else f"exit code {ended}"

    def _run(self, names: Sequence[str], file: Path | None, whole: bytes, after: bytes) -> str:
        self.failed = ""
        if file is not None and not self._patch(file, whole, after):
            for name in [n for n in sys.modules if n.split(".")[0] in _PACKAGES]:
                del sys.modules[name]
            return self._anew(names)
        items = [self.items[name] for name in names if name in self.items]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed or self.is_late:
                break
        return self.failed

    def _anew(self, names: Sequence[str]) -> str:
        """The same where package and tests are imported anew, a few files at a time."""
        files = list(dict.fromkeys(name.partition("::")[0] for name in names))
        fresh, begin, group_size = Failures(), 0, 1
        fresh.until = self.until
        while begin < len(files) and not fresh.is_late:
            some = set(files[begin : begin + group_size])
            group = [name for name in names if name.partition("::")[0] in some]
            code = pytest.main([*PLAIN, "-x", f"--rootdir={self.tree}", *group], plugins=[fresh])
            if fresh.failed or code not in (0, 5):
                return fresh.failed or f"exit code {int(code)}"
            begin, group_size = begin + group_size, 2 * group_size
        return ""

    def _patch(self, file: Path, whole: bytes, after: bytes) -> bool:
        """Whether all that changes is what functions do: they do it from now on."""
        changed = list(
            _changed(compile(whole, str(file), "exec"), compile(after, str(file), "exec"))
        )
        for old, new in changed:
            functions = self._functions.get((old.co_filename, old.co_firstlineno, old.co_name), [])
            if not functions:
                return False
            for function in functions:
                function.__code__ = new
        return bool(changed)


def _changed(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The outermost functions that differ; the module where something outside of them does."""
    inner = [
        [const for const in code.co_consts if isinstance(const, CodeType)] for code in (old, new)
    ]
    plain = [
        (code.co_code, code.co_names, [c for c in code.co_consts if not isinstance(c, CodeType)])
        for code in (old, new)
    ]
    if repr(plain[0]) != repr(plain[1]) or len(inner[0]) != len(inner[1]):
        yield old, new
        return
    if old.co_name != "<module>" and old != new and not _is_class(old):
        yield old, new
        return
    for one, other in zip(*inner, strict=True):
        yield from _changed(one, other)


def _is_class(code: CodeType) -> bool:
    return "__module__" in code.co_names and "__qualname__" in code.co_names
