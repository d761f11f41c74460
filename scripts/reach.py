"""A plugin of pytest that writes down which tests run which lines of the package.

    python -m pytest -p scripts.reach -m 'not slow' [TESTS]

It leaves coverage.py's data in `build/reach`, where every test is a context, and beside them a line
a test: how long it computed and what it shares with others. What runs once for many tests, a
fixture of a module or a function with a cache, is a context of its own, as each depends on it.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts.reached import WITHOUT

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "reach"
CONTEXT = "SPARK_PROF_REACH"


def _computed() -> float:
    """Seconds that this process and those that ended have computed: a busy machine adds none."""
    return sum(os.times()[:4])


class Reach:
    """What is measured in this process."""

    def __init__(self) -> None:
        import coverage

        FOLDER.mkdir(parents=True, exist_ok=True)
        settings = FOLDER / "coverage.ini"
        settings.write_text(
            f"[run]\ninclude = {ROOT}/spark_prof/*\nparallel = true\ndata_file = {FOLDER}/lines\n"
            f"context = ${{{CONTEXT}-}}\ndisable_warnings = no-data-collected\n"
        )
        os.environ[CONTEXT] = ""
        self.coverage = coverage.Coverage(config_file=str(settings))
        self.contexts = ["import"]
        self.shared: set[str] = set()
        self.seconds: dict[str, float] = {}
        self.paid = 0.0
        self.coverage.start()
        self.coverage.switch_context("import")
        # Processes that tests start are measured as well, if they end by themselves.
        os.environ["COVERAGE_PROCESS_START"] = str(settings)

    @contextmanager
    def within(self, context: str) -> Iterator[None]:
        """Counts what runs inside to that context."""
        begun, before = _computed(), self.paid
        self.contexts.append(context)
        self._switch()
        try:
            yield
        finally:
            self.contexts.pop()
            self._switch()
            took = _computed() - begun
            inside = took - (self.paid - before)
            self.seconds[context] = self.seconds.get(context, 0.0) + inside
            self.paid = before + took

    def _switch(self) -> None:
        os.environ[CONTEXT] = self.contexts[-1]
        self.coverage.switch_context(self.contexts[-1])


_reach: Reach | None = None


def _counted(make: Callable[..., Any]) -> Callable[..., Any]:
    """A cache of functools that tells who used it."""

    def cached(*args: Any, **named: Any) -> Any:
        if not (args and callable(args[0])):
            return lambda function: cached_function(function, make(*args, **named))
        return cached_function(args[0], make)

    def cached_function(function: Any, decorate: Callable[..., Any]) -> Any:
        module = getattr(function, "__module__", "")
        if not module.startswith(("tests", "spark_prof")):
            return decorate(function)
        label = f"cache:{module}.{function.__qualname__}"

        @functools.wraps(function)
        def first(*words: Any, **kwargs: Any) -> Any:
            name = label + (repr((words, kwargs))[:90] if module.startswith("tests") else "")
            if _reach is None or name in _reach.seconds:
                return function(*words, **kwargs)
            with _reach.within(name):
                return function(*words, **kwargs)

        inner = decorate(first)

        @functools.wraps(function)
        def outer(*words: Any, **kwargs: Any) -> Any:
            if _reach is not None:
                _reach.shared.add(
                    label + (repr((words, kwargs))[:90] if module.startswith("tests") else "")
                )
            return inner(*words, **kwargs)

        for name in ("cache_clear", "cache_info", "cache_parameters"):
            setattr(outer, name, getattr(inner, name))
        return outer

    return cached


def pytest_configure(config: pytest.Config) -> None:
    """Begins; with several processes the one that shares out the tests runs none of them."""
    global _reach
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None):
        functools.cache = _counted(functools.cache)
        functools.lru_cache = _counted(functools.lru_cache)
        _reach = Reach()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves out what takes longer than all mutants together."""
    items[:] = [item for item in items if not item.nodeid.startswith(WITHOUT)]


def _label(definition: Any) -> str:
    return f"fixture:{definition.baseid}:{definition.argname}"


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Iterator[None]:
    """A fixture that tests share is a context of its own."""
    if _reach is None or fixturedef.scope == "function":
        yield
        return
    with _reach.within(_label(fixturedef)):
        yield


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Every test is a context."""
    if _reach is None:
        yield
        return
    _reach.shared.clear()
    _outcomes.clear()
    with _reach.within(item.nodeid):
        yield
    fixtures = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009
    wide = {_label(chain[-1]) for chain in fixtures if chain[-1].scope != "function"}
    shared = sorted((wide | _reach.shared) - {item.nodeid})
    row = {
        "test": item.nodeid, "seconds": round(_reach.seconds[item.nodeid], 4),
        "passed": _outcomes == {"passed"},
        "shared": {label: round(_reach.seconds.get(label, 0.0), 4) for label in shared},
    }  # fmt: skip
    with (FOLDER / f"tests-{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


_outcomes: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """How a test ended."""
    _outcomes.add(report.outcome)


def pytest_unconfigure() -> None:
    """Writes what was measured."""
    if _reach is not None:
        _reach.coverage.stop()
        _reach.coverage.save()
